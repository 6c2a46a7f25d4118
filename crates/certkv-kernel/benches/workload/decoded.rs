//! Spherical keys decoded before their products: what a kernel does that has none for their codes. Ablation A1 of the source paper.
use super::{DIM, HEADS, Head, How, Workload};
use certkv_codec::spherical::Spherical;
use certkv_core::layout::read_code;
use certkv_core::{Dtype, RecordLayout};
use certkv_kernel::Workspace;

/// Numbers of a decoded block of 64 tokens.
pub(super) const ROWS: usize = 64 * DIM;

/// Directions in single precision, `[group][word][channel]`, and room for what is decoded.
pub(crate) struct Decoder {
    words: Vec<f32>,
    rows: Vec<u16>,
    indices: Vec<u8>,
}

impl Decoder {
    /// For the keys of `load`, so many blocks at a time.
    pub(crate) fn new(load: &Workload, blocks: usize) -> Self {
        let books = load.books.as_ref().expect("spherical keys");
        assert_eq!(load.layout.tokens() * DIM, ROWS, "blocks of 64 tokens");
        let words = books.books().iter().flat_map(|book| book.words()).map(|x| *x as f32).collect();
        Self { words, rows: vec![0; blocks * ROWS], indices: vec![0; ROWS] }
    }

    /// Keys of the blocks of `records`, as halves.
    fn decode(&mut self, records: &[u8], layout: &RecordLayout, books: &Spherical) {
        let groups = DIM / books.tier().group();
        let Self { words, rows, indices } = self;
        for (record, rows) in records.chunks_exact(layout.bytes).zip(rows.chunks_exact_mut(ROWS)) {
            let (radii, codes) = record[layout.key_codes.clone()].split_at(layout.tokens() * groups);
            unpack(codes, books.tier().bits().into(), radii.len(), indices);
            let codes = Codes { radii, indices, scales: &record[layout.key_scales.clone()], words };
            match books.tier().group() {
                16 => codes.decode::<16>(rows),
                32 => codes.decode::<32>(rows),
                width => panic!("groups of {width} channels"),
            }
        }
    }
}

/// What a block is decoded from.
struct Codes<'a> {
    radii: &'a [u8],
    indices: &'a [u8],
    scales: &'a [u8],
    words: &'a [f32],
}

impl Codes<'_> {
    /// Eight numbers at a time where the machine rounds so many.
    fn decode<const WIDTH: usize>(&self, rows: &mut [u16]) {
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx") && is_x86_feature_detected!("f16c") {
            use core::arch::x86_64::*;
            #[target_feature(enable = "avx,f16c")]
            fn wide<const WIDTH: usize>(codes: &Codes<'_>, rows: &mut [u16]) {
                codes.each::<WIDTH>(rows, |from, by, out| {
                    for (from, out) in from.as_chunks::<8>().0.iter().zip(out.as_chunks_mut::<8>().0) {
                        // SAFETY: eight numbers each, and the features are there.
                        unsafe {
                            let product = _mm256_mul_ps(_mm256_loadu_ps(from.as_ptr()), _mm256_set1_ps(by));
                            _mm_storeu_si128(out.as_mut_ptr().cast(), _mm256_cvtps_ph::<0>(product));
                        }
                    }
                });
            }
            // SAFETY: the features are there.
            return unsafe { wide::<WIDTH>(self, rows) };
        }
        self.each::<WIDTH>(rows, |from, by, out| {
            out.iter_mut().zip(from).for_each(|(out, x)| *out = Dtype::F16.encode16(x * by));
        });
    }

    /// Has `put` write every group of every token.
    #[inline(always)]
    fn each<const WIDTH: usize>(&self, rows: &mut [u16], put: impl Fn(&[f32; WIDTH], f32, &mut [u16; WIDTH])) {
        let (groups, words) = (DIM / WIDTH, self.words.as_chunks::<WIDTH>().0);
        let tokens = self.radii.len() / groups;
        let rows = rows.as_chunks_mut::<WIDTH>().0;
        let scale = |g: usize| Dtype::F16.decode16(u16::from_le_bytes([self.scales[2 * g], self.scales[2 * g + 1]]));
        let scales: [f32; DIM / 16] = core::array::from_fn(|g| if g < groups { scale(g) } else { 0.0 });
        for t in 0..tokens {
            for g in 0..groups {
                let at = g * tokens + t;
                let word = g * (words.len() / groups) + usize::from(self.indices[at]);
                put(&words[word], scales[g] * f32::from(self.radii[at]), &mut rows[t * groups + g]);
            }
        }
    }
}

/// Codes of `bits` bits, a byte each.
fn unpack(section: &[u8], bits: usize, count: usize, out: &mut [u8]) {
    let out = &mut out[..count];
    out.fill(0);
    for p in certkv_core::layout::planes(bits, count) {
        let (bytes, mask) = (&section[p.offset..p.offset + p.bytes], (1u8 << p.width) - 1);
        for (j, out) in out.chunks_exact_mut(p.bytes).enumerate() {
            let down = p.width * j;
            out.iter_mut().zip(bytes).for_each(|(code, byte)| *code |= (byte >> down & mask) << p.shift);
        }
    }
    debug_assert!((0..count).all(|i| read_code(section, bits, count, i) == out[i]));
}

impl Workload {
    /// One KV head's step without certificates, its keys decoded first, as many blocks at a time as `decoder` has room for.
    pub(crate) fn step_decoded(&mut self, head: usize, work: &mut Workspace, decoder: &mut Decoder) {
        let Self { kernel, layout, records, first, blocks, queries, books, tasks } = self;
        let (bytes, group, books) = (layout.bytes, HEADS.0 / HEADS.1 * DIM, books.as_ref().expect("spherical keys"));
        let records = &records[*first..][head * *blocks * bytes..(head + 1) * *blocks * bytes];
        let q = &queries[head * group..(head + 1) * group];
        let (some, task) = (decoder.rows.len() / ROWS, &mut tasks[head]);
        task.partial.clear();
        for records in records.chunks(some * bytes) {
            decoder.decode(records, layout, books);
            let source = Head { records, bytes, skip: false, books: Some(books), decoded: &decoder.rows };
            kernel.attend(q, &source, 0..records.len() / bytes, None, work, &mut task.split, None).expect("a step");
            task.partial.merge(&task.split).expect("one shape");
        }
    }

    /// How far a head's outputs from decoded keys are from those from codes, as a share of their norm.
    pub(crate) fn apart(&mut self, head: usize, work: &mut Workspace, decoder: &mut Decoder) -> f64 {
        self.step_head(head, work, How::Bare);
        let heads = self.kernel.heads();
        let outputs = |load: &Self| {
            let mut all = vec![0.0; heads * DIM];
            let rows = all.chunks_exact_mut(DIM).enumerate();
            rows.for_each(|(h, out)| load.tasks[head].partial.finish(h, out).expect("an output"));
            all
        };
        let direct = outputs(self);
        self.step_decoded(head, work, decoder);
        let square = |x: &mut dyn Iterator<Item = f32>| x.map(|x| f64::from(x) * f64::from(x)).sum::<f64>();
        let off = square(&mut outputs(self).iter().zip(&direct).map(|(a, b)| a - b));
        (off / square(&mut direct.iter().copied())).sqrt()
    }
}
