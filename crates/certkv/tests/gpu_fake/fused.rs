//! Keys and values that are slices of one buffer, as a fused projection leaves them: what is stored is what the slices hold.
use crate::alone;
use crate::kernels::{self, BLOCK, DIM, GROUP, KV_HEADS, Plant};
use crate::life::{FORMATS, LAYERS, config};
use certkv::gpu::{Compiler, CudaError, DeviceBuffer, Element, Gpu, GpuCache, GpuStream, LayerIo, Rows, Tensor};
use certkv::{Certificate, Chunk, Dtype, Error, Policy, SequenceId, Side};
use certkv_device::cuda::Priority;
use certkv_kernel::cuda::args::Strides;
use certkv_testkit::generate::Rng;

const KV: usize = KV_HEADS * DIM;
const Q: usize = GROUP * KV;
/// Queries, keys, values of a token.
const ALL: usize = Q + 2 * KV;
const SEQS: usize = 3;

/// Rows of one side of a batch in the fused buffer.
fn side(buffer: &DeviceBuffer, first: usize, rows: Rows) -> Result<Tensor<'_>, CudaError> {
    Tensor::rows_of(buffer, 2 * first, Element::F16, rows)
}

const ROWS: Rows = Rows::of_tokens(SEQS, KV_HEADS, DIM, ALL);

struct World {
    cache: GpuCache,
    stream: GpuStream,
    fused: DeviceBuffer,
    out: DeviceBuffer,
    ids: [SequenceId; SEQS],
    random: Rng,
}

impl World {
    /// A batch in the buffer; what is between the slices is no number.
    fn batch(&mut self) -> Vec<u16> {
        // The step before reads the buffer.
        self.cache.synchronize().expect("the end");
        let mut rows = vec![0x7e00; SEQS * ALL];
        for row in rows.chunks_exact_mut(ALL) {
            row[Q..].fill_with(|| 0x3c00 + (self.random.bits() % 512) as u16);
        }
        self.fused.write(&self.stream, 0, &rows).expect("a copy");
        rows
    }

    /// Steps over a block's end, by calls or by a recording: whether each sequence holds the rows of its own slices.
    fn holds(&mut self, recorded: bool) -> bool {
        let mut given = vec![Vec::new(); SEQS];
        let chunks = self.ids.map(|sequence| Chunk { sequence, tokens: 1 });
        let before = self.cache.len(self.ids[0]).expect("a length");
        for _ in 0..BLOCK + 3 {
            let rows = self.batch();
            given.iter_mut().zip(rows.chunks_exact(ALL)).for_each(|(all, row)| all.extend_from_slice(&row[Q..]));
            let [keys, values] = [Q, Q + KV].map(|at| side(&self.fused, at, ROWS).expect("slices"));
            let wide = Tensor::of(&self.out, 0, Element::F32, SEQS * Q).expect("outputs");
            if recorded {
                let io = LayerIo { keys, values, query: wide, out: wide };
                let graph = self.cache.record(SEQS, &[io; LAYERS], Policy::Packed).expect("a recording");
                let mut step = self.cache.begin_with(&chunks, Policy::Packed).expect("a step");
                step.replay(&graph).expect("a replay");
                step.finish().expect("the end");
                continue;
            }
            let mut step = self.cache.begin(&chunks).expect("a step");
            (0..LAYERS).for_each(|layer| step.append_device(layer, keys, values).expect("rows"));
            step.finish().expect("the end");
        }
        self.cache.synchronize().expect("the end");
        let mut same = true;
        for (id, given) in self.ids.iter().zip(given) {
            for (layer, head, of) in
                (0..LAYERS * KV_HEADS * 2).map(|i| (i % LAYERS, i / LAYERS % KV_HEADS, i / LAYERS / KV_HEADS))
            {
                let found = self.cache.originals(*id, layer, head, [Side::Key, Side::Value][of]).expect("originals");
                let at = of * KV + head * DIM;
                let want: Vec<u16> = given.chunks_exact(2 * KV).flat_map(|row| &row[at..at + DIM]).copied().collect();
                same &= found[before * DIM..] == want;
            }
        }
        same
    }
}

fn world(compiler: &Compiler, format: &str) -> World {
    kernels::begin(format);
    let gpu = Gpu::open(0).expect("the fake");
    let mut cache = GpuCache::new(&gpu, compiler, config(format)).expect("a cache");
    let stream = GpuStream::new(&gpu, Priority::Normal).expect("a stream");
    let [fused, out] = [2 * SEQS * ALL, 4 * SEQS * Q].map(|bytes| DeviceBuffer::new(&gpu, bytes).expect("memory"));
    out.fill(&stream, 0, out.len(), 0).expect("zeros");
    let ids = [(); SEQS].map(|()| cache.create().expect("a sequence"));
    World { cache, stream, fused, out, ids, random: Rng::new(11) }
}

#[test]
fn slices_of_a_fused_buffer_are_stored() {
    let (fake, compiler, _turn) = alone();
    fake.reset();
    let mut caught = 0;
    for format in FORMATS {
        for recorded in [false, true] {
            assert!(world(compiler, format).holds(recorded), "{format}, recorded {recorded}");
            // A launch that steps over nothing.
            kernels::plant(Plant::OneStride);
            caught += usize::from(!world(compiler, format).holds(recorded));
            kernels::plant(Plant::Nothing);
        }
    }
    assert_eq!(caught, 2 * FORMATS.len());
    assert_eq!(fake.violations(), 0, "{}", fake.last_violation());
}

/// Attention from slices of a buffer to slices of another, in 16 bits, by calls and from a recording: queries come back in their places, and what
/// is between them stays.
#[test]
fn attention_reads_and_writes_slices() {
    let (fake, compiler, _turn) = alone();
    fake.reset();
    let mut caught = 0;
    for (recorded, dense) in [(false, false), (true, false), (false, true)] {
        let mut world = world(compiler, FORMATS[0]);
        let mut rows = world.batch();
        rows.chunks_exact_mut(ALL).for_each(|row| row[..Q].fill_with(|| 0x3c00 + (world.random.bits() % 512) as u16));
        world.fused.write(&world.stream, 0, &rows).expect("a copy");
        world.out.fill(&world.stream, 0, world.out.len(), 0xff).expect("ones");
        world.stream.synchronize().expect("the end");
        let [keys, values] = [Q, Q + KV].map(|at| side(&world.fused, at, ROWS).expect("slices"));
        let of_queries = Rows::of_tokens(SEQS, GROUP * KV_HEADS, DIM, ALL);
        let query = side(&world.fused, 0, of_queries).expect("queries");
        // The control: outputs one after the other.
        let to = if dense { Rows::dense(SEQS, GROUP * KV_HEADS, DIM) } else { of_queries };
        let out = Tensor::rows_of(&world.out, 0, Element::F16, to).expect("outputs");
        let chunks = world.ids.map(|sequence| Chunk { sequence, tokens: 1 });
        let graph = recorded.then(|| {
            let io = LayerIo { keys, values, query, out };
            world.cache.record(SEQS, &[io; LAYERS], Policy::Packed).expect("a recording")
        });
        let mut step = world.cache.begin_with(&chunks, Policy::Packed).expect("a step");
        match &graph {
            Some(graph) => step.replay(graph).expect("a replay"),
            None => (0..LAYERS).for_each(|layer| {
                step.append_device(layer, keys, values).expect("rows");
                step.attend_device(layer, query, out).expect("attention");
            }),
        }
        step.finish().expect("the end");
        world.cache.synchronize().expect("the end");
        let mut found = vec![0u16; SEQS * ALL];
        world.out.read(&world.stream, 0, &mut found).expect("outputs");
        let same = |(row, found): (&[u16], &[u16])| row[..Q] == found[..Q] && found[Q..].iter().all(|x| *x == 0xffff);
        // Behind the last row nothing was written either way.
        let mut pairs = rows.chunks_exact(ALL).zip(found.chunks_exact(ALL));
        let all = pairs.by_ref().all(same);
        assert_eq!(all, !dense, "recorded {recorded}");
        caught += usize::from(!all);
    }
    assert_eq!(caught, 1);
    assert_eq!(fake.violations(), 0, "{}", fake.last_violation());
}

/// Longer chunks beside a single token, and drafts, which do not go by way of the host.
const CHUNKS: [[usize; 3]; 2] = [[2 * BLOCK + 3, 1, BLOCK - 1], [3, 1, 8]];

/// What a cache holds and says after steps of chunks and single tokens, in which blocks fill: outputs, certificates, originals.
type Said = (Vec<f32>, Vec<f64>, Vec<Vec<u16>>);

/// Rows of such steps, from the host (`None`) or from slices of a buffer, with outputs of that type.
fn chunked(compiler: &Compiler, format: &str, tokens: [usize; 3], answers: Option<Element>, shifted: bool) -> Said {
    let mut world = world(compiler, format);
    let heads = GROUP * KV_HEADS;
    let all: usize = tokens.iter().sum();
    let gpu = Gpu::open(0).expect("the fake");
    let [fused, back] = [2 * all * ALL, 4 * all * ALL].map(|bytes| DeviceBuffer::new(&gpu, bytes).expect("memory"));
    let chunks: Vec<Chunk> = world.ids.iter().zip(tokens).map(|(id, tokens)| Chunk { sequence: *id, tokens }).collect();
    let (mut outputs, mut arith) = (Vec::new(), Vec::new());
    for _ in 0..if tokens == CHUNKS[1] { 7 } else { 2 } {
        let rows: Vec<u16> = (0..all * ALL).map(|_| 0x3c00 + (world.random.bits() % 512) as u16).collect();
        let slice = |first: usize, width: usize| -> Vec<f32> {
            rows.chunks_exact(ALL).flat_map(|row| &row[first..first + width]).map(|x| Dtype::F16.decode16(*x)).collect()
        };
        let mut step = world.cache.begin_with(&chunks, Policy::Packed).expect("a step");
        for layer in 0..LAYERS {
            let mut certificates = vec![Certificate::UNCERTIFIED; all * heads];
            match answers {
                None => {
                    step.append(layer, &slice(Q, KV), &slice(Q + KV, KV)).expect("rows");
                    step.attend(layer, &slice(0, Q)).expect("attention");
                    let mut out = vec![f32::NAN; all * Q];
                    step.outputs(layer, &mut out, &mut certificates).expect("outputs");
                    outputs.extend(out);
                }
                Some(element) => {
                    fused.write(&world.stream, 0, &rows).expect("a copy");
                    back.fill(&world.stream, 0, back.len(), 0xff).expect("ones");
                    world.stream.synchronize().expect("the end");
                    let of = |first, heads| side(&fused, first, Rows::of_tokens(all, heads, DIM, ALL)).expect("slices");
                    let place = Q + if shifted { DIM } else { 0 };
                    step.append_device(layer, of(place, KV_HEADS), of(Q + KV, KV_HEADS)).expect("rows");
                    let to = Rows { stride: DIM + 8, head_stride: all * (DIM + 8), ..Rows::dense(all, heads, DIM) };
                    let to = Tensor::rows_of(&back, 0, element, to).expect("outputs");
                    step.attend_device(layer, of(0, heads), to).expect("attention");
                    step.certificates(layer, &mut certificates).expect("certificates");
                    outputs.extend(apart(&world.stream, &back, element, [all, heads]));
                }
            }
            arith.extend(certificates.iter().map(|c| c.e_arith));
        }
        step.finish().expect("the end");
    }
    world.cache.synchronize().expect("the end");
    let sides = (0..LAYERS * KV_HEADS * 2).map(|i| (i % LAYERS, i / LAYERS % KV_HEADS, i / LAYERS / KV_HEADS));
    let of = |id| sides.clone().map(move |(layer, head, of)| (id, layer, head, [Side::Key, Side::Value][of]));
    let originals = world.ids.iter().flat_map(of);
    let originals = originals
        .map(|(id, layer, head, of)| world.cache.originals(*id, layer, head, of).expect("originals"))
        .collect();
    (outputs, arith, originals)
}

/// Outputs out of a buffer with heads outside tokens, of which nothing else was written.
fn apart(stream: &GpuStream, buffer: &DeviceBuffer, element: Element, [tokens, heads]: [usize; 2]) -> Vec<f32> {
    let row = DIM + 8;
    let mut bytes = vec![0u8; tokens * heads * row * element.bytes()];
    buffer.read(stream, 0, &mut bytes).expect("outputs");
    let half = |b: &[u8]| u16::from_le_bytes([b[0], b[1]]);
    let number = |b: &[u8]| match element {
        Element::F32 => f32::from_le_bytes([b[0], b[1], b[2], b[3]]),
        Element::F16 => Dtype::F16.decode16(half(b)),
        Element::Bf16 => Dtype::Bf16.decode16(half(b)),
    };
    let each: Vec<&[u8]> = bytes.chunks_exact(element.bytes()).collect();
    let at = |i: usize| i % heads * tokens * row + i / heads * row;
    assert!((0..tokens * heads).all(|i| each[at(i) + DIM..at(i) + row].iter().all(|x| x.iter().all(|b| *b == 0xff))));
    (0..tokens * heads).flat_map(|i| each[at(i)..at(i) + DIM].iter().map(|b| number(b)).collect::<Vec<_>>()).collect()
}

/// Chunks from device memory are chunks from the host, in every type of outputs, and bounds know of what was rounded.
#[test]
fn chunks_come_from_device_memory() {
    let (fake, compiler, _turn) = alone();
    fake.reset();
    for (format, tokens) in FORMATS.into_iter().flat_map(|format| CHUNKS.map(|tokens| (format, tokens))) {
        let (outputs, arith, originals) = chunked(compiler, format, tokens, None, false);
        for element in [Element::F32, Element::F16, Element::Bf16] {
            let (found, bounds, kept) = chunked(compiler, format, tokens, Some(element), false);
            let rounded = |x: f32| match element {
                Element::F32 => x,
                Element::F16 => Dtype::F16.decode16(Dtype::F16.encode16(x)),
                Element::Bf16 => Dtype::Bf16.decode16(Dtype::Bf16.encode16(x)),
            };
            assert!(outputs.iter().zip(&found).all(|(x, y)| rounded(*x) == *y), "{format} {element:?}");
            assert!(kept == originals);
            for ((before, after), (a, b)) in outputs
                .chunks(DIM)
                .zip(found.chunks(DIM))
                .zip(arith.iter().zip(&bounds))
                .filter(|(_, (a, _))| a.is_finite())
            {
                let lost = before.iter().zip(after).map(|(x, y)| f64::from(x - y).powi(2)).sum::<f64>().sqrt();
                // The kernels of this driver count nothing of what they round, and they round queries, which halves hold; and outputs of drafts.
                let theirs = element == Element::Bf16 || tokens == CHUNKS[1];
                assert!(b - a >= lost * 0.999_999 || theirs && *b == *a, "{format} {element:?}: {a} {b} {lost}");
            }
        }
        // The control: keys of the slices beside them.
        let (_, _, other) = chunked(compiler, format, tokens, Some(Element::F32), true);
        assert!(other != originals, "{format}: other rows were not seen");
    }
    assert_eq!(fake.violations(), 0, "{}", fake.last_violation());
}

#[test]
fn what_chunks_cannot_be_is_refused() {
    let (fake, compiler, _turn) = alone();
    fake.reset();
    let mut world = world(compiler, FORMATS[0]);
    const LONG: usize = 9;
    let rows = vec![0x7bffu16; LONG * ALL];
    let gpu = Gpu::open(0).expect("the fake");
    let [fused, out] = [2, 4].map(|size| DeviceBuffer::new(&gpu, size * LONG * ALL).expect("memory"));
    fused.write(&world.stream, 0, &rows).expect("a copy");
    world.stream.synchronize().expect("the end");
    let chunk = Chunk { sequence: world.ids[0], tokens: LONG };
    let mut step = world.cache.begin(&[chunk]).expect("a step");
    let of = |first, heads| side(&fused, first, Rows::of_tokens(LONG, heads, DIM, ALL)).expect("slices");
    let other = side(&fused, 0, Rows::of_tokens(LONG, 2 * KV_HEADS, DIM / 2, ALL)).expect("slices");
    let refused = step.append_device(0, of(Q, KV_HEADS), other);
    assert!(matches!(refused, Err(Error::Gpu(CudaError::BadArgument { argument: "values", .. }))), "{refused:?}");
    step.append_device(0, of(Q, KV_HEADS), of(Q + KV, KV_HEADS)).expect("rows");
    let out = Tensor::of(&out, 0, Element::F32, LONG * Q).expect("outputs");
    let refused = step.attend_device(0, of(0, GROUP * KV_HEADS - 1), out);
    assert!(matches!(refused, Err(Error::Shape { argument: "query", .. })), "{refused:?}");
    step.attend_device(0, of(0, GROUP * KV_HEADS), out).expect("attention");
    drop(step);
    // A row that is no number is named at once.
    let mut bad = rows.clone();
    bad[ALL + Q + 5] = 0x7c00;
    fused.write(&world.stream, 0, &bad).expect("a copy");
    world.stream.synchronize().expect("the end");
    let mut step = world.cache.begin(&[chunk]).expect("a step");
    let refused = step.append_device(0, of(Q, KV_HEADS), of(Q + KV, KV_HEADS));
    assert!(matches!(refused, Err(Error::NonFinite { argument: "keys", token: 1, element: 5 })), "{refused:?}");
    drop(step);
    assert_eq!(fake.violations(), 0, "{}", fake.last_violation());
}

#[test]
fn what_kernels_cannot_step_over_is_refused() {
    let (fake, compiler, _turn) = alone();
    fake.reset();
    let mut world = world(compiler, FORMATS[0]);
    let wrong = [
        Rows { stride: KV - 8, ..ROWS },
        Rows { stride: ALL + 4, ..ROWS },
        Rows { stride: 1 << 32, ..ROWS },
        Rows { head_stride: DIM - 8, ..ROWS },
        Rows { head_stride: DIM + 4, ..ROWS },
        Rows { head_stride: 1 << 32, ..ROWS },
    ];
    for rows in wrong {
        let refused = side(&world.fused, 0, rows);
        assert!(matches!(refused, Err(CudaError::BadArgument { argument: "tensor", .. })), "{rows:?}: {refused:?}");
    }
    let beyond = side(&world.fused, ALL - KV + 8, ROWS);
    assert!(matches!(beyond, Err(CudaError::OutOfRange { .. })), "{beyond:?}");
    let odd = side(&world.fused, 4, Rows { count: 2, ..ROWS });
    assert!(matches!(odd, Err(CudaError::Misaligned { .. })), "{odd:?}");
    world.batch();
    let rows = |first, rows| side(&world.fused, first, rows).expect("slices");
    let chunks = world.ids.map(|sequence| Chunk { sequence, tokens: 1 });
    let mut step = world.cache.begin(&chunks).expect("a step");
    let keys = rows(Q, ROWS);
    // As many elements in rows of other heads, and fewer rows.
    let narrow = rows(Q, Rows::of_tokens(2 * SEQS, KV_HEADS, DIM / 2, KV));
    let refused = step.append_device(0, keys, narrow);
    let named = |error: &Error| matches!(error, Error::Gpu(CudaError::BadArgument { argument: "values", .. }));
    assert!(refused.as_ref().is_err_and(named), "{refused:?}");
    let few = step.append_device(0, rows(Q, Rows { count: SEQS - 1, ..ROWS }), keys);
    assert!(matches!(few, Err(Error::Shape { argument: "keys", .. })), "{few:?}");
    step.append_device(0, keys, rows(Q + KV, ROWS)).expect("rows");
    let strides = Strides { token: ALL as u32, head: DIM as u32 };
    let told = [Q, Q + KV].map(|first| (world.fused.address() + 2 * first as u64, strides));
    assert_eq!(kernels::appended(), told);
    // Rows of other heads for attention, too.
    let plain = Tensor::of(&world.out, 0, Element::F32, SEQS * Q).expect("outputs");
    let other = Rows::of_tokens(SEQS, KV_HEADS, GROUP * DIM, ALL);
    let other = Tensor::rows_of(&world.fused, 0, Element::F16, other).expect("queries");
    for (argument, query, out) in [("query", other, plain), ("out", plain, other)] {
        let refused = step.attend_device(0, query, out);
        let named = |error: &Error| matches!(error, Error::Gpu(CudaError::BadArgument { argument: found, .. }) if *found == argument);
        assert!(refused.as_ref().is_err_and(named), "{refused:?}");
        let io = LayerIo { keys, values: keys, query, out };
        let refused = step.cache().record(SEQS, &[io; LAYERS], Policy::Packed).map(|_| ());
        assert!(refused.as_ref().is_err_and(named), "{refused:?}");
    }
    // What began is done again.
    step.attend_device(0, plain, plain).expect("attention");
    drop(step);
    assert_eq!(fake.violations(), 0, "{}", fake.last_violation());
}
