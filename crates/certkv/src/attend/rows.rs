//! Single rows that are read from their originals between the sweeps (math.md 6.9): the heaviest tokens of blocks leave their blocks and stand behind
//! the last one, in blocks of exact rows. What is left of a block is bounded as before, by what is left of its weights.
use crate::Error;
use crate::append::put_uncoded;
use crate::attend::certified::HeadCall;
use crate::attend::items;
use crate::attend::sets::Item;
use crate::attend::terms;
use crate::group::Side;
use crate::work::HeadWork;
use certkv_control::Gains;
use certkv_control::policy::Certified;
use certkv_core::{ErrorSummary, RecordLayout, reserve_total};
use certkv_kernel::{Block, Scores};

/// Most rows of a block that leave it: past that its whole side is the better read.
const MOST: usize = 24;

/// Rows of one KV head that left their blocks.
#[derive(Debug, Default)]
pub(crate) struct Rows {
    /// By block, bit by bit; empty where no row left.
    left_out: Vec<u64>,
    /// Block and token of each.
    list: Vec<(usize, usize)>,
    /// Originals, `[block of rows][side][token][channel]`.
    words: Vec<u16>,
    /// Records without codes, one for each block of rows.
    records: Vec<u8>,
    /// Terms of each block as shares of the tolerance, `[query head][block]`.
    shares: Vec<f32>,
    /// Of the weights of one block, `[query head]`.
    squares: Vec<[f32; 64]>,
    /// Of each block the rows that gain most for a byte, and those that gain as much as whole sides.
    heaviest: Vec<[u64; 2]>,
}

/// Tokens of one block: what taking some of them out leaves of its terms.
struct Ranked<'a> {
    /// Of the sum of squares of each head's weights the part that each token has, `[head][token]`: of a root of a sum of squares, which terms go
    /// by (5.9), each has its square.
    squares: &'a [[f32; 64]],
    /// The same of all heads, by what each head's terms are of its tolerance.
    worth: [f32; 64],
    /// Terms of each head as shares of its tolerance.
    shares: [f32; 16],
}

/// Tokens gone, and what is left then.
#[derive(Clone, Copy)]
struct Taken {
    /// Bit by bit.
    tokens: u64,
    /// Of the terms of all heads, as shares of the tolerances.
    left: f32,
    /// Of each head's terms, of 1.
    rest: [f32; 16],
}

impl Ranked<'_> {
    /// Takes the heaviest token that is left.
    fn take(&mut self, taken: &mut Taken) {
        let larger = |a: f32, b: f32| if b > a { b } else { a };
        let mut lanes = [f32::NEG_INFINITY; 16];
        for line in self.worth.chunks_exact(16) {
            lanes.iter_mut().zip(line).for_each(|(lane, x)| *lane = larger(*lane, *x));
        }
        let most = lanes.iter().fold(f32::NEG_INFINITY, |a, b| larger(a, *b));
        let at = self.worth.iter().position(|x| *x == most).unwrap_or(0);
        self.worth[at] = f32::NEG_INFINITY;
        taken.tokens |= 1 << at;
        taken.left = 0.0;
        for ((squares, rest), share) in self.squares.iter().zip(&mut taken.rest).zip(&self.shares) {
            // Squares, and what is left of one: roots of what is left of all.
            *rest = (*rest * *rest - squares[at]).max(0.0).sqrt();
            taken.left += share * *rest;
        }
    }
}

impl Rows {
    pub(crate) fn clear(&mut self) {
        self.left_out.clear();
        self.list.clear();
        self.words.clear();
        self.records.clear();
    }

    /// Asks for the memory of whatever can leave so many blocks of so many heads.
    pub(crate) fn reserve(&mut self, layout: &RecordLayout, heads: usize, blocks: usize, share: f64) {
        let more = Self::most_blocks(blocks, share);
        if more == 0 {
            return;
        }
        reserve_total(&mut self.left_out, blocks);
        reserve_total(&mut self.list, more * layout.tokens());
        reserve_total(&mut self.words, more * 2 * layout.count());
        reserve_total(&mut self.records, more * layout.bytes);
        reserve_total(&mut self.shares, heads * blocks);
        reserve_total(&mut self.heaviest, blocks);
        reserve_total(&mut self.squares, heads);
    }

    /// Most blocks of rows behind so many blocks, of which that share of tokens may leave.
    pub(crate) fn most_blocks(blocks: usize, share: f64) -> usize {
        (blocks as f64 * share).ceil() as usize
    }

    pub(crate) fn len(&self) -> usize {
        self.list.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Blocks of rows, which stand behind all others.
    pub(crate) fn blocks(&self, layout: &RecordLayout) -> usize {
        self.list.len().div_ceil(layout.tokens())
    }

    /// Rows that left `block`.
    pub(crate) fn left_out(&self, block: usize) -> u64 {
        self.left_out.get(block).copied().unwrap_or(0)
    }

    /// Block of rows `index`: of its last one the rows that there are.
    pub(crate) fn block(&self, layout: &RecordLayout, index: usize) -> Block<'_> {
        let (size, count) = (layout.tokens(), layout.count());
        let side = |side: usize| self.words.get((2 * index + side) * count..(2 * index + side + 1) * count);
        let there = self.list.len().saturating_sub(index * size).min(size);
        Block {
            record: self.records.get(index * layout.bytes..(index + 1) * layout.bytes).unwrap_or(&[]),
            keys: side(0),
            values: side(1),
            left_out: if there < 64 { u64::MAX << there } else { 0 },
            ..Block::default()
        }
    }
}

impl HeadCall<'_> {
    /// Lets rows leave their blocks where that is the cheapest way to the tolerance: those that a cover of this step's terms picks beside whole sides. Their
    /// keys are scored from the originals, and pass the canary. Nothing of codes is read again. Everything but the rows is decided afterwards.
    ///
    /// Not where blocks have levels, whose masses others go by, where originals may lie in a store, or where blocks are ranked. Costs a look at the kept weights of every block that
    /// matters, a cover, and `4d` bytes a row, which are copied.
    pub(super) fn move_rows(&self, policy: &Certified, w: &mut HeadWork) -> Result<(), Error> {
        let group = self.group;
        if policy.rank.is_some()
            || !group.lower.is_empty()
            || group.residency.is_some()
            || policy.k_cap == 0
            || !(policy.row_share > 0.0)
        {
            return Ok(());
        }
        self.skip(policy, w);
        self.pick_rows(policy, w)?;
        self.take_rows(policy, w);
        if w.rows.is_empty() {
            return Ok(());
        }
        let (blocks, more) = (self.blocks, w.rows.blocks(&group.layout));
        w.masses.grow(blocks + more + 1);
        let tail = self.pages.tail(group, self.head, self.centre_norm());
        let HeadWork { kernel, scores, masses, resident, sets, rows, .. } = &mut *w;
        let view = self.view(resident, sets, rows);
        let (queries, range) = (self.queries, blocks..blocks + more);
        group.kernel.score(queries, &view, range, tail.as_ref(), kernel, scores, &mut masses.as_mut(), None)?;
        let size = group.layout.tokens();
        for (place, from) in w.rows.list.iter().enumerate() {
            let excess = group.kernel.row_excess(&w.scores, &w.masses, *from, (blocks + place / size, place % size));
            // `!(x <= 0)`: NaN is a failed canary.
            if !(excess <= 0.0) {
                w.corrupt = w.corrupt.or(Some(from.0));
            }
        }
        for (block, rows) in w.rows.left_out.iter().enumerate().filter(|(_, rows)| **rows != 0) {
            group.kernel.leave_rows_out(block, *rows, &mut w.scores, &mut w.masses.as_mut())?;
        }
        group.kernel.total(&w.scores, &w.masses, &mut w.partial)?;
        Ok(())
    }

    /// The tokens of `block`, none of them taken. `squares` is a buffer.
    fn rank<'a>(&self, scores: &Scores, shares: [f32; 16], block: usize, squares: &'a mut [[f32; 64]]) -> Ranked<'a> {
        let mut worth = [0.0; 64];
        for (h, (squares, share)) in squares.iter_mut().zip(shares).enumerate() {
            let mut sums = [0.0f32; 16];
            for (to, line) in squares.chunks_exact_mut(16).zip(self.group.kernel.row_weights(scores, h, block)) {
                for i in 0..16 {
                    to[i] = line[i] * line[i];
                    sums[i] += to[i];
                }
            }
            let all: f32 = sums.iter().sum();
            let inverse = if all > 0.0 { 1.0 / all } else { 0.0 };
            for (square, worth) in squares.iter_mut().zip(&mut worth) {
                *square *= inverse;
                *worth += share * *square;
            }
        }
        Ranked { squares, worth, shares }
    }

    /// The heaviest tokens of `block`: as many as gain most for a byte, and as many as each gain more than `worth` of what is left.
    fn heaviest(&self, mut ranked: Ranked<'_>, worth: f32) -> [Taken; 2] {
        let all = ranked.shares.iter().sum();
        let none = Taken { tokens: 0, left: all, rest: [1.0; 16] };
        let (mut now, mut steep, mut best) = (none, none, 0.0);
        for rows in 1..=MOST.min(self.group.layout.tokens() / 2) {
            let before = now;
            ranked.take(&mut now);
            if !(before.left - now.left > now.left * worth) {
                return [steep, before];
            }
            let gain = (all - now.left) / rows as f32;
            if gain > best {
                (best, steep) = (gain, now);
            }
        }
        [steep, now]
    }

    /// What the sides of each block gain, [`Items`](crate::attend::sets::Items), and behind them its rows: those that gain most for a byte, for all blocks, then what
    /// more of them would gain. Sides gain what rows leave. False if codes are within every tolerance.
    fn row_gains(&self, policy: &Certified, w: &mut HeadWork, stride: usize) -> bool {
        let (blocks, heads, items) = (self.blocks, w.certificates.len(), items(self.group, self.blocks));
        w.gains.clear();
        w.rows.shares.clear();
        for h in 0..heads {
            let (scale, start) = (self.hinted(w, h), w.gains.len());
            terms::gains(&scale, &w.masses, h, blocks, &mut w.gains);
            // Keys that are read exactly are judged by what is known of their codes.
            let HeadWork { gains, masses, memory, sets, .. } = &mut *w;
            for b in memory.keys.iter() {
                if let Some(mass) = masses.get(h, b) {
                    gains[start + b] = terms::key_gain(&scale, &mass, memory.delta[h][b], memory.lambda[h][b]);
                }
            }
            sets.skipped.iter().for_each(|b| gains[start + blocks + b] = 0.0);
            let inverse = (1.0 / w.tolerances[h].max(f64::MIN_POSITIVE)) as f32;
            w.rows.shares.extend((start..start + blocks).map(|i| (w.gains[i] + w.gains[i + blocks]) * inverse));
            if items.fine {
                self.split(&scale, w, h, start, true);
            }
            w.gains.resize(start + stride, 0.0);
        }
        // Blocks whose terms come to less than an even share of a tolerance lose no rows.
        let least = 1.0 / blocks.max(1) as f32;
        // What a row is worth of what is left, where whole sides, or their residuals, are the better read from there on.
        let l = &self.group.layout;
        let whole =
            if items.fine { l.key_residuals.len() + l.value_residuals.len() } else { 2 * l.original_side_bytes() };
        let worth = (4 * l.dim) as f32 / whole as f32;
        let within = |shares: &[f32]| shares.iter().sum::<f32>() <= policy.guess_target as f32;
        if w.rows.shares.chunks_exact(blocks.max(1)).all(within) {
            return false;
        }
        w.rows.heaviest.clear();
        w.rows.squares.clear();
        w.rows.squares.resize(heads, [0.0; 64]);
        for block in 0..blocks {
            let mut shares = [0.0; 16];
            shares.iter_mut().zip(w.rows.shares.chunks_exact(blocks)).for_each(|(share, of)| *share = of[block]);
            let all: f32 = shares.iter().sum();
            let coded = !w.sets.keys.contains(block) || w.memory.keys.contains(block);
            // What is not finite has to be read exactly anyway.
            let mut taken = [Taken { tokens: 0, left: all, rest: [1.0; 16] }; 2];
            if coded && all >= least && all.is_finite() {
                taken = self.heaviest(self.rank(&w.scores, shares, block, &mut w.rows.squares), worth);
            }
            let [first, more] = taken.map(|taken| taken.tokens);
            w.rows.heaviest.push([first, more]);
            for h in 0..heads {
                let of_head = &mut w.gains[h * stride..(h + 1) * stride];
                let [to, beyond] = taken.map(|taken| taken.rest[h]);
                let mut gains = [0.0; 2];
                for side in of_head[..items.len()].iter_mut().skip(block).step_by(blocks) {
                    gains[0] += *side * (1.0 - to);
                    gains[1] += *side * (to - beyond).max(0.0);
                    *side *= beyond;
                }
                of_head[items.len() + block] = if first != 0 { gains[0] } else { 0.0 };
                of_head[items.len() + blocks + block] = if more != first { gains[1] } else { 0.0 };
            }
        }
        true
    }

    /// A cover by rows of blocks and whole sides; `picks` are the blocks whose rows it takes, all of them where `next` has them twice.
    fn pick_rows(&self, policy: &Certified, w: &mut HeadWork) -> Result<(), Error> {
        let (blocks, heads, items) = (self.blocks, w.certificates.len(), items(self.group, self.blocks));
        let stride = items.len() + 2 * blocks;
        w.picks.clear();
        if !self.row_gains(policy, w, stride) {
            return Ok(());
        }
        self.decision_costs(w);
        let row_bytes = 4 * self.group.layout.dim;
        let bytes = |rows: u64| (row_bytes * rows.count_ones().max(1) as usize) as f64;
        w.cost.extend(w.rows.heaviest.iter().map(|[first, _]| bytes(*first)));
        w.cost.extend(w.rows.heaviest.iter().map(|[first, more]| bytes(more & !first)));
        let allowed: [f64; 16] = core::array::from_fn(|h| w.tolerances.get(h).map_or(0.0, |t| t * policy.guess_target));
        let gains = Gains::new(&w.gains, heads, stride)?;
        let picks = w.cover.leave_at_most(gains, &w.cost, &allowed[..heads], true)?;
        // Keys that are to be read whole need no rows.
        let whole = |block| items.number(Item { side: Side::Key, block, exact: true });
        w.next.resize(0);
        w.next.resize(stride);
        picks.iter().for_each(|i| {
            w.next.insert(*i as usize);
        });
        let rows = |b: usize| w.next.contains(items.len() + b) || w.next.contains(items.len() + blocks + b);
        w.picks.extend((0..blocks).filter(|b| rows(*b) && !w.next.contains(whole(*b))).map(|b| b as u32));
        Ok(())
    }

    /// Takes the picked rows. Those of keys that are read exactly already wait for the next step, which reads those keys from their codes.
    fn take_rows(&self, policy: &Certified, w: &mut HeadWork) {
        let (l, items) = (&self.group.layout, items(self.group, self.blocks));
        let most = (self.blocks * l.tokens()) as f64 * policy.row_share;
        let mut room = (most as usize).min(policy.k_cap.saturating_mul(l.tokens()));
        w.rows.left_out.resize(self.blocks, 0);
        for pick in 0..w.picks.len() {
            let block = w.picks[pick] as usize;
            if w.memory.keys.contains(block) {
                w.memory.keys.remove(block);
                continue;
            }
            if [Side::Key, Side::Value]
                .iter()
                .any(|side| self.pages.original(self.group, block, self.head, *side).is_none())
            {
                continue;
            }
            let all = w.next.contains(items.len() + self.blocks + block);
            let mut rows = w.rows.heaviest[block][usize::from(all)];
            let count = rows.count_ones() as usize;
            if count > room {
                continue;
            }
            room -= count;
            w.rows.left_out[block] = rows;
            while rows != 0 {
                w.rows.list.push((block, rows.trailing_zeros() as usize));
                rows &= rows - 1;
            }
        }
        w.picks.clear();
        self.gather_rows(w);
    }

    /// Copies the originals of the rows, and describes the blocks that they make.
    fn gather_rows(&self, w: &mut HeadWork) {
        let (l, rows) = (&self.group.layout, &mut w.rows);
        let (size, dim) = (l.tokens(), l.dim);
        rows.records.resize(rows.list.len().div_ceil(size) * l.bytes, 0);
        for (chunk, record) in rows.list.chunks(size).zip(rows.records.chunks_exact_mut(l.bytes)) {
            for side in [Side::Key, Side::Value] {
                // What is left of the last block are copies of its first row, which weigh nothing.
                for (block, row) in chunk.iter().chain(core::iter::repeat_n(&chunk[0], size - chunk.len())) {
                    let words = self.pages.original(self.group, *block, self.head, side).unwrap_or(&[]);
                    rows.words.extend_from_slice(&words[row * dim..(row + 1) * dim]);
                }
            }
            // What no row of the blocks that they come from exceeds.
            let mut summary = ErrorSummary::default();
            for (block, _) in chunk.chunk_by(|a, b| a.0 == b.0).map(|rows| rows[0]) {
                let of_block = self.pages.record(self.group, block, self.head).get(l.summary.clone()).unwrap_or(&[]);
                let of_block = ErrorSummary::from_bytes(of_block);
                let larger = |a: f32, b: f32| if b <= a { a } else { b };
                summary.key_norm = larger(summary.key_norm, of_block.key_norm);
                summary.value_norm = larger(summary.value_norm, of_block.value_norm);
                summary.radius = larger(summary.radius, of_block.radius);
            }
            put_uncoded(&summary, &mut record[l.summary.clone()]);
        }
    }
}
