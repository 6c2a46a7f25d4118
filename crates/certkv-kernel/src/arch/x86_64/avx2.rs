//! AVX2 with FMA and F16C.
//!
//! There is no byte product that cannot saturate, so codes are widened to 16 bits and multiplied with 16-bit digits by
//! `vpmaddwd`: one line of 64 codes (16 outputs x 4) takes four products per head, and neighbouring sums are added once
//! at the end. The float parts are the plain ones, compiled with wider registers.
use crate::arch::Ops;
use crate::arch::generic::values::{Plan, Slack};
use crate::arch::generic::{
    keys as plain_keys, softmax as plain_softmax, strip as plain_strip, unpack as plain_unpack,
};
use crate::block::{Rows, Side};
use crate::certify::{Sums, tiles_body};
use crate::directions::{DirectionCodes, Directions, fill_body, score_body};
use crate::line::{Codes, Line, madd};
use crate::masses::{BlockTile, HeadTile};
use crate::page_scale::unpack_floats_body;
use crate::prefill::{STRETCH, Stretch, Strip};
use crate::query::{
    Cursor, Digits, HEADS, KeyCodes, Levels, Scaling, Shape, Softmax, ValueCodes, ValueScratch, ValueSlack, X_STRIDE,
};
use crate::stage::{RawBlocks, RawHead, Shared, seal_body};
use certkv_codec::spherical::Spherical;
use certkv_core::Dtype;
use core::arch::x86_64::*;

/// Signed words hold digits up to this.
const LEVELS: f32 = 32767.0;

static OPS: Ops = Ops {
    weight_levels: LEVELS,
    channel_digits,
    score_codes,
    score_rows,
    fill_directions,
    score_directions,
    unpack_floats,
    weigh,
    value_codes,
    value_rows,
    certify_tiles,
    seal,
    finish: |_| {},
    own: |_| {},
    strip,
    unpack_stretch,
};

/// The functions, if the machine has every feature they are compiled for. They are reachable only through this.
pub(crate) fn ops() -> Option<&'static Ops> {
    let all = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c");
    all.then_some(&OPS)
}

/// Sixteen 16-bit elements as f32.
///
/// # Safety
/// 32 bytes are readable at `p`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn load16(p: *const u16, store: Dtype) -> Line {
    let mut out = Line::ZERO;
    for half in 0..2 {
        // SAFETY: the caller vouches for 32 readable bytes; `out` is 64 aligned bytes.
        unsafe {
            let bits = _mm_loadu_si128(p.add(8 * half).cast());
            let x = match store {
                Dtype::Bf16 => _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(bits))),
                _ => _mm256_cvtph_ps(bits),
            };
            _mm256_store_ps(out.0.as_mut_ptr().add(8 * half), x);
        }
    }
    out
}

fn channel_digits(q: &[Line], scales: &[u8], meta: Dtype, shape: Shape, out: &mut Digits, _: &mut Cursor) {
    assert!(scales.len() >= 2 * shape.dim * meta.bytes() && shape.dim <= 256);
    /// # Safety
    /// The assert above.
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn wide(q: &[Line], scales: &[u8], meta: Dtype, shape: Shape, out: &mut Digits) {
        let mut decoded = [[Line::ZERO; 16]; 2];
        for (i, part) in decoded.iter_mut().enumerate() {
            for l in 0..shape.dim_lines() {
                let at = i * shape.dim + 16 * l;
                part[l] = if meta == Dtype::F32 {
                    let mut line = Line::ZERO;
                    for (j, x) in line.0.iter_mut().enumerate() {
                        *x = plain_keys::meta_at(scales, meta, at + j);
                    }
                    line
                } else {
                    // SAFETY: 16 elements from `at` on lie inside the scales.
                    unsafe { load16(scales.as_ptr().add(2 * at).cast(), meta) }
                };
            }
        }
        plain_keys::channel_heads(q, &decoded, shape, out);
    }
    // SAFETY: the table is handed out only where the features exist; the assert gives the lengths.
    unsafe { wide(q, scales, meta, shape, out) }
}

/// `sum_i (code_i - half) digit_i` for 16 outputs and `H` heads: `lines` lines `stride` bytes apart, four words of digits
/// each, heads `head_stride` words apart.
///
/// # Safety
/// `lines` lines of 64 bytes at `codes`, `4 lines` words at the digits of every head.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn products<const H: usize>(
    codes: *const u8,
    stride: usize,
    lines: usize,
    digits: *const i16,
    head_stride: usize,
    half: i16,
) -> [[i32; 16]; H] {
    let mut acc = [[_mm256_setzero_si256(); 4]; H];
    let half = _mm256_set1_epi16(half);
    for i in 0..lines {
        // SAFETY: as the function's.
        unsafe {
            let mut four = [_mm256_setzero_si256(); H];
            for h in 0..H {
                four[h] = _mm256_set1_epi64x(digits.add(h * head_stride + 4 * i).cast::<i64>().read_unaligned());
            }
            for j in 0..4 {
                let bytes = _mm_loadu_si128(codes.add(i * stride + 16 * j).cast());
                let code = _mm256_sub_epi16(_mm256_cvtepu8_epi16(bytes), half);
                for h in 0..H {
                    acc[h][j] = _mm256_add_epi32(acc[h][j], _mm256_madd_epi16(code, four[h]));
                }
            }
        }
    }
    let mut out = [[0; 16]; H];
    for h in 0..H {
        for j in 0..2 {
            // Neighbouring sums belong together; the 128-bit halves come out interleaved.
            let both = _mm256_hadd_epi32(acc[h][2 * j], acc[h][2 * j + 1]);
            let ordered = _mm256_permute4x64_epi64::<0xd8>(both);
            // SAFETY: eight of sixteen elements.
            unsafe { _mm256_storeu_si256(out[h].as_mut_ptr().add(8 * j).cast(), ordered) };
        }
    }
    out
}

/// [`products`] for two heads at a time, into `out[head]`.
///
/// # Safety
/// As [`products`], for `heads` heads.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn all_heads(
    codes: *const u8,
    stride: usize,
    lines: usize,
    digits: (*const i16, usize),
    half: i16,
    heads: usize,
    out: &mut [[i32; 16]; HEADS],
) {
    let mut h = 0;
    while h < heads {
        // SAFETY: as the function's; `h` plus the width of each call is at most `heads`.
        unsafe {
            let at = digits.0.add(h * digits.1);
            if h + 2 <= heads {
                let two = products::<2>(codes, stride, lines, at, digits.1, half);
                (out[h], out[h + 1]) = (two[0], two[1]);
            } else {
                out[h] = products::<1>(codes, stride, lines, at, digits.1, half)[0];
            }
        }
        h += 2;
    }
}

/// The plain unpacking, and levels by byte shuffles.
#[target_feature(enable = "avx2,fma,f16c")]
fn unpack(section: &[u8], bits: usize, count: usize, levels: Option<&Levels>, out: &mut [Codes]) {
    match levels {
        None => plain_unpack::unpack::<false>(section, bits, count, out, |codes| codes),
        Some(levels) if bits <= 4 => {
            plain_unpack::unpack::<false>(section, bits, count, out, |codes| look_up::<1>(levels, codes))
        }
        Some(levels) => plain_unpack::unpack::<false>(section, bits, count, out, |codes| look_up::<4>(levels, codes)),
    }
}

/// What codes below `16 N` stand for.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn look_up<const N: usize>(levels: &Levels, mut codes: plain_unpack::Bytes) -> plain_unpack::Bytes {
    for half in codes.as_chunks_mut::<32>().0 {
        // SAFETY: 16 of the 64 bytes of the table; 32 bytes of codes.
        unsafe {
            let code = _mm256_loadu_si256(half.as_ptr().cast());
            let mut found = _mm256_setzero_si256();
            for n in 0..N {
                let table = _mm256_broadcastsi128_si256(_mm_loadu_si128(levels.as_ptr().add(16 * n).cast()));
                // A byte above 127 finds 0: those of other parts of the table are raised there.
                let own = _mm256_sub_epi8(code, _mm256_set1_epi8(16 * n as i8));
                let own = _mm256_adds_epu8(own, _mm256_set1_epi8(0x70));
                found = _mm256_or_si256(found, _mm256_shuffle_epi8(table, own));
            }
            _mm256_storeu_si256(half.as_mut_ptr().cast(), found);
        }
    }
    codes
}

fn score_codes(k: &KeyCodes<'_>, digits: &Digits, scratch: &mut [Codes], shape: Shape, x: &mut [Line], _: &mut Cursor) {
    let count = shape.tokens * shape.dim;
    assert!(k.fits(shape) && scratch.len() * 64 >= count);
    assert!(digits.words.len() >= shape.heads * 256 && shape.dim <= 256 && x.len() >= shape.heads * X_STRIDE);
    /// # Safety
    /// The asserts above.
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn wide(k: &KeyCodes<'_>, digits: &Digits, scratch: &mut [Codes], shape: Shape, x: &mut [Line]) {
        let codes: *const u8 = match k.scaling {
            Scaling::Parts { parts, .. } => {
                parts.unpack(k.section, shape.tokens, scratch, |s, b, n, l, out| unpack(s, b, n, l, out));
                scratch.as_ptr().cast()
            }
            _ if k.bits == 8 => k.section.as_ptr(),
            _ => {
                unpack(k.section, k.bits, shape.tokens * shape.dim, k.levels, scratch);
                scratch.as_ptr().cast()
            }
        };
        let half = k.half() as i16;
        let mut sums = [[0; 16]; HEADS];
        for tile in 0..shape.tokens / 16 {
            for h in 0..shape.heads {
                x[h * X_STRIDE + tile] = Line([k.add[h]; 16]);
            }
            for g in 0..k.groups(shape.dim) {
                let run = k.run(g, shape);
                // SAFETY: the group's quads of the tile lie inside the codes, its channels inside the heads' words, its
                // tokens inside the scales.
                let scale = unsafe {
                    let from = codes.add(run.line(tile, run.quads.start) * 64);
                    let words = (digits.words.as_ptr().add(4 * run.quads.start), 256);
                    all_heads(from, 64, run.quads.len(), words, half, shape.heads, &mut sums);
                    match k.scales() {
                        None => Line([1.0; 16]),
                        Some(scales) => {
                            load16(scales.as_ptr().add(2 * (g * shape.tokens + 16 * tile)).cast(), Dtype::F16)
                        }
                    }
                };
                for h in 0..shape.heads {
                    let logit = &mut x[h * X_STRIDE + tile].0;
                    for i in 0..16 {
                        logit[i] = madd(sums[h][i] as f32, scale.0[i] * k.mul[h], logit[i]);
                    }
                }
            }
        }
    }
    // SAFETY: the table is handed out only where the features exist; the asserts give the lengths.
    unsafe { wide(k, digits, scratch, shape, x) }
}

fn score_rows(side: &Side<'_>, q: &[Line], mul: f32, shape: Shape, x: &mut [Line]) {
    assert!(side.rows.len() >= side.n * shape.dim && q.len() >= shape.heads * shape.dim_lines() && shape.dim <= 256);
    /// # Safety
    /// The assert above.
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn wide(side: &Side<'_>, q: &[Line], mul: f32, shape: Shape, x: &mut [Line]) {
        let n = shape.dim_lines();
        let mut k = [Line::ZERO; 16];
        for t in 0..side.n {
            for (l, line) in k[..n].iter_mut().enumerate() {
                // SAFETY: channels 16 l .. 16 l + 16 of row `t < n`.
                *line = unsafe { load16(side.rows.as_ptr().add(t * shape.dim + 16 * l), side.store) };
            }
            for h in 0..shape.heads {
                let mut acc = Line::ZERO;
                for l in 0..n {
                    acc.fma(&q[h * n + l], &k[l]);
                }
                x[h * X_STRIDE + t / 16].0[t % 16] = acc.sum() * mul;
            }
        }
    }
    // SAFETY: the table is handed out only where the features exist; the assert gives the lengths.
    unsafe { wide(side, q, mul, shape, x) }
}

fn fill_directions(books: &Spherical, q: &[Line], unit: f32, shape: Shape, work: &mut Directions) {
    /// # Safety
    /// The features are there.
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn wide(books: &Spherical, q: &[Line], unit: f32, shape: Shape, work: &mut Directions) {
        fill_body::<true>(books, q, unit, shape, work);
    }
    // SAFETY: reachable only through `ops`, which looked for the features.
    unsafe { wide(books, q, unit, shape, work) }
}

fn score_directions(k: &DirectionCodes<'_>, work: &mut Directions, shape: Shape, x: &mut [Line], _: &mut Cursor) {
    /// # Safety
    /// The features are there.
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn wide(k: &DirectionCodes<'_>, work: &mut Directions, shape: Shape, x: &mut [Line]) {
        score_body::<true>(k, work, shape, x);
    }
    // SAFETY: reachable only through `ops`, which looked for the features.
    unsafe { wide(k, work, shape, x) }
}

fn unpack_floats(codes: &[u8], e4m3: bool, out: &mut [u16], _: &mut Cursor) {
    #[target_feature(enable = "avx2")]
    fn wide(codes: &[u8], e4m3: bool, out: &mut [u16]) {
        unpack_floats_body(codes, e4m3, out);
    }
    // SAFETY: the table is handed out only where the features exist.
    unsafe { wide(codes, e4m3, out) }
}

fn weigh(x: &mut [Line], n: usize, shape: Shape, s: &mut Softmax) {
    #[target_feature(enable = "avx2,fma,f16c")]
    fn wide(x: &mut [Line], n: usize, shape: Shape, s: &mut Softmax) {
        plain_softmax::weigh(x, n, shape, s);
    }
    // SAFETY: the table is handed out only where the features exist.
    unsafe { wide(x, n, shape, s) }
}

fn value_codes(
    v: &ValueCodes<'_>,
    w: &[Line],
    s: &Softmax,
    shape: Shape,
    scratch: &mut ValueScratch,
    o: &mut [Line],
    _: &mut Cursor,
) -> ValueSlack {
    let count = shape.tokens * shape.dim;
    assert!(v.section.len() >= count * v.bits / 8 && scratch.codes.len() * 64 >= count);
    assert!(v.scales.len() >= v.scale_bytes(shape) && scratch.words.len() >= HEADS * 64);
    /// # Safety
    /// The asserts above.
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn wide(
        v: &ValueCodes<'_>,
        w: &[Line],
        s: &Softmax,
        shape: Shape,
        scratch: &mut ValueScratch,
        o: &mut [Line],
    ) -> ValueSlack {
        let (dim, tokens, lines) = (shape.dim, shape.tokens, shape.dim_lines());
        let codes: *const u8 = if v.bits == 8 {
            v.section.as_ptr()
        } else {
            unpack(v.section, v.bits, tokens * dim, v.levels, &mut scratch.codes);
            scratch.codes.as_ptr().cast()
        };
        let groups = dim / v.group;
        let (mut slack, mut sums) = (Slack::default(), [[0; 16]; HEADS]);
        for g in 0..groups {
            let mut scales = [[Line::ZERO; 4]; 2];
            for (i, part) in scales.iter_mut().enumerate() {
                if i == 1 && !v.offsets {
                    break;
                }
                for l in 0..tokens / 16 {
                    // SAFETY: 16 tokens of the group's sigma, or of z where there is one, lie inside the scales.
                    part[l] = unsafe {
                        let at = (i * groups + g) * tokens + 16 * l;
                        load16(v.scales.as_ptr().add(2 * at).cast(), Dtype::F16)
                    };
                }
            }
            if !v.offsets {
                // Without offsets: what makes the middle 0.
                scales[1] = scales[0];
                scales[1].iter_mut().for_each(|line| line.scale(-(v.half() as f32)));
            }
            let plan = Plan { group: g, levels: LEVELS, half: v.half() as f32 };
            let units = plan.digits(&mut scales, w, s, shape, scratch, &mut slack);
            for line in g * v.group / 16..(g + 1) * v.group / 16 {
                // SAFETY: all token quads of 16 channels lie inside the codes; a head has 64 words.
                unsafe {
                    let words = (scratch.words.as_ptr().cast(), 64);
                    let from = codes.add(64 * line);
                    all_heads(from, 4 * dim, tokens / 4, words, v.half() as i16, shape.heads, &mut sums);
                }
                for h in 0..shape.heads {
                    let slot = &mut o[h * lines + line].0;
                    for i in 0..16 {
                        slot[i] = madd(sums[h][i] as f32, units[h], slot[i]);
                    }
                }
            }
        }
        slack.finish(v.group)
    }
    // SAFETY: the table is handed out only where the features exist; the asserts give the lengths.
    unsafe { wide(v, w, s, shape, scratch, o) }
}

fn value_rows(side: &Side<'_>, w: &[Line], shape: Shape, o: &mut [Line]) {
    assert!(side.rows.len() >= side.n * shape.dim && shape.dim <= 256);
    /// # Safety
    /// The assert above.
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn wide(side: &Side<'_>, w: &[Line], shape: Shape, o: &mut [Line]) {
        let n = shape.dim_lines();
        for t in 0..side.n {
            for l in 0..n {
                // SAFETY: channels 16 l .. 16 l + 16 of row `t < n`.
                let v = unsafe { load16(side.rows.as_ptr().add(t * shape.dim + 16 * l), side.store) };
                for h in 0..shape.heads {
                    o[h * n + l].axpy(w[h * X_STRIDE + t / 16].0[t % 16], &v);
                }
            }
        }
    }
    // SAFETY: the table is handed out only where the features exist; the assert gives the lengths.
    unsafe { wide(side, w, shape, o) }
}

fn certify_tiles(b: &[BlockTile], r: &[HeadTile], stride: usize, exponent: f32) -> Sums {
    #[target_feature(enable = "avx2,fma")]
    fn wide(b: &[BlockTile], r: &[HeadTile], stride: usize, exponent: f32) -> Sums {
        tiles_body::<true>(b, r, stride, exponent, |_| {})
    }
    // SAFETY: the table is handed out only where the features exist.
    unsafe { wide(b, r, stride, exponent) }
}

/// [`seal_body`] with wide instructions.
fn seal(b: &RawBlocks, x: &RawHead, k: Shared, r: &mut HeadTile) {
    #[target_feature(enable = "avx2,fma")]
    fn wide(b: &RawBlocks, x: &RawHead, k: Shared, r: &mut HeadTile) {
        seal_body(b, x, k, r);
    }
    // SAFETY: the table is handed out only where the features exist.
    unsafe { wide(b, x, k, r) }
}

fn strip(s: &Stretch, rows: &mut Strip<'_>) {
    #[target_feature(enable = "avx2,fma,f16c")]
    fn wide(s: &Stretch, rows: &mut Strip<'_>) {
        plain_strip::strip(s, rows);
    }
    // SAFETY: the table is handed out only where the features exist.
    unsafe { wide(s, rows) }
}

fn unpack_stretch(keys: Rows<'_>, values: Rows<'_>, store: Dtype, n: usize, at: usize, out: &mut Stretch) {
    let dim = out.dim;
    assert!(keys.len() >= n * dim && values.len() >= n * dim && at + n <= STRETCH && dim <= 256);
    /// # Safety
    /// The assert above.
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn wide(k: *const u16, v: *const u16, store: Dtype, n: usize, at: usize, out: &mut Stretch) {
        let dim = out.dim;
        for t in 0..n {
            for l in 0..dim / 16 {
                // SAFETY: channels 16 l .. 16 l + 16 of row `t < n` of both sides.
                let (key, value) =
                    unsafe { (load16(k.add(t * dim + 16 * l), store), load16(v.add(t * dim + 16 * l), store)) };
                for (c, x) in key.0.into_iter().enumerate() {
                    out.keys[(16 * l + c) * 4 + (at + t) / 16].0[(at + t) % 16] = x;
                }
                out.values[(at + t) * dim / 16 + l] = value;
            }
        }
    }
    // SAFETY: the table is handed out only where the features exist; the assert gives the lengths.
    unsafe { wide(keys.as_ptr(), values.as_ptr(), store, n, at, out) }
}
