//! Drafts: sequences whose last tokens, or some before those, are attended by one launch.
use super::{Case, Refining, Spec};
use certkv_core::Dtype;
use certkv_kernel::cuda::args::Draft;
use certkv_testkit::generate::Kind;

impl Spec {
    /// Query heads per KV head of one token.
    pub fn heads(&self) -> usize {
        self.group / self.draft.max(1)
    }

    /// Drafts of up to `tokens` tokens of `heads` query heads to a KV head. `ends`: tokens of each sequence, of its draft, and behind that.
    pub fn drafts(
        format: &'static str,
        dim: usize,
        heads: usize,
        tokens: usize,
        ends: &[(usize, usize, usize)],
    ) -> Self {
        let lens: Vec<usize> = ends.iter().map(|(len, ..)| *len).collect();
        let draft = |&(len, count, behind): &(usize, usize, usize)| {
            assert!(count >= 1 && count <= tokens && count + behind <= len, "{len} {count} {behind}");
            Draft { first: (len - behind - count + 1) as u32, count: count as u32 }
        };
        let drafts = ends.iter().map(draft).collect();
        Self { draft: tokens, drafts, ..Self::new(format, dim, heads * tokens, &lens) }
    }
}

impl Case {
    /// Tokens of the sequence of head `i` of the launch that column `g` of its group sees, but for a window.
    pub fn length(&self, i: usize, g: usize) -> usize {
        let (spec, sequence) = (&self.spec, i / self.spec.kv_heads);
        match spec.drafts.get(sequence) {
            Some(d) => d.first as usize + (g / spec.heads()).min(d.count as usize - 1),
            None => spec.lens[sequence],
        }
    }
}

/// What a device is tried with: drafts across the ends of blocks, of few tokens and many, in ragged batches.
pub fn specs(small: bool) -> Vec<Spec> {
    let fine = |refine, ends: &[_]| Spec { refine, ..Spec::drafts("k8-v4g64-b64-r8.4", 128, 4, 2, ends) };
    let short = [(130, 2, 0), (65, 1, 0), (64, 2, 0), (300, 2, 9)];
    let mut all = vec![
        Spec::drafts("k8-v4g64-b64", 128, 4, 2, &short),
        fine(Refining::OnDemand(1.5), &short),
        fine(Refining::Picked(0.5), &short),
    ];
    if small {
        return all;
    }
    for (i, (format, dim, heads, tokens, store)) in [
        ("k8-v4g64-b64", 128, 4, 4, Dtype::F16),
        ("k8-v4g64-b64", 128, 1, 4, Dtype::Bf16),
        ("k8-v4g32-b32", 64, 2, 8, Dtype::Bf16),
        ("t4-v4g32-b16", 96, 3, 5, Dtype::F16),
        ("f16-f16-b16", 128, 6, 2, Dtype::F16),
        ("tq4-tq4-b64", 128, 4, 4, Dtype::F16),
        ("tq3-tq3-b64", 128, 4, 2, Dtype::F16),
        ("ctq4-tq4-b64", 128, 4, 2, Dtype::F16),
        ("gtq3-tq3-b64", 128, 4, 2, Dtype::F16),
        ("s1-v4g64-b64", 128, 4, 3, Dtype::F16),
        ("k8-c4-b64", 128, 4, 4, Dtype::F16),
        ("k8-v4g32-b32", 256, 2, 4, Dtype::F16),
    ]
    .into_iter()
    .enumerate()
    {
        let ends = [(1501, tokens, 0), (8192 + 3, tokens, 1), (129, tokens, 0), (67, 1, 0), (tokens, tokens, 0)];
        for kind in [Kind::Gaussian, Kind::Rope] {
            all.push(Spec { store, kind, seed: i as u64, ..Spec::drafts(format, dim, heads, tokens, &ends) });
        }
    }
    for (i, refine) in
        [Refining::Never, Refining::All, Refining::OnDemand(1.0), Refining::Picked(0.3)].iter().enumerate()
    {
        let ends = [(8193, 2, 0), (1000, 2, 3), (4097, 2, 0), (33, 1, 0), (511, 2, 5), (2, 2, 0)];
        for kind in [Kind::Gaussian, Kind::Rope] {
            all.push(Spec { kind, relative: 0.3, seed: i as u64, ..fine(*refine, &ends) });
        }
    }
    all
}
