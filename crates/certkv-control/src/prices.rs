//! What each of many blocks is best read as, so that every head stays within its tolerance: by prices, math.md (6.17). A price says how many bytes a head
//! gives for its whole tolerance; at given prices each block chooses for itself, and prices rise and fall until what is left fits.
use crate::ControlError;
use crate::error::length;
use certkv_core::{OutOfMemory, reserve_total};

/// Most heads that share blocks.
const HEADS: usize = 16;
/// Rounds of prices. Choices hardly change after a few, and whoever uses them covers what they miss.
const ROUNDS: usize = 6;
/// What a round's step is of the one before it.
const DAMPING: f32 = 0.8;
/// Most that a price moves in a round, as a logarithm.
const LEAP: f32 = 2.0;

/// One way to read a side of a block.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Reading {
    /// Bytes beside those of codes.
    pub bytes: f32,
    /// What is left of the side's terms, of 1.
    pub left: f32,
}

/// Blocks, and the ways to read them.
#[derive(Debug, Clone, Copy)]
pub struct Blocks<'a> {
    /// Heads, 1 to 16.
    pub heads: usize,
    /// Terms of keys read from codes, as shares of what each head may keep, `[head][block]`. Blocks of which one is no finite number are left alone.
    pub keys: &'a [f32],
    /// The same of values.
    pub values: &'a [f32],
    /// Ways to read keys, codes first.
    pub key: &'a [Reading],
    /// Ways to read values, codes first.
    pub value: &'a [Reading],
    /// Bytes of a row that is read by itself.
    pub row: f32,
}

impl Blocks<'_> {
    fn len(&self) -> usize {
        self.keys.len() / self.heads.max(1)
    }
}

/// Rows that may leave one block, fewest first, and what that leaves of each head's terms.
#[derive(Debug, Clone, Default)]
pub struct Candidates {
    heads: usize,
    rows: Vec<u64>,
    rest: Vec<f32>,
}

impl Candidates {
    /// Adds `rows`, bit by bit, which leave `rest` of the heads' terms.
    pub fn push(&mut self, rows: u64, rest: &[f32; HEADS]) {
        self.rows.push(rows);
        self.rest.extend_from_slice(&rest[..self.heads]);
    }

    fn rest(&self, index: usize) -> &[f32] {
        &self.rest[index * self.heads..(index + 1) * self.heads]
    }
}

/// How a block is read, if not from its codes alone.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Choice {
    /// The block.
    pub block: usize,
    /// Rows that leave it.
    pub rows: u64,
    /// Which of the ways to read keys.
    pub key: usize,
    /// Which of those to read values.
    pub value: usize,
}

/// Prices with their work buffers.
#[derive(Debug, Clone, Default)]
pub struct Prices {
    price: [f32; HEADS],
    left: [f32; HEADS],
    /// What each head has from codes alone.
    all: [f32; HEADS],
    /// Both terms of each block, `[head][block]`; 0 where they are left alone.
    both: Vec<f32>,
    /// What all of a block's terms are worth at the present prices, in bytes.
    worth: Vec<f32>,
    choices: Vec<Choice>,
    candidates: Candidates,
    /// Of each block its candidates, once somebody asked.
    known: Vec<Option<(u32, u32)>>,
}

impl Prices {
    /// Asks for the memory of so many blocks with so many candidates each.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub fn reserve(&mut self, heads: usize, blocks: usize, candidates: usize) -> Result<(), OutOfMemory> {
        reserve_total(&mut self.both, heads * blocks)?;
        reserve_total(&mut self.worth, blocks)?;
        reserve_total(&mut self.choices, blocks)?;
        reserve_total(&mut self.known, blocks)?;
        reserve_total(&mut self.candidates.rows, blocks * candidates)?;
        reserve_total(&mut self.candidates.rest, blocks * candidates * heads)
    }

    /// Blocks that are to be read otherwise than from codes, in order. `start` are the prices of the first round, in bytes; heads whose terms are within
    /// what they may keep pay nothing. `candidates` says which rows may leave a block; it is asked once about every block for which that could pay.
    ///
    /// What is left with these choices is near 1 for each head that pays, not at most 1. A few dozen nanoseconds a round for each block that could
    /// pay, with its candidates.
    ///
    /// # Errors
    /// [`ControlError::Length`] for unequal lengths, no way to read a side, or more than 16 heads.
    pub fn settle(
        &mut self,
        blocks: &Blocks<'_>,
        start: f32,
        mut candidates: impl FnMut(usize, &mut Candidates),
    ) -> Result<&[Choice], ControlError> {
        length("heads", blocks.heads, blocks.heads.clamp(1, HEADS))?;
        length("keys", blocks.keys.len(), blocks.len() * blocks.heads)?;
        length("values", blocks.values.len(), blocks.keys.len())?;
        length("key", blocks.key.len().min(1), 1)?;
        length("value", blocks.value.len().min(1), 1)?;
        self.candidates.heads = blocks.heads;
        self.candidates.rows.clear();
        self.candidates.rest.clear();
        self.choices.clear();
        self.known.clear();
        self.known.resize(blocks.len(), None);
        self.both.clear();
        self.both.extend(blocks.keys.iter().zip(blocks.values).map(|(k, v)| k + v));
        self.sum(blocks);
        // `!(x <= 1)`: what is not finite is over it.
        self.price = core::array::from_fn(|h| if h < blocks.heads && !(self.all[h] <= 1.0) { start } else { 0.0 });
        if self.price == [0.0; HEADS] {
            return Ok(&self.choices);
        }
        self.leave_alone(blocks);
        let mut step = 1.0;
        for round in 0..ROUNDS {
            if round > 0 {
                for (price, left) in self.price.iter_mut().zip(&self.left) {
                    *price *= (step * left.max(f32::MIN_POSITIVE).ln().clamp(-LEAP, LEAP)).exp();
                }
                step *= DAMPING;
            }
            self.round(blocks, &mut candidates);
        }
        Ok(&self.choices)
    }

    /// What each head is left with by the last choices.
    pub fn left(&self) -> &[f32; HEADS] {
        &self.left
    }

    /// What each head has of all blocks.
    fn sum(&mut self, blocks: &Blocks<'_>) {
        self.all = [0.0; HEADS];
        let of_heads = self.both.chunks_exact(blocks.len().max(1));
        self.all.iter_mut().zip(of_heads).for_each(|(all, both)| *all = both.iter().sum());
    }

    /// Blocks that no price can judge count for nothing.
    fn leave_alone(&mut self, blocks: &Blocks<'_>) {
        if self.all.iter().all(|all| all.is_finite()) {
            return;
        }
        for block in 0..blocks.len() {
            let of_heads = || (0..blocks.heads).map(|h| h * blocks.len() + block);
            if of_heads().any(|at| !self.both[at].is_finite()) {
                of_heads().for_each(|at| self.both[at] = 0.0);
            }
        }
        self.sum(blocks);
    }

    /// Every block's choice at the present prices.
    fn round(&mut self, blocks: &Blocks<'_>, candidates: &mut impl FnMut(usize, &mut Candidates)) {
        self.choices.clear();
        self.left = self.all;
        self.worth.clear();
        self.worth.resize(blocks.len(), 0.0);
        for (both, price) in self.both.chunks_exact(blocks.len().max(1)).zip(self.price).filter(|(_, p)| *p > 0.0) {
            self.worth.iter_mut().zip(both).for_each(|(worth, both)| *worth += price * both);
        }
        let paid =
            |ways: &[Reading]| ways.iter().map(|way| way.bytes).filter(|b| *b > 0.0).fold(f32::INFINITY, f32::min);
        let cheapest = paid(blocks.key).min(paid(blocks.value)).min(blocks.row);
        for block in 0..blocks.len() {
            // Nothing costs less than it could save.
            if self.worth[block] > cheapest {
                self.choose(blocks, block, candidates);
            }
        }
        self.left.iter_mut().for_each(|left| *left = left.max(0.0));
    }

    /// Takes the best way to read `block`, unless that is its codes.
    fn choose(&mut self, blocks: &Blocks<'_>, block: usize, candidates: &mut impl FnMut(usize, &mut Candidates)) {
        let (first, end) = *self.known[block].get_or_insert_with(|| {
            let first = self.candidates.rows.len() as u32;
            candidates(block, &mut self.candidates);
            (first, self.candidates.rows.len() as u32)
        });
        let (heads, all) = (blocks.heads, [1.0; HEADS]);
        let (mut keys, mut values) = ([0.0; HEADS], [0.0; HEADS]);
        for h in 0..heads {
            (keys[h], values[h]) = (blocks.keys[h * blocks.len() + block], blocks.values[h * blocks.len() + block]);
        }
        let none = Choice { block, rows: 0, key: 0, value: 0 };
        let (mut least, mut best) = (f32::INFINITY, (none, &all[..heads]));
        let offered = (first as usize..end as usize).map(|i| (self.candidates.rows[i], self.candidates.rest(i)));
        for (rows, rest) in core::iter::once((0, &all[..heads])).chain(offered) {
            let mut worth = [0.0; 2];
            for h in 0..heads {
                let price = rest[h] * self.price[h];
                worth = [worth[0] + price * keys[h], worth[1] + price * values[h]];
            }
            let ((key, a), (value, b)) = (cheapest(blocks.key, worth[0]), cheapest(blocks.value, worth[1]));
            let cost = blocks.row * rows.count_ones() as f32 + a + b;
            if cost < least {
                (least, best) = (cost, (Choice { block, rows, key, value }, rest));
            }
        }
        let (choice, rest) = best;
        if choice != none {
            let (a, b) = (blocks.key[choice.key].left, blocks.value[choice.value].left);
            for h in 0..heads {
                self.left[h] += rest[h] * (a * keys[h] + b * values[h]) - self.both[h * blocks.len() + block];
            }
            self.choices.push(choice);
        }
    }
}

/// The way that costs least where the terms are worth so many bytes, and what it costs; the first of equals.
fn cheapest(ways: &[Reading], worth: f32) -> (usize, f32) {
    let costs = ways.iter().map(|way| way.bytes + way.left * worth).enumerate();
    costs.fold((0, f32::INFINITY), |best, (i, cost)| if cost < best.1 { (i, cost) } else { best })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const KEY: [Reading; 3] = [
        Reading { bytes: 0.0, left: 1.0 },
        Reading { bytes: 4096.0, left: 0.0625 },
        Reading { bytes: 16384.0, left: 0.0 },
    ];
    const VALUE: [Reading; 2] = [Reading { bytes: 0.0, left: 1.0 }, Reading { bytes: 12288.0, left: 0.0 }];
    const START: f32 = 1e5;

    fn blocks<'a>(heads: usize, keys: &'a [f32], values: &'a [f32]) -> Blocks<'a> {
        Blocks { heads, keys, values, key: &KEY, value: &VALUE, row: 512.0 }
    }

    /// One row of every block leaves half of its terms, four leave a tenth.
    fn rows(_: usize, to: &mut Candidates) {
        to.push(1, &[0.5; HEADS]);
        to.push(15, &[0.1; HEADS]);
    }

    /// Bytes of every way to read a block, and what it leaves of keys and values.
    fn ways() -> impl Iterator<Item = (Choice, f32, [f32; 2])> {
        let rows = [(0u64, 1.0f32), (1, 0.5), (15, 0.1)];
        rows.into_iter().flat_map(|(rows, rest)| {
            KEY.iter().enumerate().flat_map(move |(key, k)| {
                VALUE.iter().enumerate().map(move |(value, v)| {
                    let bytes = 512.0 * rows.count_ones() as f32 + k.bytes + v.bytes;
                    (Choice { block: 0, rows, key, value }, bytes, [rest * k.left, rest * v.left])
                })
            })
        })
    }

    fn bytes(choice: &Choice) -> f32 {
        let same = |way: &(Choice, f32, [f32; 2])| way.0 == Choice { block: 0, ..*choice };
        ways().find(same).map_or(f32::NAN, |way| way.1)
    }

    proptest! {
        #[test]
        fn blocks_choose_what_is_best_at_the_prices_and_no_plan_is_cheaper(
            terms in proptest::collection::vec(prop_oneof![Just(0.0f32), 0.0f32..0.3, 0.0f32..8.0], 12),
        ) {
            let (keys, values) = terms.split_at(6);
            let problem = blocks(2, keys, values);
            let mut prices = Prices::default();
            let choices = prices.settle(&problem, START, rows).unwrap().to_vec();
            let price = prices.price;
            let worth = |block: usize, [k, v]: [f32; 2]| -> f32 {
                (0..2).map(|h| price[h] * (k * keys[3 * h + block] + v * values[3 * h + block])).sum()
            };
            let mut dual = -(price[0] + price[1]);
            for block in 0..3 {
                let chosen = choices.iter().find(|c| c.block == block);
                let choice = chosen.copied().unwrap_or(Choice { block, rows: 0, key: 0, value: 0 });
                let cost = |way: (Choice, f32, [f32; 2])| way.1 + worth(block, way.2);
                let least = ways().map(cost).fold(f32::INFINITY, f32::min);
                let own = ways().find(|way| way.0 == Choice { block: 0, ..choice }).map_or(f32::NAN, cost);
                prop_assert!(own <= least * 1.0001 + 0.01, "{choice:?} costs {own}, {least} is possible");
                dual += least;
            }
            // Whatever leaves at most 1 of every head costs at least what the prices say.
            for a in ways() {
                for b in ways() {
                    for c in ways() {
                        let plan = [a, b, c];
                        let left = |h: usize| -> f32 {
                            let of = |(i, way): (usize, &(Choice, f32, [f32; 2]))| way.2[0] * keys[3 * h + i] + way.2[1] * values[3 * h + i];
                            plan.iter().enumerate().map(of).sum()
                        };
                        if left(0) <= 1.0 && left(1) <= 1.0 {
                            prop_assert!(plan.iter().map(|way| way.1).sum::<f32>() >= dual * 0.9999 - 1.0);
                        }
                    }
                }
            }
        }
    }

    /// Many blocks of very different terms.
    fn many(n: usize, scale: f32) -> (Vec<f32>, Vec<f32>) {
        let term = |i: usize| scale * (-0.01 * ((i * 2654435761) % 1000) as f32).exp();
        ((0..2 * n).map(term).collect(), (0..2 * n).map(|i| 0.05 * term(i + 17)).collect())
    }

    #[test]
    fn what_is_left_is_near_what_may_be_left() {
        for (n, scale) in [(128, 1.0), (128, 20.0), (500, 0.2), (2000, 1.0)] {
            let (keys, values) = many(n, scale);
            let mut prices = Prices::default();
            let start = n as f32 * 1024.0;
            let cost: f32 = prices.settle(&blocks(2, &keys, &values), start, rows).unwrap().iter().map(bytes).sum();
            for left in &prices.left()[..2] {
                assert!((0.7..1.4).contains(left), "{n} blocks, scale {scale}: {left} is left");
            }
            let everything = n as f32 * 28672.0;
            assert!(cost > 0.0 && cost < everything / 2.0, "{cost} of {everything}");
        }
    }

    #[test]
    fn who_is_within_pays_nothing_and_what_is_not_finite_is_left_alone() {
        let mut prices = Prices::default();
        let (keys, values) = ([0.5, 0.2, 0.1, 0.1], [0.05; 4]);
        let asked = |_: usize, _: &mut Candidates| panic!("nothing to pay for");
        assert_eq!(prices.settle(&blocks(2, &keys, &values), START, asked).unwrap(), []);
        // The second head is within; its terms do not count.
        let keys = [f32::INFINITY, 3.0, f32::NAN, 0.01, 0.02, 0.03];
        let choices = prices.settle(&blocks(2, &keys, &[0.0; 6]), START, rows).unwrap();
        assert_eq!(choices.iter().map(|c| c.block).collect::<Vec<_>>(), [1]);
        assert_eq!(prices.price[1], 0.0);
    }

    #[test]
    fn arguments_that_do_not_fit_are_refused() {
        let mut prices = Prices::default();
        let mut named = |blocks: Blocks<'_>| match prices.settle(&blocks, START, rows) {
            Err(ControlError::Length { what, .. }) => what,
            other => panic!("{other:?}"),
        };
        let right = blocks(2, &[1.0; 4], &[1.0; 4]);
        assert_eq!(named(Blocks { heads: 0, ..right }), "heads");
        assert_eq!(named(Blocks { heads: 17, ..right }), "heads");
        assert_eq!(named(Blocks { keys: &[1.0; 3], ..right }), "keys");
        assert_eq!(named(Blocks { values: &[1.0; 5], ..right }), "values");
        assert_eq!(named(Blocks { key: &[], ..right }), "key");
        assert_eq!(named(Blocks { value: &[], ..right }), "value");
    }
}
