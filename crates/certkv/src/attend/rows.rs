//! Single rows that are read from their originals between the sweeps (math.md 6.9): the heaviest tokens of blocks leave their blocks and stand behind
//! the last one, in blocks of exact rows. What is left of a block is bounded as before, by what is left of its weights.
use crate::Error;
use crate::append::put_uncoded;
use crate::attend::certified::HeadCall;
use crate::attend::terms;
use crate::group::Side;
use crate::work::HeadWork;
use certkv_control::Prices;
use certkv_control::policy::Certified;
use certkv_control::prices::{Blocks, Candidates, Choice, Reading};
use certkv_core::{ErrorSummary, OutOfMemory, RecordLayout, Refine, reserve_total};
use certkv_kernel::{Block, Scores};

/// How many rows may leave a block: past the last its whole side is the better read.
const STEPS: [usize; 9] = [1, 2, 3, 4, 6, 8, 12, 16, 24];
/// What prices start from, as a share of the originals of all keys: about where they end.
const START: f32 = 1.0 / 16.0;
/// How many times as high they may end before rows are missed that would pay.
const DEAREST: f32 = 4.0;

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
    /// Terms of each block's keys and values as shares of what may be left, `[side][query head][block]`.
    terms: [Vec<f32>; 2],
    /// Of the weights of one block, `[query head]`.
    squares: Vec<[f32; 64]>,
    prices: Prices,
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
    pub(crate) fn reserve(
        &mut self,
        layout: &RecordLayout,
        heads: usize,
        blocks: usize,
        share: f64,
    ) -> Result<(), OutOfMemory> {
        let more = Self::most_blocks(blocks, share);
        if more == 0 {
            return Ok(());
        }
        reserve_total(&mut self.left_out, blocks)?;
        reserve_total(&mut self.list, more * layout.tokens())?;
        reserve_total(&mut self.words, more * 2 * layout.count())?;
        reserve_total(&mut self.records, more * layout.bytes)?;
        self.terms.iter_mut().try_for_each(|terms| reserve_total(terms, heads * blocks))?;
        reserve_total(&mut self.squares, heads)?;
        self.prices.reserve(heads, blocks, STEPS.len())
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
    /// Lets rows leave their blocks where that is the cheapest way to the tolerance: those that this step's prices pick beside whole sides. Their
    /// keys are scored from the originals, and pass the canary. Nothing of codes is read again. Everything but the rows is decided afterwards.
    ///
    /// Not where blocks have levels, whose masses others go by, where originals may lie in a store, or where blocks are ranked. Costs a look at the kept weights of every block that
    /// matters, a few rounds of prices, and `4d` bytes a row, which are copied.
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
        self.take_rows(policy, w)?;
        if w.rows.is_empty() {
            return Ok(());
        }
        let (blocks, more) = (self.blocks, w.rows.blocks(&group.layout));
        w.masses.grow(blocks + more + 1);
        let tail = self.pages.tail(group, self.head, self.centre_norm());
        let HeadWork { kernel, scores, masses, resident, sets, rows, .. } = &mut *w;
        let view = self.view(resident, sets, rows);
        let (queries, range) = (self.queries, blocks..blocks + more);
        group.kernel.score(queries, &view, range, tail.as_ref(), kernel, scores, &mut masses.as_mut())?;
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

    /// Offers the heaviest tokens of a block, as long as one more gains more than `worth` of what is left, and `least`.
    fn offer(&self, mut ranked: Ranked<'_>, [worth, least]: [f32; 2], to: &mut Candidates) {
        let mut now = Taken { tokens: 0, left: ranked.shares.iter().sum(), rest: [1.0; 16] };
        for rows in 1..=STEPS[STEPS.len() - 1].min(self.group.layout.tokens() / 2) {
            let before = now.left;
            ranked.take(&mut now);
            let gain = before - now.left;
            if !(gain > now.left * worth && gain > least) {
                return;
            }
            if STEPS.contains(&rows) {
                to.push(now.tokens, &now.rest);
            }
        }
    }

    /// Terms of the sides of each block as shares of what may be left of them.
    fn row_terms(&self, policy: &Certified, w: &mut HeadWork) {
        let blocks = self.blocks;
        w.rows.terms.iter_mut().for_each(Vec::clear);
        for h in 0..w.certificates.len() {
            let scale = self.hinted(w, h);
            w.gains.clear();
            terms::gains(&scale, &w.masses, h, blocks, &mut w.gains);
            let HeadWork { gains, masses, memory, sets, rows, tolerances, .. } = &mut *w;
            // Keys that are read exactly are judged by what is known of their codes.
            for b in memory.keys.iter() {
                if let Some(mass) = masses.get(h, b) {
                    gains[b] = terms::key_gain(&scale, &mass, memory.delta[h][b].get(), memory.lambda[h][b].get());
                }
            }
            sets.skipped.iter().for_each(|b| gains[blocks + b] = 0.0);
            let inverse = (1.0 / (tolerances[h] * policy.guess_target).max(f64::MIN_POSITIVE)) as f32;
            for (terms, gains) in rows.terms.iter_mut().zip(gains.chunks_exact(blocks.max(1))) {
                terms.extend(gains.iter().map(|gain| gain * inverse));
            }
        }
    }

    /// Takes the rows that prices pick. Those of keys that are read exactly already wait for the next step, which reads those keys from their codes.
    fn take_rows(&self, policy: &Certified, w: &mut HeadWork) -> Result<(), Error> {
        self.row_terms(policy, w);
        let (l, blocks, heads) = (&self.group.layout, self.blocks, w.certificates.len());
        let HeadWork { rows, scores, sets, memory, .. } = &mut *w;
        let Rows { left_out, list, terms: [keys, values], squares, prices, .. } = rows;
        squares.clear();
        squares.resize(heads, [0.0; 64]);
        let (whole, refine) = (l.original_side_bytes(), l.format.refine);
        let reading = |bytes: usize, left: f32| Reading { bytes: bytes as f32, left };
        // Values are read once, by what comes of this; keys were read already.
        let ways = |residuals: usize, bits: u8, exact: usize| {
            let exact = reading(exact, 0.0);
            [reading(0, 1.0), if bits == 0 { exact } else { reading(residuals, Refine::finer(bits)) }, exact]
        };
        let key = ways(l.key_residuals.len(), refine.key, whole);
        let value = ways(l.value_residuals.len(), refine.value, whole.saturating_sub(l.value_bytes()));
        let row = 4 * l.dim;
        let problem = Blocks { heads, keys, values, key: &key, value: &value, row: row as f32 };
        // What a row is worth of what is left, where whole sides, or their residuals, are the better read from there on.
        let beyond = if refine.is_none() { 2 * whole } else { l.key_residuals.len() + l.value_residuals.len() };
        let worth = row as f32 / beyond as f32;
        let start = (blocks * whole) as f32 * START;
        // A row that would pay at many times the first prices only is none to look for.
        let least = row as f32 / (DEAREST * start);
        let choices = prices.settle(&problem, start, |block, to| {
            if !sets.keys.contains(block) || memory.keys.contains(block) {
                let of = |h: usize| if h < heads { keys[h * blocks + block] + values[h * blocks + block] } else { 0.0 };
                self.offer(self.rank(scores, core::array::from_fn(of), block, squares), [worth, least], to);
            }
        })?;
        let most = (blocks * l.tokens()) as f64 * policy.row_share;
        let mut room = (most as usize).min(policy.k_cap.saturating_mul(l.tokens()));
        left_out.resize(blocks, 0);
        // Keys that are read whole need no rows.
        for Choice { block, rows, .. } in choices.iter().copied().filter(|c| c.rows != 0 && key[c.key].left > 0.0) {
            let originals =
                [Side::Key, Side::Value].map(|side| self.pages.original(self.group, block, self.head, side));
            let count = rows.count_ones() as usize;
            if memory.keys.remove(block) || originals.contains(&None) || count > room {
                continue;
            }
            room -= count;
            left_out[block] = rows;
            list.extend((0..l.tokens()).filter(|t| rows >> t & 1 == 1).map(|t| (block, t)));
        }
        self.gather_rows(w);
        Ok(())
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
