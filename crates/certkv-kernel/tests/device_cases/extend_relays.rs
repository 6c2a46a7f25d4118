//! Several launches over a chunk, each of which leaves to the next what it has summed: over records of several levels, a launch for each, or over all originals, in parts.
use super::{Case, Originals, Placed, Spec, Verdict};
use certkv_core::Dtype;
use certkv_kernel::cuda::args::Certificate;
use certkv_kernel::cuda::extend::{ExtendArgs, relay_bytes};
use certkv_kernel::cuda::{Arch, Sight, Variant};
use certkv_testkit::generate::{Kind, Rng};

/// What launches share.
pub enum Relay {
    /// Cases of the same data, one to a level, and the level of every block of a sequence.
    Levels { cases: Vec<Case>, of: Vec<Vec<usize>> },
    /// Launches over parts of all originals, and the same data in a format that keeps them.
    Parts { case: Box<Case>, exact: Box<Case>, parts: u32 },
}

impl Relay {
    /// Levels of blocks are drawn; the first sequence has none at the first level, the second none at any other.
    pub fn levels(spec: &Spec, formats: &[&'static str]) -> Self {
        let cases: Vec<_> = formats.iter().map(|format| Case::new(&Spec { format, ..spec.clone() })).collect();
        let mut r = Rng::new(spec.seed ^ 0x1e7e);
        let block = spec.layout().tokens();
        let level = |s: usize, r: &mut Rng| match s {
            0 => 1 + r.below(formats.len() - 1),
            1 => 0,
            _ => r.below(formats.len()),
        };
        let of = |(s, chunk): (usize, &(usize, usize))| (0..chunk.0 / block).map(|_| level(s, &mut r)).collect();
        let of = spec.chunks.iter().enumerate().map(of).collect();
        Self::Levels { cases, of }
    }

    pub fn parts(spec: &Spec, parts: u32) -> Self {
        let format = match (spec.store, spec.layout().tokens()) {
            (Dtype::Bf16, 16) => "bf16-bf16-b16",
            (Dtype::Bf16, 32) => "bf16-bf16-b32",
            (Dtype::Bf16, _) => "bf16-bf16-b64",
            (_, 16) => "f16-f16-b16",
            (_, 32) => "f16-f16-b32",
            _ => "f16-f16-b64",
        };
        let exact = Box::new(Case::new(&Spec { format, ..spec.clone() }));
        Self::Parts { case: Box::new(Case::new(spec)), exact, parts }
    }

    /// Makes all queries so much longer: beside short ones, whose bounds are small, rounding is seen.
    pub fn scale_queries(&mut self, by: f32) {
        match self {
            Self::Levels { cases, .. } => cases.iter_mut().for_each(|case| case.scale_queries(by)),
            Self::Parts { case, exact, .. } => [case, exact].into_iter().for_each(|case| case.scale_queries(by)),
        }
    }

    fn case(&self) -> &Case {
        match self {
            Self::Levels { cases, .. } => &cases[0],
            Self::Parts { case, .. } => case,
        }
    }

    pub fn spec(&self) -> &Spec {
        &self.case().spec
    }

    /// In words.
    pub fn name(&self) -> String {
        match self {
            Self::Levels { cases, .. } => cases.iter().map(|case| case.spec.format).collect::<Vec<_>>().join(", "),
            Self::Parts { case, parts, .. } => format!("{} in {parts} parts", case.spec.format),
        }
    }

    /// Kernels of the launches, `cut` says how each.
    pub fn variants(&self, arch: Arch, cut: impl Fn(usize, Variant) -> Variant) -> Vec<Variant> {
        let of = |(at, spec): (usize, &Spec)| {
            let variant = Variant::new(spec.layout(), spec.group, arch).unwrap_or_else(|e| panic!("{e}"));
            cut(at, if spec.sight.is_some() { variant.windowed() } else { variant })
        };
        let specs: Vec<&Spec> = match self {
            Self::Levels { cases, .. } => cases.iter().map(|case| &case.spec).collect(),
            Self::Parts { case, parts, .. } => vec![&case.spec; *parts as usize],
        };
        specs.into_iter().enumerate().map(of).collect()
    }

    /// Bytes that launches leave to each other.
    pub fn kept_bytes(&self) -> usize {
        relay_bytes(self.case().tokens(), self.case().q_heads())
    }

    /// The launches, one behind the other, with [`Relay::kept_bytes`] at `kept`.
    pub fn place(&self, variants: &[Variant], kept: u64, place: &mut dyn FnMut(&[u8]) -> u64) -> Vec<Placed> {
        let last = variants.len() - 1;
        let of = |(at, variant): (usize, &Variant)| {
            let placed = match self {
                Self::Levels { cases, of } => {
                    let originals = if at == last { Originals::Own } else { Originals::None };
                    cases[at].place_part(variant, (&|s, block| of[s][block] == at, originals), place)
                }
                Self::Parts { case, parts, .. } => {
                    case.place_part(variant, (&|_, _| false, Originals::Part(at as u32, *parts)), place)
                }
            };
            let part = u32::from(at > 0) | u32::from(at < last) << 1;
            Placed { args: ExtendArgs { part, kept, ..placed.args }, ..placed }
        };
        variants.iter().enumerate().map(of).collect()
    }

    pub fn judge(&self, out: &[f32], certificates: &[Certificate]) -> Verdict {
        match self {
            Self::Levels { cases, of } => cases[0].judge_levels(out, certificates, &|s, block| &cases[of[s][block]]),
            Self::Parts { exact, .. } => exact.judge(out, certificates),
        }
    }
}

/// Ladders of all kinds of formats with chunks over them, and parts; each twice, the second time with short queries.
pub fn relays() -> Vec<(Relay, bool)> {
    type Ladder = (&'static [&'static str], usize, usize, [(usize, usize); 3]);
    let ladders: [Ladder; 8] = [
        (&["k8-v4g64-b64", "k4-v4g64-b64"], 128, 4, [(400, 30), (270, 9), (130, 70)]),
        (&["t8-v8g32-b32", "t4-v4g32-b32", "t3-v3g32-b32", "t2-v2g32-b32"], 128, 4, [(200, 20), (64, 1), (310, 40)]),
        (&["tq4-tq4-b32", "tq3-tq2-b32", "tq1-tq1-b32"], 64, 6, [(170, 33), (96, 8), (0, 50)]),
        (&["k8-v4g32-b16", "e4m3-tq3-b16", "k2-tq2-b16"], 64, 2, [(65, 17), (17, 40), (150, 16)]),
        (&["tq6-tq5-b32", "p4g32-p4g32-b32"], 256, 2, [(100, 10), (64, 5), (96, 7)]),
        (&["ctq4-tq4-b32", "gtq3-tq3-b32", "s1-tq2-b32"], 64, 4, [(130, 20), (64, 33), (200, 9)]),
        (&["s1-v4g64-b64", "ctq4-tq4-b64", "f16-f16-b64"], 128, 3, [(300, 20), (128, 33), (64, 9)]),
        (&["k8-c4-b32", "k4-c3-b32"], 96, 12, [(70, 12), (40, 3), (130, 20)]),
    ];
    let windowed = |spec: Spec, tokens, sinks| Spec { sight: Some(Sight { tokens, sinks }), ..spec };
    let parts = [
        (Spec::new("k8-v4g64-b64", 128, 4, &[(400, 30), (270, 9), (130, 70)]), 3),
        (Spec { store: Dtype::Bf16, ..Spec::new("tq4-tq4-b32", 64, 6, &[(170, 33), (96, 8), (0, 50)]) }, 2),
        (Spec { kind: Kind::Rope, ..Spec::new("gtq3-tq3-b32", 128, 2, &[(200, 40), (32, 5)]) }, 5),
        (Spec { store: Dtype::Bf16, ..Spec::new("s1-v4g32-b16", 96, 12, &[(70, 12), (40, 3)]) }, 2),
        (windowed(Spec::new("k8-v4g32-b32", 64, 4, &[(300, 50), (96, 8)]), 70, 20), 4),
        (windowed(Spec::new("tq3-tq3-b32", 256, 2, &[(200, 9), (64, 3)]), 33, 5), 3),
    ];
    let mut all = Vec::new();
    for short in [false, true] {
        for (i, (formats, dim, group, chunks)) in ladders.iter().enumerate() {
            let store = if i % 3 == 2 { Dtype::Bf16 } else { Dtype::F16 };
            let kind = if i % 4 == 3 { Kind::Rope } else { Kind::Gaussian };
            let spec = Spec { store, kind, seed: 1 + i as u64 * 17, ..Spec::new(formats[0], *dim, *group, chunks) };
            all.push((Relay::levels(&spec, formats), short));
        }
        all.extend(parts.iter().map(|(spec, parts)| (Relay::parts(spec, *parts), short)));
    }
    all.iter_mut().filter(|(_, short)| *short).for_each(|(relay, _)| relay.scale_queries(0.05));
    all
}
