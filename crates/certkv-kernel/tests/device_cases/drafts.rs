//! Drafts: sequences whose last tokens, or some before those, are attended by one launch.
use super::{Case, Refining, Spec, bytes, decode, side};
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
        // The caller's rows are in another order than the sequences, and the first is nobody's.
        let mut row = 1;
        let draft = |&(len, count, behind): &(usize, usize, usize)| {
            assert!(count >= 1 && count <= tokens && count + behind <= len, "{len} {count} {behind}");
            row += count;
            Draft::new(len - behind - count + 1, count, row - count)
        };
        let mut drafts: Vec<Draft> = ends.iter().rev().map(draft).collect();
        drafts.reverse();
        Self { draft: tokens, drafts, ..Self::new(format, dim, heads * tokens, &lens) }
    }
}

impl Spec {
    /// Blocks of sequence `s` that have records. With `closing`, one that its draft has filled before the last block has none yet.
    pub fn recorded_of(&self, s: usize) -> usize {
        let recorded = self.recorded(self.lens[s]);
        recorded - usize::from(self.filled(s))
    }

    fn filled(&self, s: usize) -> bool {
        let end = self.recorded(self.lens[s]) * self.layout().tokens();
        self.closing && self.drafts.get(s).is_some_and(|d| end >= d.first as usize && end > 0)
    }

    /// What a launch is told of its drafts: [`Case::place`] has blocks that they have filled behind all last ones.
    pub fn told(&self) -> Vec<Draft> {
        let mut slot = self.lens.len() as u32;
        let told = |(s, draft): (usize, &Draft)| {
            slot += u32::from(self.filled(s));
            Draft { tail: if self.filled(s) { slot } else { 0 }, ..*draft }
        };
        self.drafts.iter().enumerate().map(told).collect()
    }
}

impl Case {
    /// A block of sequence `s` as a tail has it, and the norms of its rows.
    pub fn tail(&self, s: usize, block: usize) -> (Vec<u8>, Vec<u32>) {
        let (spec, b, d) = (&self.spec, self.layout.tokens(), self.spec.dim);
        let (mut tail, mut norms) = (Vec::new(), Vec::new());
        for head in &self.heads[s * spec.kv_heads..(s + 1) * spec.kv_heads] {
            let rows = |all: &'_ [u16]| all[block * b * d..all.len().min((block + 1) * b * d)].to_vec();
            let sides = [rows(&head.data.keys), rows(&head.data.values)];
            tail.extend(side(&sides[0], b, d, true));
            tail.extend(side(&sides[1], b, d, false));
            // Of rows that are not there anything may be said.
            let square = |rows: &[f64], t: usize| match rows.get(t * d..(t + 1) * d) {
                Some(row) => row.iter().map(|x| x * x).sum::<f64>() as f32,
                None => f32::NAN,
            };
            let numbers = sides.map(|rows| decode(&rows, spec.store));
            norms.extend((0..b).flat_map(|t| [0, 1].map(|side| square(&numbers[side], t).to_bits())));
        }
        (bytes(&tail), norms)
    }

    /// Tokens of the sequence of head `i` of the launch that column `g` of its group sees, but for a window.
    pub fn length(&self, i: usize, g: usize) -> usize {
        let (spec, sequence) = (&self.spec, i / self.spec.kv_heads);
        match spec.drafts.get(sequence) {
            Some(d) => d.first as usize + (g / spec.heads()).min(d.count as usize - 1),
            None => spec.lens[sequence],
        }
    }

    /// The column whose query column `g` of head `i` of the launch has: of a token that its draft lacks, the last one's.
    pub fn column(&self, i: usize, g: usize) -> usize {
        let (spec, heads) = (&self.spec, self.spec.heads());
        let last = spec.drafts.get(i / spec.kv_heads).map_or(usize::MAX, |d| d.count as usize - 1);
        (g / heads).min(last) * heads + g % heads
    }

    /// Tokens, query heads, channels, as the caller has them.
    pub fn shape(&self) -> [usize; 3] {
        let spec = &self.spec;
        let tokens = spec.drafts.iter().map(|d| (d.row + d.count) as usize).max().unwrap_or(spec.lens.len());
        [tokens, spec.kv_heads * spec.heads(), spec.dim]
    }

    /// Where the caller has the row of column `g` of head `i`, as `token query_heads + query head`.
    fn row_of(&self, i: usize, g: usize) -> usize {
        let (spec, heads) = (&self.spec, self.spec.heads());
        let first = spec.drafts.get(i / spec.kv_heads).map_or(i / spec.kv_heads, |d| d.row as usize);
        ((first + g / heads) * spec.kv_heads + i % spec.kv_heads) * heads + g % heads
    }

    /// All queries, one after the other.
    pub fn queries(&self) -> Vec<u16> {
        let ([tokens, heads, dim], group) = (self.shape(), self.spec.group);
        let mut all = vec![0x7fff; tokens * heads * dim];
        for (i, head) in self.heads.iter().enumerate() {
            for g in (0..group).filter(|g| self.column(i, *g) == *g) {
                all[self.row_of(i, g) * dim..][..dim].copy_from_slice(&head.data.queries[g * dim..(g + 1) * dim]);
            }
        }
        all
    }

    /// Outputs out of memory that was filled with ones before, `[head of the launch][group][dim]`.
    ///
    /// # Errors
    /// What is nobody's was written.
    pub fn outputs(&self, words: &[u32]) -> Result<Vec<f32>, String> {
        let (spec, [.., dim]) = (&self.spec, self.shape());
        let given = spec.rows.gather(words, self.shape())?;
        let mut own = vec![false; given.len() / dim];
        let mut all = Vec::with_capacity(self.heads.len() * spec.group * dim);
        for (i, g) in (0..self.heads.len()).flat_map(|i| (0..spec.group).map(move |g| (i, g))) {
            let row = self.row_of(i, self.column(i, g));
            own[row] = true;
            all.extend_from_slice(&given[row * dim..(row + 1) * dim]);
        }
        let others = given.chunks_exact(dim).zip(own).filter(|(_, own)| !own);
        match others.flat_map(|(row, _)| row).all(|x| x.is_nan()) {
            true => Ok(all),
            false => Err("an output that is no token's was written".into()),
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
            // Blocks that a draft fills have records, or lie in tails.
            let closing = kind == Kind::Rope;
            all.push(Spec { store, kind, closing, seed: i as u64, ..Spec::drafts(format, dim, heads, tokens, &ends) });
        }
    }
    for (i, refine) in
        [Refining::Never, Refining::All, Refining::OnDemand(1.0), Refining::Picked(0.3)].iter().enumerate()
    {
        let ends = [(8193, 2, 0), (1000, 2, 3), (4097, 2, 0), (33, 1, 0), (511, 2, 5), (2, 2, 0)];
        for kind in [Kind::Gaussian, Kind::Rope] {
            let closing = kind == Kind::Gaussian;
            all.push(Spec { kind, closing, relative: 0.3, seed: i as u64, ..fine(*refine, &ends) });
        }
    }
    all
}
