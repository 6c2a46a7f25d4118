//! What each level of each block counts for in the certificates of the last step: the block's own terms (5.9), with its bounds as they would
//! be at that level.
use super::probes::Probes;
use crate::group::Group;
use crate::sequence::{HeadMemory, SequenceState};
use certkv_bound::terms::{key_growth, key_terms, value_term};
use certkv_control::bound_budget::Terms;
use certkv_control::danger::danger;
use certkv_core::RecordLayout;

/// What a level counts for that cannot hold a block, and any other level of a block without codes: finite, so that sums are.
const NEVER: f64 = 1e30;
/// Values that nearly cancel leave an output of which any error is many times its norm: it counts as no shorter than this share of what it is
/// made of, `sum rho_b R_b`.
const CANCELLED: f64 = 0.1;

/// How what a level loses of a block is measured by the block's terms in the certificates of the last step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Measure {
    /// What the terms come to as errors become small, `min(rho Delta, p Lambda) D` beside the value term: math.md (9.17a). It tells levels
    /// apart whose bounds say no more than that an output may be anything.
    #[default]
    Linear,
    /// The terms themselves (5.9), with the exponential of `Delta`: math.md (9.17).
    Bound,
}

/// How the terms of a step are read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reading {
    pub(super) measure: Measure,
    /// Outputs count as no shorter than a share of what they are made of.
    pub(super) cancels: bool,
    /// With `h_b` of each block.
    pub(super) shrinks: bool,
    /// With the danger of each block.
    pub(super) gated: bool,
}

impl Reading {
    /// As the certificates say it.
    pub(super) const CERTIFICATE: Self = Self { measure: Measure::Bound, cancels: false, shrinks: true, gated: false };
    /// What levels lose, and no more.
    pub(super) const fn losses(measure: Measure) -> Self {
        Self { measure, cancels: true, shrinks: false, gated: false }
    }
    /// For a gate that asks for the danger alone.
    pub(crate) const DANGER: Self = Self { measure: Measure::Linear, cancels: true, shrinks: false, gated: true };
}

/// Terms of the query heads of one layer, `[query head][block][level of the ladder]`, as shares of the norm of the head's output.
#[derive(Debug, Clone, Default)]
pub(crate) struct HeadTerms {
    /// `g_b D_b` and the value term.
    pub(super) loss: Vec<f64>,
    /// `h_b`; 0 where nobody wants it.
    pub(super) shrink: Vec<f64>,
    /// What no bound of the head exceeds (5.14), `[query head]`.
    pub(super) cap: Vec<f64>,
    /// Danger of each block (9.23), the largest of the heads.
    pub(crate) danger: Vec<f64>,
}

impl HeadTerms {
    /// Of all heads together, `[block][level]`.
    pub(super) fn sum(&self, cells: usize) -> Vec<f64> {
        let mut sum = vec![0.0; cells];
        for head in self.loss.chunks_exact(cells.max(1)) {
            sum.iter_mut().zip(head).for_each(|(sum, loss)| more(sum, *loss));
        }
        sum
    }

    /// As a plan is made from them.
    pub(super) fn into_terms(self) -> Terms {
        Terms { heads: self.cap.len(), loss: self.loss, shrink: self.shrink, cap: self.cap }
    }
}

/// A sum of losses has one more.
fn more(sum: &mut f64, loss: f64) {
    *sum = (*sum + loss).min(NEVER);
}

/// What one query head's step said, by block.
pub(crate) struct Seen<'a> {
    pub(crate) mass: &'a [f32],
    /// `p_b`, `Delta_b`, `Lambda_b`, and what digits of weights lose. Where bounds are no numbers those of others stand in.
    pub(crate) terms: &'a [[f32; 4]],
    /// `||O' - c||`.
    pub(crate) radius: f64,
    /// `||O'||`.
    pub(crate) norm: f64,
    /// The query's norm as keys of each level meet it; empty where all meet it as it is.
    pub(crate) reach: &'a [f32],
}

impl Seen<'_> {
    fn reach(&self, level: usize) -> f64 {
        self.reach.get(level).map_or(1.0, |x| f64::from(*x))
    }
}

/// What the last step said of one layer whose blocks have `levels`. `None` if there was none, it was of other blocks, or its masses are
/// not finite.
pub(super) fn read(group: &Group, state: &SequenceState, levels: &[u8], reading: Reading) -> Option<HeadTerms> {
    let (probes, coded) = (probes(group, state)?, coded(group));
    let count = group.all_memories().len() * group.kernel.heads();
    Some(of_heads(seen(group, state, levels.len())?, count, probes, levels, reading, &coded))
}

/// What each level would lose, `[block][level]`, all query heads together: as [`read`] and [`HeadTerms::sum`] have it.
pub(super) fn read_losses(group: &Group, state: &SequenceState, levels: &[u8], measure: Measure) -> Option<Vec<f64>> {
    let (probes, coded) = (probes(group, state)?, coded(group));
    let mut sum = vec![0.0; levels.len() * probes.levels()];
    for (kv_head, seen) in seen(group, state, levels.len())? {
        let head = Head::new(&seen, (probes, kv_head), levels, Reading::losses(measure), &coded);
        let mut cells = sum.iter_mut();
        head.go_over(None, &mut |loss, _| cells.next().into_iter().for_each(|sum| more(sum, loss)));
    }
    Some(sum)
}

fn probes<'a>(group: &Group, state: &'a SequenceState) -> Option<&'a Probes> {
    Some(&state.control.get(group.strand(group.first))?.probes)
}

/// What the last step said of `blocks` blocks of one layer: each query head with its KV head.
fn seen<'a>(group: &Group, state: &'a SequenceState, blocks: usize) -> Option<impl Iterator<Item = (usize, Seen<'a>)>> {
    let heads = &state.heads[group.all_memories()];
    let of_group = group.kernel.heads();
    let whole = |head: &HeadMemory| {
        let sizes = [head.mass.len(), head.terms.blocks.len()];
        let told = head.terms.head(0, of_group).is_some();
        sizes == [blocks * of_group; 2] && told && head.mass.iter().all(|m| m.is_finite())
    };
    let all = blocks > 0 && heads.iter().all(whole);
    all.then(move || {
        heads.iter().enumerate().flat_map(move |(kv_head, memory)| {
            (0..of_group).filter_map(move |h| {
                let (own, reach) = memory.terms.head(h, of_group)?;
                let [radius, norm] = own.map(f64::from);
                let (mass, terms) = (&memory.mass[h * blocks..], &memory.terms.blocks[h * blocks..]);
                Some((kv_head, Seen { mass: &mass[..blocks], terms: &terms[..blocks], radius, norm, reach }))
            })
        })
    })
}

fn coded(group: &Group) -> Vec<bool> {
    coded_values((0..group.level_count()).rev().map(|level| group.layout_at(level)))
}

/// By level of the ladder, whose layouts these are: whether its values are codes, which weights multiply.
pub(crate) fn coded_values<'a>(ladder: impl Iterator<Item = &'a RecordLayout>) -> Vec<bool> {
    ladder.map(|layout| !layout.format.value.is_exact() && layout.format.value.bits() > 0).collect()
}

/// Terms of `count` query heads of one layer, each with its KV head, whose blocks have `levels`.
pub(crate) fn of_heads<'a>(
    heads: impl Iterator<Item = (usize, Seen<'a>)>,
    count: usize,
    probes: &Probes,
    levels: &[u8],
    reading: Reading,
    coded: &[bool],
) -> HeadTerms {
    let mut found = HeadTerms::default();
    let cells = count * levels.len() * probes.levels();
    found.loss.reserve_exact(cells);
    found.shrink.reserve_exact(cells);
    for (kv_head, seen) in heads {
        add(&mut found, &seen, (probes, kv_head), levels, reading, coded);
    }
    found
}

/// Forgets what the last step said of one layer: somebody has been told.
pub(super) fn forget(group: &Group, state: &mut SequenceState) {
    for head in &mut state.heads[group.all_memories()] {
        head.mass.clear();
        head.terms.clear();
    }
}

/// Adds the terms of one query head.
fn add(
    found: &mut HeadTerms,
    seen: &Seen<'_>,
    probes: (&Probes, usize),
    levels: &[u8],
    reading: Reading,
    coded: &[bool],
) {
    let head = Head::new(seen, probes, levels, reading, coded);
    found.cap.push(head.cap());
    let HeadTerms { loss: losses, shrink: shrinks, danger: dangers, .. } = found;
    let mut put = |loss, shrink| {
        losses.push(loss);
        shrinks.push(shrink);
    };
    if !reading.gated {
        return head.go_over(None, &mut put);
    }
    let mut bounds = Vec::with_capacity(levels.len());
    head.go_over(Some(&mut bounds), &mut put);
    let logs: Vec<f64> = seen.mass.iter().map(|mass| f64::from(*mass).ln()).collect();
    let mut of_head = Vec::new();
    // A head that attends to no block has no order of them.
    if danger(&logs, &bounds, &mut of_head).is_ok() {
        dangers.resize(of_head.len(), 0.0);
        dangers.iter_mut().zip(of_head).for_each(|(most, now)| *most = most.max(now));
    }
}

/// One query head whose terms are read.
struct Head<'a> {
    seen: &'a Seen<'a>,
    probes: &'a Probes,
    kv_head: usize,
    levels: &'a [u8],
    reading: Reading,
    coded: &'a [bool],
    /// Bounds of keys over `eps`, of blocks that say nothing of theirs.
    share: [f64; 2],
    norm: f64,
}

impl<'a> Head<'a> {
    fn new(
        seen: &'a Seen<'a>,
        (probes, kv_head): (&'a Probes, usize),
        levels: &'a [u8],
        reading: Reading,
        coded: &'a [bool],
    ) -> Self {
        let mut head = Self { seen, probes, kv_head, levels, reading, coded, share: [0.0; 2], norm: seen.norm };
        let mut sums = [0.0f64; 3];
        for (block, [_, delta, lambda, _]) in seen.terms.iter().enumerate() {
            let eps = head.grown(block);
            if eps > 0.0 && delta.is_finite() && lambda.is_finite() {
                sums = [sums[0] + eps, sums[1] + f64::from(*delta), sums[2] + f64::from(*lambda)];
            }
        }
        head.share = [sums[1], sums[2]].map(|sum| if sums[0] > 0.0 { sum / sums[0] } else { 0.0 });
        if reading.cancels {
            let radius = |block: usize| probes.get(block, kv_head).radius();
            let made_of = seen.mass.iter().enumerate().map(|(block, mass)| f64::from(*mass) * radius(block));
            head.norm = seen.norm.max(CANCELLED * made_of.filter(|x| x.is_finite()).sum::<f64>());
        }
        head
    }

    fn of_now(&self, block: usize) -> f64 {
        self.probes.get(block, self.kv_head).errors(self.levels[block].into())[0]
    }

    /// Bounds of keys grow with `eps` times the query's norm (4.5), both in the metric of the level: what they are to it, of those that are known, serves for the
    /// others.
    fn grown(&self, block: usize) -> f64 {
        self.of_now(block) * self.seen.reach(self.levels[block].into())
    }

    /// What no bound of the head exceeds (5.14).
    fn cap(&self) -> f64 {
        let radii = (0..self.levels.len()).map(|block| self.probes.get(block, self.kv_head).radius());
        let cap = (radii.filter(|x| x.is_finite()).fold(0.0, f64::max) + self.seen.radius) / self.norm;
        if self.norm > 0.0 { cap.min(NEVER) } else { 0.0 }
    }

    /// Puts loss and `h_b` of each level of each block, and what of its logits the codes that it has leave open.
    fn go_over(&self, mut bounds: Option<&mut Vec<f64>>, put: &mut impl FnMut(f64, f64)) {
        let Self { seen, levels, reading, norm, .. } = *self;
        for (block, (mass, [root, delta, lambda, digit])) in seen.mass.iter().zip(seen.terms).enumerate() {
            let (probe, now, from) = (self.probes.get(block, self.kv_head), self.of_now(block), self.grown(block));
            let known = from > 0.0 && delta.is_finite() && lambda.is_finite();
            let per_eps = if known { [delta, lambda].map(|x| f64::from(*x) / from) } else { self.share };
            if let Some(bounds) = &mut bounds {
                // Without codes it is read exactly.
                bounds.push(if now.is_nan() { 0.0 } else { per_eps[0] * from });
            }
            let (mass, root, distance) = (f64::from(*mass), f64::from(*root), probe.radius() + seen.radius);
            for (level, errors) in probe.levels().enumerate() {
                let [eps, eta, sop] = errors;
                let (delta, lambda) = (per_eps[0] * eps * seen.reach(level), per_eps[1] * eps * seen.reach(level));
                let (g, h) = match reading.measure {
                    Measure::Bound if reading.shrinks => key_terms(mass, root, delta, lambda),
                    Measure::Bound => (key_growth(mass, root, delta, lambda), 0.0),
                    Measure::Linear => ((mass * delta).min(root * lambda), 0.0),
                };
                // A digit's step is that of the largest scale, and codes are as many as the scale is small: what digits lose (5.29) is the same at every level of values
                // that has codes.
                let digits = match reading.measure {
                    Measure::Bound if self.coded.get(level) == Some(&true) => f64::from(*digit),
                    _ => 0.0,
                };
                // No block moves an output by more than its distance (5.14).
                let term = (g * distance).min(distance) + value_term(mass, root, eta, sop) + digits;
                let stays = now.is_nan() && level == usize::from(levels[block]);
                let (loss, shrink) = match () {
                    () if stays => (0.0, 0.0),
                    () if eps.is_nan() => (NEVER, 1.0),
                    // A head without an output has no relative error.
                    () if !(norm > 0.0) => (0.0, 0.0),
                    () => ((term / norm).min(NEVER), h),
                };
                // `min` turns what is no number into the largest.
                put(loss, if h.is_nan() { 1.0 } else { shrink });
            }
        }
    }
}
