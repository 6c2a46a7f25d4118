//! What a launch does with the residual planes of a refinable format, and what it must then have read.
use super::{Case, dense_over, distance};
use certkv_codec::decode::{read_refined_summary, read_summary};
use certkv_core::RecordLayout;
use certkv_kernel::cuda::args::{Certificate, Demand, Picked};
use certkv_kernel::cuda::{Variant, VariantError};
use certkv_testkit::generate::Rng;

/// Which residuals a case reads.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum Refining {
    #[default]
    Never,
    All,
    /// Where weights ask for it, when so many even shares are allowed; 0: rows without history, which read everything.
    OnDemand(f32),
    /// On demand, and then of so large a share of the other sides: a correction.
    Picked(f64),
}

/// What a pass that is corrected is allowed.
const PASS_KAPPA: f32 = 2.0;

impl Refining {
    /// Whether everything that can be refined is; `None`: nobody but the kernel knows what is read.
    pub fn reads_all(self) -> Option<bool> {
        match self {
            Self::Never => Some(false),
            Self::All => Some(true),
            Self::OnDemand(kappa) => (kappa == 0.0).then_some(true),
            Self::Picked(_) => None,
        }
    }
}

/// What a correction is given, and what has been read behind it.
#[derive(Debug, Clone, Default)]
pub struct Correction {
    /// `[head][stride]`: `16 block + 4 looks + sides`.
    pub picks: Vec<u32>,
    /// By head.
    pub picked: Vec<Picked>,
    /// A count, then the heads that have picks, in no order.
    pub only: Vec<u32>,
    /// `[head][stride]`: sides.
    pub looks: Vec<u8>,
}

impl Correction {
    pub fn counts(&self) -> Vec<u32> {
        self.picked.iter().flat_map(|p| [p.blocks, p.keys, p.values, 0]).collect()
    }
}

/// Sides (keys, values) of a coded block whose residuals make its annotation smaller.
pub fn finer(l: &RecordLayout, record: &[u8]) -> (bool, bool) {
    if l.format.refine.is_none() {
        return (false, false);
    }
    let (plain, fine) = (read_summary(l, record), read_refined_summary(l, record));
    (fine.eps < plain.eps, fine.eta < plain.eta)
}

impl Case {
    /// The demands to launch with; empty: the launch takes none. What reads everything gets some, to see that it leaves them alone.
    pub fn demands(&self) -> Vec<Demand> {
        let kappa = match self.spec.refine {
            Refining::Never => return Vec::new(),
            Refining::OnDemand(0.0) => {
                return vec![Demand::default(); self.launch_heads() * self.spec.heads()];
            }
            Refining::OnDemand(kappa) => kappa,
            Refining::Picked(_) => PASS_KAPPA,
            Refining::All => 1.0,
        };
        let scale = (self.spec.dim as f64).powf(-0.5);
        let mut all = Vec::new();
        for (i, head) in self.heads.iter().enumerate() {
            let (keys, values) = (head.data.keys_f64(), head.data.values_f64());
            let centre: Vec<f64> = head.centre.iter().map(|x| f64::from(*x)).collect();
            // Of several tokens the last one's.
            for g in self.spec.group - self.spec.heads()..self.spec.group {
                let seen = self.seen(self.length(i, g));
                let (out, _) = dense_over(&seen, &head.data.query_f64(g), &keys, &values, scale);
                // Some heads remember a norm so small that it fades slower than this step's says.
                let share = if all.len() % 3 == 2 { 0.5 } else { 1.0 };
                let norm = share * distance(&out, &vec![0.0; out.len()]) as f32;
                all.push(Demand { norm, radius: distance(&out, &centre) as f32, kappa, unused: 0.0 });
            }
        }
        all
    }

    /// The picks of a case that corrects what a pass with these looks has left.
    pub fn correction(&self, looks: &[u8]) -> Option<Correction> {
        let Refining::Picked(share) = self.spec.refine else { return None };
        let stride = self.stride();
        let mut r = Rng::new(self.spec.seed ^ 0x91c);
        let mut c = Correction { picks: vec![u32::MAX; self.heads.len() * stride], ..Correction::default() };
        (c.looks, c.only) = (looks.to_vec(), vec![0]);
        for (i, head) in self.heads.iter().enumerate() {
            let mut of = Picked::default();
            for (j, (record, exact)) in head.records.iter().zip(&head.exact).enumerate() {
                let (finer, before) = (finer(&self.layout, record), looks[i * stride + j]);
                let (key, value) = (r.chance(share) && finer.0, r.chance(share) && finer.1);
                let sides = before | u8::from(key) | (2 * u8::from(value));
                // What the pass has read from originals is not corrected. Some heads have no picks; some blocks have nothing new.
                let unseen = !self.sees(head.data.shape.tokens, j);
                if unseen || exact.0 || exact.1 || i % 5 == 4 || sides == before && !r.chance(0.1) {
                    continue;
                }
                c.looks[i * stride + j] = sides;
                c.picks[i * stride + of.blocks as usize] = (16 * j) as u32 + 4 * u32::from(before) + u32::from(sides);
                of.blocks += 1;
                of.keys += u32::from(sides & !before & 1);
                of.values += u32::from(sides & !before & 2) / 2;
            }
            if of.blocks > 0 {
                c.only.push(i as u32);
            }
            c.picked.push(of);
        }
        c.only[1..].reverse();
        c.only[0] = c.only.len() as u32 - 1;
        Some(c)
    }

    /// The variant of the correction, if the case has one.
    pub fn corrects(spec: &super::Spec, variant: &Variant) -> Result<Option<Variant>, VariantError> {
        matches!(spec.refine, Refining::Picked(_)).then(|| variant.clone().correcting()).transpose()
    }

    /// What certificates of a case that corrects say wrongly of what was read.
    pub fn judge_picked(&self, picked: &[Picked], certificates: &[Certificate]) -> Vec<String> {
        let group = self.spec.group;
        let wanted = |i: usize| picked.get(i / group).map_or((0, 0), |p| (p.keys, p.values));
        let wrong = |(i, c): (usize, &Certificate)| {
            let said = (c.refined_keys, c.refined_values);
            (said != wanted(i)).then(|| format!("head {i}: {said:?} sides refined instead of {:?}", wanted(i)))
        };
        certificates.iter().enumerate().filter_map(wrong).collect()
    }

    /// Sides that a launch which reads everything reads, keys and values.
    pub fn refinable(&self) -> [u32; 2] {
        let mut sides = [0; 2];
        for head in &self.heads {
            let tokens = head.data.shape.tokens;
            for (j, (record, exact)) in head.records.iter().zip(&head.exact).enumerate() {
                if !self.sees(tokens, j) {
                    continue;
                }
                let finer = finer(&self.layout, record);
                sides[0] += u32::from(finer.0 && !exact.0);
                sides[1] += u32::from(finer.1 && !exact.1);
            }
        }
        sides
    }

    /// Where the certificate is of query head `i` of all sequences' last tokens.
    fn last_column(&self, i: usize) -> usize {
        let (heads, group) = (self.spec.heads(), self.spec.group);
        let last = self.spec.drafts.get(i / heads / self.spec.kv_heads).map_or(0, |d| d.count as usize - 1);
        i / heads * group + last * heads + i % heads
    }

    /// What is wrong with the counters and the demands that a launch left.
    /// `certificates`: those of the pass.
    pub fn judge_refined(&self, refined: &[u32], demands: &[u32], certificates: &[Certificate]) -> Vec<String> {
        let (mode, most, mut wrong) = (self.spec.refine, self.refinable(), Vec::new());
        let fits = match mode.reads_all() {
            Some(true) => refined == most,
            Some(false) => refined == [0, 0],
            None => refined[0] <= most[0] && refined[1] <= most[1],
        };
        if !fits {
            wrong.push(format!("{mode:?}: {refined:?} sides refined of {most:?}"));
        }
        for ((i, before), got) in self.demands().iter().enumerate().zip(demands.as_chunks::<4>().0) {
            let (got, c) = (got.map(f32::from_bits), &certificates[self.last_column(i)]);
            let want =
                if matches!(mode, Refining::OnDemand(_) | Refining::Picked(_)) { learned(*before, c) } else { *before };
            let want = [want.norm, want.radius, want.kappa, want.unused];
            // An output without a number leaves none.
            if got.iter().zip(want).any(|(a, b)| a.to_bits() != b.to_bits() && !(a.is_nan() && b.is_nan())) {
                wrong.push(format!("head {i}: demand {got:?} instead of {want:?} after {before:?} ({c:?})"));
            }
        }
        wrong
    }
}

/// What a head remembers after a step: `learn` of kernels/attend/demand.cuh.
fn learned(d: Demand, c: &Certificate) -> Demand {
    let fresh = d.kappa == 0.0;
    let faded = d.norm * 1.1;
    let norm = if fresh || !(c.norm >= faded) { c.norm } else { faded };
    let kappa = if fresh {
        3.0
    } else if c.status == 0 {
        (d.kappa * 0.5).max(0.125)
    } else if c.bound < 0.5 * c.tolerance {
        // A launch may be given more than is ever learned.
        (d.kappa * 1.02).min(3.0)
    } else {
        d.kappa
    };
    Demand { norm, radius: c.radius, kappa, unused: 0.0 }
}

/// Demands as the device holds them.
pub fn demand_words(demands: &[Demand]) -> Vec<u32> {
    demands.iter().flat_map(|d| [d.norm, d.radius, d.kappa, d.unused].map(f32::to_bits)).collect()
}
