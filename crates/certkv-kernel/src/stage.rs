//! Entries of a pass on their way to the masses: raw sums of up to 16 blocks, turned into bounds a tile at a time, when
//! sixteen lanes share each operation.
use crate::attend::{Kernel, Workspace};
use crate::masses::{Bounds, Entry, HeadTile, MassesMut, TILE};
use crate::query::{Digits, HEADS, Softmax};
use crate::slack::{Slack, digit_term, key_bounds, zeta};

/// Raw numbers of one head, a lane per block.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
pub(crate) struct RawHead {
    w: [f32; TILE],
    square: [f32; TILE],
    exponent: [f32; TILE],
    max: [f32; TILE],
    l1: [f32; TILE],
    size: [f32; TILE],
    residual: [f32; TILE],
}

/// [`Slack`] by lanes.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
pub(crate) struct RawBlocks([[f32; TILE]; 8]);

/// Up to sixteen blocks of one tile.
#[derive(Debug, Clone)]
pub(crate) struct Stage {
    blocks: RawBlocks,
    heads: Box<[RawHead; HEADS]>,
    /// Lanes `first..` that hold blocks.
    first: usize,
    count: usize,
}

/// What all lanes of a head share.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shared {
    /// `s ||q||`, rounded up.
    reach: f32,
    /// What a key centre adds to logits from codes, rounded up.
    shift: f32,
    /// `gamma` of the logits' chain.
    gamma: f32,
    /// Square root of a block's tokens.
    root: f32,
    /// Largest digit of a weight.
    levels: f32,
    /// `l1` and `size` are those of the query that codes meet, `size` not squared.
    token: bool,
}

/// Bounds of one tile of one head.
pub(crate) type SealFn = fn(&RawBlocks, &RawHead, Shared, &mut HeadTile);

impl Stage {
    pub(crate) fn new() -> Self {
        let zero = [0.0; TILE];
        let head = RawHead { w: zero, square: zero, exponent: zero, max: zero, l1: zero, size: zero, residual: zero };
        Self { blocks: RawBlocks([zero; 8]), heads: Box::new([head; HEADS]), first: 0, count: 0 }
    }

    /// No blocks.
    pub(crate) fn clear(&mut self) {
        self.count = 0;
    }

    /// One block's numbers; blocks come in order, and a tile is taken away by [`Kernel::seal`] when it is full.
    fn put(&mut self, block: usize, slack: &Slack, s: &Softmax, d: &Digits, heads: usize) {
        let i = block % TILE;
        if self.count == 0 {
            self.first = i;
        }
        self.count += 1;
        for (lanes, x) in self.blocks.0.iter_mut().zip(columns(slack)) {
            lanes[i] = x;
        }
        // The sums of an exact side are those of another block; nothing of them may reach a product with 0.
        let (keys, values) = (slack.key_floor != 0.0, slack.value_floor != 0.0);
        for h in 0..heads.min(HEADS) {
            let to = &mut self.heads[h];
            (to.w[i], to.square[i], to.exponent[i]) = (s.sum[h], s.square[h], s.exponent[h]);
            to.max[i] = if values { s.max[h] } else { 0.0 };
            (to.l1[i], to.size[i], to.residual[i]) =
                if keys { (d.l1[h], d.square[h], d.residual[h]) } else { (0.0, 0.0, 0.0) };
        }
    }
}

fn columns(s: &Slack) -> [f32; 8] {
    [s.magnitude, s.delta, s.residual, s.norm, s.lambda, s.digit, s.key_floor, s.value_floor]
}

/// The plain form of [`SealFn`]; compiled again with wide instructions by the instruction-set folders.
#[inline(always)]
pub(crate) fn seal_body(b: &RawBlocks, x: &RawHead, k: Shared, r: &mut HeadTile) {
    (r.w, r.exponent) = (x.w, x.exponent);
    for i in 0..TILE {
        let [magnitude, delta, residual, norm, lambda, digit, key_floor, value_floor] =
            core::array::from_fn(|f| b.0[f][i]);
        let s = Slack { magnitude, delta, residual, norm, lambda, digit, key_floor, value_floor };
        let size = if k.token { x.size[i] } else { x.size[i].sqrt() };
        (r.delta[i], r.lambda[i]) = key_bounds(&s, k.reach, x.l1[i], size, x.residual[i], k.root);
        // Codes scaled per token meet a query that may have been folded (4.12a), rows never do.
        let (reach, shift) = if k.token && key_floor != 0.0 { (x.l1[i], k.shift) } else { (k.reach, 0.0) };
        r.zeta[i] = zeta(reach, magnitude, shift, k.gamma);
        r.digit[i] = digit_term(&s, x.max[i], k.levels);
        r.p[i] = x.square[i].sqrt();
    }
}

impl Kernel {
    fn shared(&self, head: usize, work: &Workspace) -> Shared {
        Shared {
            reach: work.reach[head],
            shift: work.folded.shift[head],
            gamma: self.gamma,
            root: self.root,
            levels: self.ops.weight_levels,
            token: self.scales_after_products(),
        }
    }

    /// Keeps block `index`'s numbers of the last scoring for the masses.
    pub(crate) fn stage(&self, index: usize, entry: &Entry, work: &mut Workspace, masses: &mut MassesMut<'_>) {
        masses.put_block(index, entry);
        work.stage.put(index, &entry.slack, &work.softmax, &work.digits, self.shape.heads);
        masses.ahead_of(index, self.ops.own);
        if index % TILE == TILE - 1 {
            self.seal(index, work, masses);
        }
    }

    /// Bounds of the staged blocks, the last of which is `last`, into the masses.
    pub(crate) fn seal(&self, last: usize, work: &mut Workspace, masses: &mut MassesMut<'_>) {
        let lanes = work.stage.first..work.stage.first + core::mem::take(&mut work.stage.count);
        if lanes.is_empty() {
            return;
        }
        for (h, to) in masses.heads_of(last).iter_mut().enumerate() {
            let (blocks, raw, shared) = (&work.stage.blocks, &work.stage.heads[h], self.shared(h, work));
            if lanes.len() == TILE {
                (self.ops.seal)(blocks, raw, shared, to);
                continue;
            }
            let mut all = HeadTile::ZERO;
            (self.ops.seal)(blocks, raw, shared, &mut all);
            for i in lanes.clone() {
                (to.w[i], to.p[i], to.exponent[i], to.digit[i]) = (all.w[i], all.p[i], all.exponent[i], all.digit[i]);
                (to.delta[i], to.lambda[i], to.zeta[i]) = (all.delta[i], all.lambda[i], all.zeta[i]);
            }
        }
    }

    /// Bounds of the one block that was just scored and weighed; those that are staged wait on.
    pub(crate) fn bounds(&self, entry: &Entry, work: &mut Workspace) -> Bounds {
        let zero = [0.0; HEADS];
        let mut x = Bounds { w: zero, p: zero, exponent: zero, delta: zero, lambda: zero, zeta: zero, digit: zero };
        work.lone.clear();
        work.lone.put(0, &entry.slack, &work.softmax, &work.digits, self.shape.heads);
        let mut tile = HeadTile::ZERO;
        for h in 0..self.shape.heads {
            (self.ops.seal)(&work.lone.blocks, &work.lone.heads[h], self.shared(h, work), &mut tile);
            (x.w[h], x.p[h], x.exponent[h]) = (tile.w[0], tile.p[0], tile.exponent[0]);
            (x.delta[h], x.lambda[h], x.zeta[h], x.digit[h]) =
                (tile.delta[0], tile.lambda[0], tile.zeta[0], tile.digit[0]);
        }
        x
    }
}
