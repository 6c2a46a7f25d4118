//! Widths of few items within a budget, by looking at choices that could be better than those of the heap: math.md (9.13a).
use super::widths::LEAST_SCORE;

/// Items that are looked at so, at most, the levels of one, and choices of an item's level in either order.
pub(super) const FEW: usize = 64;
pub(super) const LEVELS: usize = 16;
const NODES: usize = 1 << 14;

/// No level.
const NONE: u8 = u8::MAX;

/// Halvings of the range of prices.
const HALVINGS: usize = 48;

/// Parts of its value that the best choice may be missed by.
const CLOSE: f64 = 1.0 / 512.0;

/// An item, and which of the ladder's levels it can have.
#[derive(Debug, Clone, Copy)]
struct Choice {
    item: usize,
    score: f64,
    least: u8,
    most: u8,
    /// What the items from here on bring at most, less the price of what they take; and what they take at least.
    bound: f64,
    floor: f64,
}

/// Work buffers of a search.
#[derive(Debug, Clone, Default)]
pub(super) struct Search {
    choices: Vec<Choice>,
    /// By item.
    now: Vec<u8>,
    best: Vec<u8>,
    nodes: usize,
}

/// What all items share.
struct Shared<'a> {
    worth: &'a [f64],
    cost: &'a [f64],
    /// Of a byte: any that is not negative bounds what is left (Lagrange), the one at which the budget is spent most closely.
    price: f64,
}

/// The price of a byte at which items that take what pays take no more than the budget, and at a little less more.
fn price(choices: &[Choice], (worth, cost): (&[f64], &[f64]), budget: f64) -> f64 {
    let taken = |price: f64| -> f64 {
        let shared = Shared { worth, cost, price };
        let of = |choice: &Choice| {
            let reduced = |l: u8| shared.reduced(choice.score, l);
            let best = (choice.least..=choice.most).reduce(|a, b| if reduced(b) > reduced(a) { b } else { a });
            best.map_or(0.0, |l| cost[usize::from(l)])
        };
        choices.iter().map(of).sum()
    };
    let steps = worth.windows(2).zip(cost.windows(2)).map(|(w, c)| (w[1] - w[0]) / (c[1] - c[0]));
    let most = steps.fold(0.0, f64::max) * choices.iter().map(|choice| choice.score).fold(0.0, f64::max);
    let (mut low, mut high) = (0.0, most);
    for _ in 0..HALVINGS {
        let middle = 0.5 * (low + high);
        if taken(middle) > budget { low = middle } else { high = middle }
    }
    high
}

impl Shared<'_> {
    /// What a level brings, less the price of what it takes.
    fn reduced(&self, score: f64, level: u8) -> f64 {
        score * self.worth[usize::from(level)] - self.price * self.cost[usize::from(level)]
    }
}

impl Search {
    /// Better levels than `level`, if there are, from `least` to `most` each and within `budget` together. Whether there were.
    pub(super) fn improve(
        &mut self,
        score: &[f64],
        (least, most): (&[u8], &[u8]),
        (worth, cost): (&[f64], &[f64]),
        budget: f64,
        level: &mut [u8],
    ) -> bool {
        let of = |item: usize| (score[item].max(LEAST_SCORE), least[item], most[item]);
        let value: f64 = level.iter().enumerate().map(|(item, l)| of(item).0 * worth[usize::from(*l)]).sum();
        self.choices.clear();
        self.choices.extend((0..level.len()).map(|item| {
            let (score, least, most) = of(item);
            Choice { item, score, least, most, bound: 0.0, floor: 0.0 }
        }));
        let price = price(&self.choices, (worth, cost), budget);
        let shared = Shared { worth, cost, price };
        let mut best = value;
        self.best.clear();
        self.best.resize(level.len(), NONE);
        // What matters most is decided last, so that it is what is tried first in other ways; where that takes too long, the other way round.
        self.choices.sort_by(|a, b| a.score.total_cmp(&b.score).then(a.item.cmp(&b.item)));
        for _ in 0..2 {
            self.sum_up(&shared);
            self.now.clear();
            self.now.resize(level.len(), NONE);
            self.nodes = 0;
            self.from(0, 0.0, budget, &shared, &mut best);
            if self.nodes < NODES {
                break;
            }
            self.choices.reverse();
        }
        // What was taken from the budget one by one could fit it by a rounding that the sum does not have.
        let used: f64 = self.best.iter().filter_map(|l| cost.get(usize::from(*l))).sum();
        if self.best.contains(&NONE) || !(used <= budget) {
            return false;
        }
        level.copy_from_slice(&self.best);
        true
    }

    /// Bounds and floors of the choices from each on.
    fn sum_up(&mut self, shared: &Shared<'_>) {
        let (mut bound, mut floor) = (0.0, 0.0);
        for choice in self.choices.iter_mut().rev() {
            let reduced = |l: u8| shared.reduced(choice.score, l);
            bound += (choice.least..=choice.most).map(reduced).fold(f64::NEG_INFINITY, f64::max);
            floor += shared.cost[usize::from(choice.least)];
            (choice.bound, choice.floor) = (bound, floor);
        }
    }

    /// Choices of the items from `at` on, with `left` bytes for them, behind others that bring `value`.
    fn from(&mut self, at: usize, value: f64, left: f64, shared: &Shared<'_>, best: &mut f64) {
        let Some(&choice) = self.choices.get(at) else {
            if value > *best && left >= 0.0 {
                *best = value;
                self.best.clone_from(&self.now);
            }
            return;
        };
        // Not even the price's bound would be better, or the lowest levels do not fit.
        if value + choice.bound + shared.price * left <= *best * (1.0 + CLOSE) || !(choice.floor <= left) {
            return;
        }
        // The heap's way first: by what is left of the value at the price.
        let reduced = |l: u8| shared.reduced(choice.score, l);
        let mut seen = 0u16;
        for _ in choice.least..=choice.most {
            let unseen = (choice.least..=choice.most).filter(|l| seen & 1 << (l - choice.least) == 0);
            let Some(l) = unseen.reduce(|a, b| if reduced(b) > reduced(a) { b } else { a }) else { break };
            seen |= 1 << (l - choice.least);
            if self.nodes >= NODES {
                return;
            }
            self.nodes += 1;
            self.now[choice.item] = l;
            let (worth, cost) = (shared.worth[usize::from(l)], shared.cost[usize::from(l)]);
            self.from(at + 1, value + choice.score * worth, left - cost, shared, best);
        }
    }
}
