//! A cache of random records larger than the machine's caches, and one decode step over it.
use certkv_codec::KeyMetric;
use certkv_codec::fp8::Fp8;
use certkv_codec::spherical::{Scheme, Spherical};
use certkv_core::hash::splitmix64;
use certkv_core::{Dtype, Geometry, KeyFormat, PageCode, RecordLayout};
use certkv_kernel::{
    Arch, Block, BlockSource, Causal, Kernel, Masses, Partial, Pool, PrefillWork, Scores, Workspace, splits,
};

mod decoded;
pub(crate) use decoded::Decoder;

/// Query heads and KV heads of the measured layer.
pub(crate) const HEADS: (usize, usize) = (32, 8);
/// Channels per head.
pub(crate) const DIM: usize = 128;

/// One layer at one context length. Blocks of all KV heads lie in one buffer, `[head][block]`.
pub(crate) struct Workload {
    pub(crate) kernel: Kernel,
    layout: RecordLayout,
    records: Vec<u8>,
    first: usize,
    pub(crate) blocks: usize,
    queries: Vec<f32>,
    /// Directions of spherical keys, the same for all heads.
    books: Option<Spherical>,
    tasks: Vec<Task>,
}

/// How a step is made.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum How {
    /// One pass, no masses.
    Bare,
    /// One pass, masses and certificates.
    Certified,
    /// Two sweeps and certificates; values of every block read.
    Sweeps,
    /// Two sweeps and certificates; values of every second block skipped.
    HalfSkipped,
}

struct Task {
    scores: Scores,
    head: usize,
    partial: Partial,
    split: Partial,
    masses: Masses,
    bounds: [f32; 16],
}

struct Head<'a> {
    records: &'a [u8],
    bytes: usize,
    skip: bool,
    books: Option<&'a Spherical>,
    /// Keys of the blocks as rows, which are read instead of their codes; none if empty.
    decoded: &'a [u16],
}

impl BlockSource for Head<'_> {
    fn block(&self, index: usize) -> Block<'_> {
        let record = self.records.get(index * self.bytes..(index + 1) * self.bytes).unwrap_or(&[]);
        let keys = self.decoded.chunks_exact(decoded::ROWS).nth(index);
        Block { record, keys, values: None, skip_values: self.skip && index % 2 == 1, ..Block::default() }
    }

    fn key_metric(&self, _: KeyFormat) -> Option<KeyMetric<'_>> {
        self.books.map(KeyMetric::directions)
    }
}

fn random_words(seed: u64) -> impl FnMut() -> u64 {
    let mut state = seed;
    move || {
        state = splitmix64(state);
        state
    }
}

impl Workload {
    /// `tokens` tokens per head in `format`.
    pub(crate) fn new(format: &str, tokens: usize, arch: Arch) -> Self {
        let geometry = Geometry::new(1, HEADS.0, HEADS.1, DIM).expect("a valid geometry");
        let layout = RecordLayout::new(&geometry, format.parse().expect("a format")).expect("a layout");
        let blocks = tokens / layout.tokens();
        let mut random = random_words(7);
        let mut records = vec![0u8; layout.bytes * blocks * HEADS.1 + 64];
        let first = records.as_ptr().align_offset(64);
        for record in records[first..].chunks_exact_mut(layout.bytes) {
            fill(record, &layout, &mut random);
        }
        let kernel = Kernel::new(&geometry, &layout, arch).expect("an available instruction set");
        let unit = |w: u64| (w >> 40) as f32 / (1u64 << 23) as f32 - 1.0;
        let queries = (0..HEADS.0 * DIM).map(|_| unit(random())).collect();
        let books = layout.format.key.tier().map(|tier| {
            let group = tier.group();
            let mut words: Vec<f32> = (0..DIM / group * tier.book_len()).map(|_| unit(random())).collect();
            for word in words.chunks_exact_mut(group) {
                let length = word.iter().map(|x| x * x).sum::<f32>().sqrt();
                word.iter_mut().for_each(|x| *x /= length);
            }
            Spherical::new(&Scheme::new(tier, &words)).expect("unit directions")
        });
        let tasks = (0..HEADS.1)
            .map(|head| Task {
                scores: Scores::new(),
                head,
                partial: kernel.partial(),
                split: kernel.partial(),
                masses: Masses::new(kernel.heads(), blocks + 1),
                bounds: [0.0; 16],
            })
            .collect();
        Self { kernel, layout, records, first, blocks, queries, books, tasks }
    }

    /// Bytes that one step has to read.
    pub(crate) fn bytes(&self) -> usize {
        self.layout.bytes * self.blocks * HEADS.1
    }

    /// One decode step of the layer: all heads.
    pub(crate) fn step(&mut self, pool: &Pool, how: How) {
        let shared = (&self.kernel, &self.layout, &self.records[self.first..], &self.queries[..], self.books.as_ref());
        pool.run(&mut self.tasks, Workspace::new, |work, _, task| one_head(shared, work, task, how));
    }

    /// Causal attention of `rows` rows over the first KV head, an uncoded format.
    pub(crate) fn prefill(&self, first: usize, rows: usize) {
        let bytes = self.layout.bytes;
        let records = &self.records[self.first..self.first + self.blocks * bytes];
        let source = Head { records, bytes, skip: false, books: None, decoded: &[] };
        let group = self.kernel.heads() * DIM;
        let queries = vec![0.1f32; rows * group];
        let mut out = vec![0.0f32; rows * group];
        let task = Causal { queries: &queries, stride: group, rows, first, window: None };
        self.kernel
            .prefill(&mut PrefillWork::default(), &task, &source, self.blocks, None, &mut out)
            .expect("a valid prefill");
        std::hint::black_box(&out);
    }

    /// The same for one KV head: short enough to be timed between two interruptions on a shared machine.
    pub(crate) fn step_head(&mut self, head: usize, work: &mut Workspace, how: How) {
        let shared = (&self.kernel, &self.layout, &self.records[self.first..], &self.queries[..], self.books.as_ref());
        one_head(shared, work, &mut self.tasks[head], how);
    }
}

type Shared<'a> = (&'a Kernel, &'a RecordLayout, &'a [u8], &'a [f32], Option<&'a Spherical>);

fn one_head((kernel, layout, records, queries, books): Shared<'_>, work: &mut Workspace, task: &mut Task, how: How) {
    let blocks = records.len() / layout.bytes / HEADS.1;
    let group = kernel.heads() * DIM;
    let bytes = layout.bytes;
    let records = &records[task.head * blocks * bytes..(task.head + 1) * blocks * bytes];
    let source = Head { records, bytes, skip: how == How::HalfSkipped, books, decoded: &[] };
    let q = &queries[task.head * group..(task.head + 1) * group];
    if matches!(how, How::Sweeps | How::HalfSkipped) {
        let Task { partial, masses, scores, .. } = task;
        kernel.score(q, &source, 0..blocks, None, work, scores, &mut masses.as_mut()).expect("a valid step");
        kernel.total(scores, masses, partial).expect("one shape");
        kernel.gather(&source, 0..blocks, None, work, scores, masses, partial).expect("a valid step");
    } else {
        task.partial.clear();
        let mut rest = (how == How::Certified).then(|| task.masses.as_mut());
        for range in splits(blocks, layout.tokens()) {
            let here = rest.take().map(|m| {
                let (a, b) = m.split_at(range.end.next_multiple_of(16));
                rest = Some(b);
                a
            });
            kernel.attend(q, &source, range, None, work, &mut task.split, here).expect("a valid step");
            task.partial.merge(&task.split).expect("one shape");
        }
    }
    if how != How::Bare {
        for h in 0..kernel.heads() {
            let c = kernel.certify(&task.masses, &task.partial, h, 1.0).expect("a certificate");
            task.bounds[h] = c.bound;
        }
    }
}

/// Codes of numbers up to 100 as a floating-point format has them: of random bytes each sixteenth would be subnormal, which takes plain code longer, and
/// logits would be so far apart that weights are.
fn float_codes(kind: Fp8, codes: &mut [u8], random: &mut impl FnMut() -> u64) {
    let of: [u8; 1024] = core::array::from_fn(|i| kind.code((i as f64 / 511.5 - 1.0) * 100.0));
    codes.iter_mut().for_each(|code| *code = of[(random() >> 54) as usize]);
}

/// Random codes, plausible scales: speed does not depend on the values, but infinities and subnormal numbers would be unfair.
fn fill(record: &mut [u8], layout: &RecordLayout, random: &mut impl FnMut() -> u64) {
    for word in record.chunks_exact_mut(8) {
        word.copy_from_slice(&random().to_le_bytes());
    }
    let half = |x: f32| Dtype::F16.encode16(x).to_le_bytes();
    for range in [&layout.key_scales, &layout.value_scales] {
        for (i, slot) in record[range.clone()].chunks_exact_mut(2).enumerate() {
            slot.copy_from_slice(&half(0.01 + (i % 7) as f32 * 0.002));
        }
    }
    for (range, exact) in
        [(&layout.key_codes, layout.format.key.is_exact()), (&layout.value_codes, layout.format.value.is_exact())]
    {
        if exact {
            for slot in record[range.clone()].chunks_exact_mut(2) {
                slot.copy_from_slice(&half((random() >> 40) as f32 / (1u64 << 23) as f32 - 1.0));
            }
        }
    }
    let (key, value) = (layout.format.key.page(), layout.format.value.page());
    for (range, code) in [(&layout.key_codes, key), (&layout.value_codes, value)] {
        match code {
            Some(PageCode::E4m3) => float_codes(Fp8::E4m3, &mut record[range.clone()], random),
            Some(PageCode::E5m2) => float_codes(Fp8::E5m2, &mut record[range.clone()], random),
            _ => {}
        }
    }
    assert!(!matches!(layout.format.key, KeyFormat::Channel { meta: Dtype::F32, .. }), "scales are written as f16");
    for (i, slot) in record[layout.summary.clone()].chunks_exact_mut(4).enumerate() {
        slot.copy_from_slice(&(0.1 + i as f32 * 0.1).to_le_bytes());
    }
}
