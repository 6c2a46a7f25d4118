//! Rows that are slices of a fused projection's buffer in device memory: what is stored is what the slices hold, by calls and from a
//! recording; outputs that lie apart, in 16 bits, are those that lie together, rounded.
use crate::world::Failure;
use certkv::gpu::{Compiler, DeviceBuffer, Element, Gpu, GpuCache, GpuConfig, GpuStream, LayerIo, Rows, Tensor};
use certkv::{Chunk, Dtype, Geometry, Policy, Side};
use certkv_device::cuda::Priority;
use certkv_testkit::generate::Rng;

const LAYERS: usize = 2;
const KV_HEADS: usize = 2;
const DIM: usize = 128;
const KV: usize = KV_HEADS * DIM;
const Q: usize = 2 * KV;
/// Queries, keys, values of a token.
const ALL: usize = Q + 2 * KV;
const SEQS: usize = 3;
const ROWS: Rows = Rows::of_tokens(SEQS, KV_HEADS, DIM, ALL);
/// Outputs with their heads outside the sequences, and something between.
const APART: Rows = Rows { count: SEQS, heads: 2 * KV_HEADS, dim: DIM, stride: DIM + 8, head_stride: SEQS * (DIM + 8) };

/// Steps over two blocks' ends. Whether all sequences hold the rows of their own slices, which a look at the neighbour's does not find.
pub(crate) fn holds(gpu: &Gpu, compiler: &Compiler, format: &str, seed: u64) -> Result<bool, Failure> {
    let geometry = Geometry::new(LAYERS, 2 * KV_HEADS, KV_HEADS, DIM)?;
    let format: certkv::Format = format.parse()?;
    let steps = format.block + 3;
    let config = GpuConfig { max_sequences: SEQS, ..GpuConfig::new(geometry, SEQS * 4 * format.block) };
    let mut cache = GpuCache::new(gpu, compiler, GpuConfig { formats: vec![format], ..config })?;
    let stream = GpuStream::new(gpu, Priority::Normal)?;
    let sizes = [2 * SEQS * ALL, 4 * SEQS * Q, 2 * 2 * KV_HEADS * APART.head_stride];
    let [fused, out, apart] = sizes.map(|bytes| DeviceBuffer::new(gpu, bytes));
    let (fused, out, apart) = (fused?, out?, apart?);
    let mut judged = Judged::default();
    out.fill(&stream, 0, out.len(), 0)?;
    let mut ids = Vec::new();
    for _ in 0..SEQS {
        ids.push(cache.create()?);
    }
    let chunks: Vec<Chunk> = ids.iter().map(|id| Chunk { sequence: *id, tokens: 1 }).collect();
    let mut random = Rng::new(seed);
    let mut given = vec![Vec::new(); SEQS];
    let slice = |first: usize| Tensor::rows_of(&fused, 2 * first, Element::F16, ROWS);
    for step in 0..2 * steps {
        cache.synchronize()?;
        let mut rows = vec![0; SEQS * ALL];
        for (row, all) in rows.chunks_exact_mut(ALL).zip(&mut given) {
            row.fill_with(|| 0x3c00 + (random.bits() % 512) as u16);
            all.extend_from_slice(&row[Q..]);
        }
        fused.write(&stream, 0, &rows)?;
        stream.synchronize()?;
        let (keys, values) = (slice(Q)?, slice(Q + KV)?);
        if step < steps {
            apart.fill(&stream, 0, apart.len(), 0xff)?;
            stream.synchronize()?;
            let query = Tensor::rows_of(&fused, 0, Element::F16, Rows::of_tokens(SEQS, 2 * KV_HEADS, DIM, ALL))?;
            let together = Tensor::of(&out, 0, Element::F32, SEQS * Q)?;
            let mut step = cache.begin_with(&chunks, Policy::Packed)?;
            for layer in 0..LAYERS {
                step.append_device(layer, keys, values)?;
                step.attend_device(layer, query, together)?;
                step.attend_device(layer, query, Tensor::rows_of(&apart, 0, Element::Bf16, APART)?)?;
            }
            step.finish()?;
            cache.synchronize()?;
            let (mut whole, mut found) = (vec![0f32; SEQS * Q], vec![0u16; apart.len() / 2]);
            out.read(&stream, 0, &mut whole)?;
            apart.read(&stream, 0, &mut found)?;
            judged.look(&whole, &found);
        } else {
            let wide = Tensor::of(&out, 0, Element::F32, SEQS * Q)?;
            let graph =
                cache.record(SEQS, &[LayerIo { keys, values, query: wide, out: wide }; LAYERS], Policy::Packed)?;
            let mut step = cache.begin_with(&chunks, Policy::Packed)?;
            step.replay(&graph)?;
            step.finish()?;
        }
    }
    cache.synchronize()?;
    let (mut executed, mut failed, mut caught) = (0u32, 0u32, 0u32);
    for (at, id) in ids.iter().enumerate() {
        for (layer, head, side) in
            (0..LAYERS * KV_HEADS * 2).map(|i| (i % LAYERS, i / LAYERS % KV_HEADS, i / LAYERS / KV_HEADS))
        {
            let found = cache.originals(*id, layer, head, [Side::Key, Side::Value][side])?;
            let first = side * KV + head * DIM;
            let want = |rows: &[u16]| -> Vec<u16> {
                rows.chunks_exact(2 * KV).flat_map(|row| &row[first..first + DIM]).copied().collect()
            };
            executed += 1;
            failed += u32::from(found != want(&given[at]));
            // The control: rows of the next sequence.
            caught += u32::from(found != want(&given[(at + 1) % SEQS]));
        }
    }
    executed += judged.rows;
    failed += judged.wrong;
    caught += judged.caught;
    println!("GATE gpu-fused {format} executed={executed} failed={failed} controls={caught}/{executed} seed={seed:#x}");
    Ok(failed == 0 && caught == executed)
}

/// Outputs that lie apart beside those that lie together.
#[derive(Default)]
struct Judged {
    rows: u32,
    wrong: u32,
    /// The control: the row of another head.
    caught: u32,
}

impl Judged {
    fn look(&mut self, whole: &[f32], found: &[u16]) {
        for (row, from) in whole.chunks_exact(DIM).enumerate() {
            let at = row / APART.heads * APART.stride + row % APART.heads * APART.head_stride;
            let rounded = |from: &[f32]| from.iter().map(|x| Dtype::Bf16.encode16(*x)).collect::<Vec<_>>();
            let (is, between) = (&found[at..at + DIM], &found[at + DIM..at + DIM + 8]);
            // Heads of one KV head may agree.
            let other = (row + 2) % (SEQS * APART.heads);
            self.rows += 1;
            self.wrong += u32::from(is != rounded(from) || between.iter().any(|x| *x != u16::MAX));
            self.caught += u32::from(is != rounded(&whole[other * DIM..(other + 1) * DIM]));
        }
    }
}
