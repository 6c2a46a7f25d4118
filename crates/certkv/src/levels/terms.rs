//! What each level of each block counts for in the certificates of the last step: the block's own terms (5.9), with its bounds as they would
//! be at that level.
use super::probes::Probes;
use crate::group::Group;
use crate::sequence::{HeadMemory, SequenceState};
use certkv_bound::terms::{key_terms, value_term};
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
    /// With the danger of each block.
    pub(super) gated: bool,
}

impl Reading {
    /// As the certificates say it.
    pub(super) const CERTIFICATE: Self = Self { measure: Measure::Bound, cancels: false, gated: false };
    /// For a gate that asks for the danger alone.
    pub(crate) const DANGER: Self = Self { measure: Measure::Linear, cancels: true, gated: true };
}

/// Terms of the query heads of one layer, `[query head][block][level of the ladder]`, as shares of the norm of the head's output.
#[derive(Debug, Clone, Default)]
pub(crate) struct HeadTerms {
    /// `g_b D_b` and the value term.
    pub(super) loss: Vec<f64>,
    /// `h_b`.
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
            sum.iter_mut().zip(head).for_each(|(sum, loss)| *sum = (*sum + loss).min(NEVER));
        }
        sum
    }

    /// As a plan is made from them.
    pub(super) fn into_terms(self) -> Terms {
        Terms { heads: self.cap.len(), loss: self.loss, shrink: self.shrink, cap: self.cap }
    }
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
    let blocks = levels.len();
    let heads = &state.heads[group.all_memories()];
    let of_group = group.kernel.heads();
    let whole = |head: &HeadMemory| {
        let sizes = [head.mass.len(), head.terms.blocks.len()];
        let told = head.terms.head(0, of_group).is_some();
        sizes == [blocks * of_group; 2] && told && head.mass.iter().all(|m| m.is_finite())
    };
    let probes = &state.control.get(group.strand(group.first))?.probes;
    let coded = coded_values((0..group.level_count()).rev().map(|level| group.layout_at(level)));
    let all = blocks > 0 && heads.iter().all(whole);
    all.then(|| {
        let seen = heads.iter().enumerate().flat_map(|(kv_head, memory)| {
            (0..of_group).filter_map(move |h| {
                let (own, reach) = memory.terms.head(h, of_group)?;
                let [radius, norm] = own.map(f64::from);
                let (mass, terms) = (&memory.mass[h * blocks..], &memory.terms.blocks[h * blocks..]);
                Some((kv_head, Seen { mass: &mass[..blocks], terms: &terms[..blocks], radius, norm, reach }))
            })
        });
        of_heads(seen, heads.len() * of_group, probes, levels, reading, &coded)
    })
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
    (probes, kv_head): (&Probes, usize),
    levels: &[u8],
    reading: Reading,
    coded: &[bool],
) {
    let of_now = |block: usize| probes.get(block, kv_head).errors(levels[block].into())[0];
    // Bounds of keys grow with `eps` times the query's norm (4.5), both in the metric of the level: what they are to it, of those that are known, serves for the
    // others.
    let grown = |block: usize| of_now(block) * seen.reach(levels[block].into());
    let mut sums = [0.0f64; 3];
    for (block, [_, delta, lambda, _]) in seen.terms.iter().enumerate() {
        let eps = grown(block);
        if eps > 0.0 && delta.is_finite() && lambda.is_finite() {
            sums = [sums[0] + eps, sums[1] + f64::from(*delta), sums[2] + f64::from(*lambda)];
        }
    }
    let share = |sum: f64| if sums[0] > 0.0 { sum / sums[0] } else { 0.0 };
    let share_of = [share(sums[1]), share(sums[2])];
    let made_of =
        seen.mass.iter().enumerate().map(|(block, mass)| f64::from(*mass) * probes.get(block, kv_head).radius());
    let share = if reading.cancels { CANCELLED } else { 0.0 };
    let norm = seen.norm.max(share * made_of.filter(|x| x.is_finite()).sum::<f64>());
    let furthest = (0..levels.len()).map(|block| probes.get(block, kv_head).radius()).filter(|x| x.is_finite());
    let cap = (furthest.fold(0.0, f64::max) + seen.radius) / norm;
    found.cap.push(if norm > 0.0 { cap.min(NEVER) } else { 0.0 });
    let mut bounds = Vec::with_capacity(if reading.gated { levels.len() } else { 0 });
    for (block, (mass, [root, delta, lambda, digit])) in seen.mass.iter().zip(seen.terms).enumerate() {
        let (probe, now, from) = (probes.get(block, kv_head), of_now(block), grown(block));
        let known = from > 0.0 && delta.is_finite() && lambda.is_finite();
        let per_eps = if known { [delta, lambda].map(|x| f64::from(*x) / from) } else { share_of };
        if reading.gated {
            // Without codes it is read exactly.
            bounds.push(if now.is_nan() { 0.0 } else { per_eps[0] * from });
        }
        let (mass, root, distance) = (f64::from(*mass), f64::from(*root), probe.radius() + seen.radius);
        for (level, errors) in probe.levels().enumerate() {
            let [eps, eta, sop] = errors;
            let (delta, lambda) = (per_eps[0] * eps * seen.reach(level), per_eps[1] * eps * seen.reach(level));
            // A digit's step is that of the largest scale, and codes are as many as the scale is small: what digits lose (5.29) is the same at every level of values
            // that has codes.
            let (g, h, digits) = match reading.measure {
                Measure::Bound => {
                    let (g, h) = key_terms(mass, root, delta, lambda);
                    (g, h, if coded.get(level) == Some(&true) { f64::from(*digit) } else { 0.0 })
                }
                Measure::Linear => ((mass * delta).min(root * lambda), 0.0, 0.0),
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
            found.loss.push(loss);
            found.shrink.push(if h.is_nan() { 1.0 } else { shrink });
        }
    }
    if reading.gated {
        let logs: Vec<f64> = seen.mass.iter().map(|mass| f64::from(*mass).ln()).collect();
        let mut of_head = Vec::new();
        // A head that attends to no block has no order of them.
        if danger(&logs, &bounds, &mut of_head).is_ok() {
            found.danger.resize(of_head.len(), 0.0);
            found.danger.iter_mut().zip(of_head).for_each(|(most, now)| *most = most.max(now));
        }
    }
}
