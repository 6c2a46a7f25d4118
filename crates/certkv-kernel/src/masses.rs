//! What the pass leaves behind for the certificate: two sums and a few bounds per block and head, in tiles of 16 blocks.
use crate::arch::generic::softmax::power;
use crate::error::KernelError;
use crate::query::{Cursor, HEADS};
use crate::slack::Slack;
use certkv_core::{OutOfMemory, reserve_total};
use core::ops::Range;

/// Blocks per tile; splits of a pass start at multiples of it.
pub const TILE: usize = 16;

/// Sixteen blocks of one head, one lane per block.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
pub struct HeadTile {
    /// `W_b`, the block's sum of weights relative to `2^exponent`, math.md (5.11).
    pub w: [f32; TILE],
    /// `P_b`, root of the sum of squares of the weights.
    pub p: [f32; TILE],
    /// Base-2 exponent that `w`, `p` and `digit` are relative to; integer-valued.
    pub exponent: [f32; TILE],
    /// `Delta_b` in nats, (4.2) or (4.5), with the query's digits (4.14) included; 0 where the keys are exact.
    pub delta: [f32; TILE],
    /// `Lambda_b` in nats, (4.8) or (4.9), digits included; 0 where the keys are exact.
    pub lambda: [f32; TILE],
    /// `zeta_b` in nats (4.12); also for exact keys (5.26).
    pub zeta: [f32; TILE],
    /// Bound of the norm lost by rounding `w sigma` to digits; 0 where the values are exact.
    pub digit: [f32; TILE],
}

impl HeadTile {
    pub(crate) const ZERO: HeadTile = HeadTile {
        w: [0.0; TILE],
        p: [0.0; TILE],
        exponent: [0.0; TILE],
        delta: [0.0; TILE],
        lambda: [0.0; TILE],
        zeta: [0.0; TILE],
        digit: [0.0; TILE],
    };
}

/// Sixteen blocks: what does not depend on the head.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
pub struct BlockTile {
    /// `R_b` (3.3).
    pub radius: [f32; TILE],
    /// `eta_b` (3.1); 0 where the values are exact, `R_b` where they were skipped.
    pub eta: [f32; TILE],
    /// `sop_b` (3.4); 0 where the values are exact, infinite where they were skipped.
    pub sop: [f32; TILE],
    /// `nu_b` for (5.27): largest norm of what is summed into the output.
    pub value_norm: [f32; TILE],
    /// Square root of the block's tokens; 0 for a lane without a block.
    pub root_tokens: [f32; TILE],
    /// Bit `i`: the keys of lane `i` were read exactly.
    pub exact_keys: u16,
    /// Bit `i`: the values of lane `i` were read exactly.
    pub exact_values: u16,
    /// Bit `i`: the values of lane `i` were not read, the centre stands for them.
    pub skipped_values: u16,
}

impl BlockTile {
    const ZERO: BlockTile = BlockTile {
        radius: [0.0; TILE],
        eta: [0.0; TILE],
        sop: [0.0; TILE],
        value_norm: [0.0; TILE],
        root_tokens: [0.0; TILE],
        exact_keys: 0,
        exact_values: 0,
        skipped_values: 0,
    };

    fn put(&mut self, i: usize, e: &Entry) {
        (self.radius[i], self.root_tokens[i]) = (e.radius, root(e.tokens));
        self.exact_keys = self.exact_keys & !(1 << i) | u16::from(e.exact_keys) << i;
        self.put_values(i, e);
    }

    fn put_values(&mut self, i: usize, e: &Entry) {
        (self.eta[i], self.sop[i], self.value_norm[i]) = (e.eta, e.sop, e.value_norm);
        self.exact_values = self.exact_values & !(1 << i) | u16::from(e.exact_values) << i;
        self.skipped_values = self.skipped_values & !(1 << i) | u16::from(e.skipped_values) << i;
    }
}

/// Masses of one KV head and its group of query heads.
#[derive(Debug, Clone, Default)]
pub struct Masses {
    heads: usize,
    blocks: Vec<BlockTile>,
    rows: Vec<HeadTile>,
}

/// A run of tiles of [`Masses`], for one split.
#[derive(Debug)]
pub struct MassesMut<'a> {
    pub(crate) heads: usize,
    pub(crate) first: usize,
    pub(crate) blocks: &'a mut [BlockTile],
    pub(crate) rows: &'a mut [HeadTile],
}

/// One (head, block) entry, for promotion rules and reports.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Mass {
    /// `W_b` relative to `2^exponent`.
    pub w: f32,
    /// `P_b` relative to `2^exponent`.
    pub p: f32,
    /// Base-2 exponent.
    pub exponent: f32,
    /// `Delta_b`, nats.
    pub delta: f32,
    /// `Lambda_b`, nats.
    pub lambda: f32,
    /// `zeta_b`, nats.
    pub zeta: f32,
    /// Digit term.
    pub digit: f32,
    /// `R_b`.
    pub radius: f32,
    /// `eta_b`, 0 if exact.
    pub eta: f32,
    /// `sop_b`, 0 if exact.
    pub sop: f32,
    /// Keys read exactly.
    pub exact_keys: bool,
    /// Values read exactly.
    pub exact_values: bool,
    /// Values not read.
    pub skipped_values: bool,
}

impl Masses {
    /// Room for `blocks` blocks (the open one counted) of `heads` heads.
    pub fn new(heads: usize, blocks: usize) -> Self {
        let tiles = blocks.div_ceil(TILE);
        Self { heads, blocks: vec![BlockTile::ZERO; tiles], rows: vec![HeadTile::ZERO; tiles * heads] }
    }

    /// Blocks that fit.
    pub fn capacity(&self) -> usize {
        self.blocks.len() * TILE
    }

    /// Query heads.
    pub fn heads(&self) -> usize {
        self.heads
    }

    /// Makes room for `blocks` blocks, up to a whole tile, and clears every entry: lanes that no pass writes count as absent. There are as
    /// many tiles as that, whatever was here before: certificates count them.
    pub fn reset(&mut self, blocks: usize) {
        let tiles = blocks.div_ceil(TILE);
        self.blocks.clear();
        self.rows.clear();
        self.blocks.resize(tiles, BlockTile::ZERO);
        self.rows.resize(tiles * self.heads, HeadTile::ZERO);
    }

    /// Makes room for `blocks` blocks, up to a whole tile, and keeps what is there.
    pub fn grow(&mut self, blocks: usize) {
        let tiles = blocks.div_ceil(TILE).max(self.blocks.len());
        self.blocks.resize(tiles, BlockTile::ZERO);
        self.rows.resize(tiles * self.heads, HeadTile::ZERO);
    }

    /// Asks for the memory of so many blocks of so many heads.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub fn reserve(&mut self, heads: usize, blocks: usize) -> Result<(), OutOfMemory> {
        let tiles = blocks.div_ceil(TILE);
        reserve_total(&mut self.blocks, tiles)?;
        reserve_total(&mut self.rows, tiles * heads)
    }

    /// As [`Masses::reset`], for `heads` heads.
    pub fn reshape(&mut self, heads: usize, blocks: usize) {
        self.heads = heads;
        self.reset(blocks);
    }

    /// All tiles, to be cut with [`MassesMut::split_at`].
    pub fn as_mut(&mut self) -> MassesMut<'_> {
        MassesMut { heads: self.heads, first: 0, blocks: &mut self.blocks, rows: &mut self.rows }
    }

    /// Block tiles in order.
    pub fn block_tiles(&self) -> &[BlockTile] {
        &self.blocks
    }

    /// Tile `tile` of `head`, if there is one.
    pub fn head_tile(&self, head: usize, tile: usize) -> Option<&HeadTile> {
        if head < self.heads { self.rows.get(tile * self.heads + head) } else { None }
    }

    /// All heads' tiles from `head`'s first on; its next is [`Masses::heads`] further.
    pub(crate) fn tiles_from(&self, head: usize) -> &[HeadTile] {
        self.rows.get(head..).unwrap_or(&[])
    }

    /// `W_b` and its exponent; 0 where there is none.
    pub(crate) fn weight(&self, head: usize, block: usize) -> (f32, f32) {
        self.head_tile(head, block / TILE).map_or((0.0, 0.0), |r| (r.w[block % TILE], r.exponent[block % TILE]))
    }

    /// What a sweep over the keys left of `block`'s value side, as an entry.
    pub(crate) fn value_side(&self, block: usize, exact: bool) -> Entry {
        let (b, i) = (&self.blocks[block / TILE], block % TILE);
        let (eta, sop) = if exact { (0.0, 0.0) } else { (b.eta[i], b.sop[i]) };
        let (radius, value_norm) = (b.radius[i], b.value_norm[i]);
        Entry { radius, eta, sop, value_norm, exact_values: exact, ..Entry::ZERO }
    }

    /// Entry of (`head`, `block`), if there is one.
    pub fn get(&self, head: usize, block: usize) -> Option<Mass> {
        let (tile, i) = (block / TILE, block % TILE);
        let (b, r) = (self.blocks.get(tile)?, self.head_tile(head, tile)?);
        Some(Mass {
            w: r.w[i],
            p: r.p[i],
            exponent: r.exponent[i],
            delta: r.delta[i],
            lambda: r.lambda[i],
            zeta: r.zeta[i],
            digit: r.digit[i],
            radius: b.radius[i],
            eta: b.eta[i],
            sop: b.sop[i],
            exact_keys: b.exact_keys >> i & 1 == 1,
            exact_values: b.exact_values >> i & 1 == 1,
            skipped_values: b.skipped_values >> i & 1 == 1,
        })
    }
}

/// What one block leaves in the masses, but for what depends on the head.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Entry {
    pub(crate) radius: f32,
    pub(crate) eta: f32,
    pub(crate) sop: f32,
    pub(crate) value_norm: f32,
    pub(crate) tokens: usize,
    pub(crate) exact_keys: bool,
    pub(crate) exact_values: bool,
    pub(crate) skipped_values: bool,
    pub(crate) slack: Slack,
}

impl Entry {
    pub(crate) const ZERO: Entry = Entry {
        radius: 0.0,
        eta: 0.0,
        sop: 0.0,
        value_norm: 0.0,
        tokens: 0,
        exact_keys: false,
        exact_values: false,
        skipped_values: false,
        slack: Slack::ZERO,
    };
}

/// Per-head numbers of one entry, as they stand in a [`HeadTile`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    pub(crate) w: [f32; HEADS],
    pub(crate) p: [f32; HEADS],
    pub(crate) exponent: [f32; HEADS],
    pub(crate) delta: [f32; HEADS],
    pub(crate) lambda: [f32; HEADS],
    pub(crate) zeta: [f32; HEADS],
    pub(crate) digit: [f32; HEADS],
}

impl<'a> MassesMut<'a> {
    /// Cuts before block `block` (absolute index, a multiple of [`TILE`] inside the range): the first part ends there.
    /// A `block` outside gives an empty part.
    pub fn split_at(self, block: usize) -> (MassesMut<'a>, MassesMut<'a>) {
        let tiles = (block.saturating_sub(self.first) / TILE).min(self.blocks.len());
        let (b0, b1) = self.blocks.split_at_mut(tiles);
        let (r0, r1) = self.rows.split_at_mut(tiles * self.heads);
        (
            MassesMut { heads: self.heads, first: self.first, blocks: b0, rows: r0 },
            MassesMut { heads: self.heads, first: self.first + tiles * TILE, blocks: b1, rows: r1 },
        )
    }

    /// Checks that blocks `range` of `heads` heads fit.
    pub(crate) fn check(&self, range: Range<usize>, heads: usize) -> Result<(), KernelError> {
        let capacity = self.first + self.blocks.len() * TILE;
        if self.heads != heads {
            return Err(KernelError::Length { argument: "masses.heads", expected: heads, given: self.heads });
        }
        if range.start < self.first || range.end > capacity {
            return Err(KernelError::MassRange { start: range.start, end: range.end, capacity });
        }
        Ok(())
    }

    /// `Delta_b`, `zeta_b` and the exponent of (`block`, `head`).
    pub(crate) fn logit_bound(&self, block: usize, head: usize) -> (f32, f32, f32) {
        let (tile, i) = ((block - self.first) / TILE, block % TILE);
        let r = &self.rows[tile * self.heads + head];
        (r.delta[i], r.zeta[i], r.exponent[i])
    }

    /// Replaces the value side of an entry and moves all of it to `exponent`, which the digit term is relative to. What
    /// underflows here is covered by the floors of the certificate.
    pub(crate) fn put_values(&mut self, block: usize, e: &Entry, exponent: &[f32; HEADS], digit: &[f32; HEADS]) {
        let (tile, i) = ((block - self.first) / TILE, block % TILE);
        self.blocks[tile].put_values(i, e);
        for (h, r) in self.rows[tile * self.heads..(tile + 1) * self.heads].iter_mut().enumerate() {
            let to = power(r.exponent[i] - exponent[h]);
            (r.w[i], r.p[i], r.exponent[i]) = (r.w[i] * to, r.p[i] * to, exponent[h]);
            r.digit[i] = digit[h];
        }
    }

    /// Replaces sum and root of the sum of squares of the weights of (`block`, `head`), at the exponent that they have.
    pub(crate) fn put_weights(&mut self, block: usize, head: usize, w: f32, p: f32) {
        let (tile, i) = ((block - self.first) / TILE, block % TILE);
        let r = &mut self.rows[tile * self.heads + head];
        (r.w[i], r.p[i]) = (w, p);
    }

    /// Writes one entry.
    pub(crate) fn put(&mut self, block: usize, e: &Entry, x: &Bounds) {
        let (tile, i) = ((block - self.first) / TILE, block % TILE);
        self.blocks[tile].put(i, e);
        for (h, r) in self.rows[tile * self.heads..(tile + 1) * self.heads].iter_mut().enumerate() {
            (r.w[i], r.p[i], r.exponent[i]) = (x.w[h], x.p[h], x.exponent[h]);
            (r.delta[i], r.lambda[i], r.zeta[i], r.digit[i]) = (x.delta[h], x.lambda[h], x.zeta[h], x.digit[h]);
        }
    }

    /// The block part of an entry; its heads follow with [`MassesMut::heads_of`].
    pub(crate) fn put_block(&mut self, block: usize, e: &Entry) {
        self.blocks[(block - self.first) / TILE].put(block % TILE, e);
    }

    /// The tiles of all heads that hold `block`.
    pub(crate) fn heads_of(&mut self, block: usize) -> &mut [HeadTile] {
        let tile = (block - self.first) / TILE;
        &mut self.rows[tile * self.heads..(tile + 1) * self.heads]
    }

    /// Asks (`own`) for a share of the lines that the tile of `block` will be written to once it is full, and late in a tile for
    /// those of the next one's block part: so many stores to lines that left the cache would hold up everything behind them.
    pub(crate) fn ahead_of(&mut self, block: usize, own: fn(&mut Cursor)) {
        let lane = block % TILE;
        let all = Cursor::over(self.heads_of(block));
        let share = (all.end - all.at).div_ceil(TILE * 64 / 2) * 64;
        let at = all.at + lane * share;
        own(&mut Cursor { at, end: all.end.min(at + share) });
        if let Some(next) = self.blocks.get((block - self.first) / TILE + 1)
            && lane == TILE / 2
        {
            own(&mut Cursor::of(next));
        }
    }
}

/// Square root of a token count, rounded up by a few units.
fn root(tokens: usize) -> f32 {
    (tokens as f32).sqrt() * (1.0 + 4.0 * f32::EPSILON)
}
