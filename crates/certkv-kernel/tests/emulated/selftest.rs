//! What `kernels/emulate/selftest.cu` must report, on the emulator and on a GPU: inputs, sections and their judge.
use half::{bf16, f16};
use std::cmp::Ordering;

/// Threads of the test, and words per section.
pub(crate) const THREADS: usize = 64;
/// Bytes of dynamic shared memory.
pub(crate) const SHARED: u32 = 4096;

/// The twin of `CkvSelftestArgs`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct Args {
    /// Address of `THREADS * SECTIONS.len()` words.
    pub(crate) out: u64,
    /// Address of [`input`].
    pub(crate) input: u64,
    /// Address of `4 + CTAs` zero words.
    pub(crate) counters: u64,
}

/// How far two machines may differ in a section.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Same {
    /// Emulator and GPU agree to the bit.
    Bits,
    /// Both keep the bound that [`judge`] checks, and may differ below it.
    Bound,
}

/// The sections in the order of the kernel.
pub(crate) const SECTIONS: [(&str, Same); 66] = [
    ("identity", Same::Bits),
    ("prmt", Same::Bits),
    ("lop_and_or", Same::Bits),
    ("shfl", Same::Bits),
    ("shfl of 8 bytes", Same::Bits),
    ("shfl_xor", Same::Bits),
    ("shfl_down", Same::Bits),
    ("any", Same::Bits),
    ("ballot", Same::Bits),
    ("warp_sum", Same::Bits),
    ("warp_max", Same::Bits),
    ("sync_threads", Same::Bits),
    ("named_barrier", Same::Bits),
    ("syncwarp", Same::Bits),
    ("mma_f16 0", Same::Bits),
    ("mma_f16 1", Same::Bits),
    ("mma_f16 2", Same::Bits),
    ("mma_f16 3", Same::Bits),
    ("mma_bf16 0", Same::Bits),
    ("mma_bf16 1", Same::Bits),
    ("mma_bf16 2", Same::Bits),
    ("mma_bf16 3", Same::Bits),
    ("mma_f16 rounded 0", Same::Bound),
    ("mma_f16 rounded 1", Same::Bound),
    ("mma_f16 rounded 2", Same::Bound),
    ("mma_f16 rounded 3", Same::Bound),
    ("transpose8x8", Same::Bits),
    ("h2_mul", Same::Bits),
    ("h2_add", Same::Bits),
    ("h2_sub", Same::Bits),
    ("h2_fma", Same::Bits),
    ("h2_abs", Same::Bits),
    ("h2_pack", Same::Bits),
    ("h_lo", Same::Bits),
    ("h_hi", Same::Bits),
    ("h_rn", Same::Bits),
    ("h_ru", Same::Bits),
    ("h_rd", Same::Bits),
    ("h_ru, h_rd at the ends", Same::Bits),
    ("b2_pack", Same::Bits),
    ("b_lo", Same::Bits),
    ("b_hi", Same::Bits),
    ("ex2", Same::Bound),
    ("lg2", Same::Bound),
    ("rcp", Same::Bound),
    ("fma_rn", Same::Bits),
    ("fma_ru", Same::Bits),
    ("add_ru", Same::Bits),
    ("add_rd", Same::Bits),
    ("mul_ru", Same::Bits),
    ("mul_rd", Same::Bits),
    ("div_ru", Same::Bits),
    ("div_rd", Same::Bits),
    ("sqrt_ru", Same::Bits),
    ("sqrt_rn", Same::Bits),
    ("cp_async16, first group", Same::Bits),
    ("cp_async16, second group", Same::Bits),
    ("bulk_load, phase 0", Same::Bits),
    ("bulk_load, phase 1", Same::Bits),
    ("ldg of 4 bytes", Same::Bits),
    ("ldg of 8 bytes", Same::Bits),
    ("ldg of 16 bytes", Same::Bits),
    ("ldg of 1 and 2 bytes", Same::Bits),
    ("ld_stream16", Same::Bits),
    ("atomics", Same::Bits),
    ("merge by the last CTA", Same::Bits),
];

/// Sections that the kernel writes; the last two are read from the counters.
pub(crate) const WRITTEN: usize = SECTIONS.len() - 2;

fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// The input of the kernel: 64 words of each kind, those with edges first. Another seed gives other random parts.
pub(crate) fn input(seed: u64) -> Vec<u32> {
    let mut state = seed;
    let mut words: Vec<u32> = (0..3 * THREADS).map(|_| next(&mut state) as u32).collect();
    let tiny = f32::from_bits(1);
    // (f, g, k): sums, products and quotients at the ends of the range and just beside a rounding boundary.
    let edges: [(f32, f32, f32); 16] = [
        (f32::MAX, f32::MAX, 1.0),
        (f32::MAX, -f32::MAX, -70000.0),
        (-f32::MAX, -f32::MAX, 65519.0),
        (tiny, -tiny, 65520.0),
        (tiny, tiny, tiny),
        (-tiny, 0.5, -tiny),
        (1.0, 2f32.powi(-30), -1.0),
        (1.0, -2f32.powi(-30), 2f32.powi(-24)),
        (-1.0, 2f32.powi(-126), 2f32.powi(-25)),
        (1e-40, 1e-3, -65504.0),
        (1e-30, 1e-30, 1e-39),
        (1e30, -1e30, 1e38),
        (3.0, -3.0, 9.0),
        (65520.0, 3.0, 6e-8),
        (-65504.5, 7.0, -6e-8),
        (2f32.powi(-24), 1.5, 2f32.powi(-14)),
    ];
    let random: Vec<(f32, f32, f32)> = (0..THREADS)
        .map(|i| {
            let mut draw = || {
                let bits = next(&mut state);
                let exponent = 127 - 40 + (bits >> 40) as u32 % 80;
                f32::from_bits((bits as u32 & 0x807f_ffff) | exponent << 23)
            };
            let drawn = (draw(), draw(), draw());
            edges.get(i).copied().unwrap_or(drawn)
        })
        .collect();
    words.extend(random.iter().map(|r| r.0.to_bits()));
    words.extend(random.iter().map(|r| r.1.to_bits()));
    words.extend(random.iter().map(|r| r.2.to_bits()));
    words.extend(random.iter().map(|r| r.0.abs().to_bits()));
    words.extend((0..THREADS).map(|_| ((next(&mut state) as i32 as f32) / 1e8).to_bits()));
    for _ in 0..3 * THREADS {
        // No exponent of all ones: what infinities and NaN give is nobody's contract.
        let finite = |h: u32| if h & 0x7c00 == 0x7c00 { h ^ 0x4000 } else { h };
        let bits = next(&mut state) as u32;
        words.push(finite(bits & 0xffff) | finite(bits >> 16) << 16);
    }
    words
}

fn float(word: u32) -> f64 {
    f64::from(f32::from_bits(word))
}

/// A half as a multiple of `2^-24`.
fn units(h: u32) -> i128 {
    let (sign, e, m) = (h >> 15 & 1, (h >> 10 & 31) as i128, i128::from(h & 1023));
    let magnitude = if e == 0 { m } else { (1024 + m) << (e - 1) };
    if sign == 1 { -magnitude } else { magnitude }
}

/// The half nearest to `n * 2^-scale`, by integers alone.
fn nearest_half(n: i128, scale: i32) -> f64 {
    let unit = (1i128 << scale >> 24).max(1);
    let mut quantum = unit;
    while n.abs() >= quantum * 2048 {
        quantum *= 2;
    }
    let (floor, rest) = (n.div_euclid(quantum), n.rem_euclid(quantum));
    let up = 2 * rest > quantum || (2 * rest == quantum && floor % 2 != 0);
    let value = (floor + i128::from(up)) as f64 * (quantum as f64) * 2f64.powi(-scale);
    if value.abs() > 65504.0 { f64::INFINITY.copysign(value) } else { value }
}

/// Compares the exact sum `a + b` with `r`.
fn sum_against(a: f64, b: f64, r: f64) -> Ordering {
    let s = a + b;
    if s.is_infinite() || r.is_infinite() {
        return s.total_cmp(&r);
    }
    let back = s - a;
    let rest = (a - (s - back)) + (b - back);
    (s - r).partial_cmp(&0.0).expect("finite").then(rest.partial_cmp(&0.0).expect("finite"))
}

/// Whether `r` is the least float not below the exact value (or the greatest not above it), where `against(r)` compares the exact value
/// with `r`.
fn directed(r: u32, up: bool, against: impl Fn(f64) -> Ordering) -> bool {
    let value = f32::from_bits(r);
    if up {
        against(f64::from(value)) != Ordering::Greater && against(f64::from(value.next_down())) == Ordering::Greater
    } else {
        against(f64::from(value)) != Ordering::Less && against(f64::from(value.next_up())) == Ordering::Less
    }
}

fn against_product(a: f64, b: f64) -> impl Fn(f64) -> Ordering {
    move |r| (a * b).partial_cmp(&r).expect("no NaN")
}

fn against_quotient(a: f64, b: f64) -> impl Fn(f64) -> Ordering {
    move |r| {
        let order = a.partial_cmp(&(r * b)).expect("no NaN");
        if b < 0.0 { order.reverse() } else { order }
    }
}

/// The matrices of the product tests from one warp's registers: `A[16][16]`, `B[16][8]`.
fn matrices(registers: impl Fn(usize, usize) -> [f64; 2]) -> ([[f64; 16]; 16], [[f64; 8]; 16]) {
    let (mut a, mut b) = ([[0.0; 16]; 16], [[0.0; 8]; 16]);
    for lane in 0..32 {
        let (g, t) = (lane / 4, 2 * (lane % 4));
        for el in 0..2 {
            for (i, (row, column)) in [(g, t), (g + 8, t), (g, t + 8), (g + 8, t + 8)].into_iter().enumerate() {
                a[row][column + el] = registers(lane, i)[el];
            }
            b[t + el][g] = registers(lane, 4)[el];
            b[t + 8 + el][g] = registers(lane, 5)[el];
        }
    }
    (a, b)
}

/// `(accumulator plus product, sum of magnitudes)` for the element `i` of a lane.
fn element(m: &([[f64; 16]; 16], [[f64; 8]; 16]), lane: usize, i: usize, start: f64) -> (f64, f64) {
    let (row, column) = (lane / 4 + 8 * (i / 2), 2 * (lane % 4) + i % 2);
    let terms = (0..16).map(|k| m.0[row][k] * m.1[k][column]);
    (start + terms.clone().sum::<f64>(), start.abs() + terms.map(f64::abs).sum::<f64>())
}

/// What is wrong with a run: one line per word that is not what the machine promises. `out` has [`WRITTEN`] sections, `counters` the
/// words of a launch of `ctas` CTAs.
pub(crate) fn judge(input: &[u32], out: &[u32], counters: &[u32], ctas: usize) -> Vec<String> {
    let mut wrong = Vec::new();
    for (section, (name, _)) in SECTIONS.iter().enumerate().take(WRITTEN) {
        for i in 0..THREADS {
            let got = out[section * THREADS + i];
            if let Err(expected) = word(name, input, i, got) {
                wrong.push(format!("{name}, thread {i}: {got:08x} instead of {expected}"));
            }
        }
    }
    let x = &input[..THREADS];
    let sum = (THREADS * (THREADS - 1) / 2 * ctas) as u32;
    let (most, bits) = (x.iter().copied().max().unwrap_or(0), x.iter().fold(0, |b, x| b | 1 << (x & 31)));
    for (at, expected) in [sum, most, bits, ctas as u32].into_iter().enumerate() {
        if counters[at] != expected {
            wrong.push(format!("atomics, counter {at}: {:08x} instead of {expected:08x}", counters[at]));
        }
    }
    let merged: u32 = (0..ctas as u32).map(|c| 1000 + c).sum();
    if counters[4] != merged {
        wrong.push(format!("merge by the last CTA: {} instead of {merged}", counters[4]));
    }
    wrong
}

/// Judges one word; the error is what was expected.
fn word(name: &str, input: &[u32], i: usize, got: u32) -> Result<(), String> {
    let at = |kind: usize, i: usize| input[THREADS * kind + i];
    let (x, y, z) = (at(0, i), at(1, i), at(2, i));
    let (f, g, k) = (float(at(3, i)), float(at(4, i)), float(at(5, i)));
    let (p, m) = (float(at(6, i)), float(at(7, i)));
    let (a, b, c) = (at(8, i), at(9, i), at(10, i));
    let (first, lane) = (i / 32 * 32, i % 32);
    let bits = |expected: u32| if got == expected { Ok(()) } else { Err(format!("{expected:08x}")) };
    let holds = |ok: bool, what: String| if ok { Ok(()) } else { Err(what) };
    // A float by value: the sign of a zero is compared between machines, not here.
    let value = |expected: f64| holds(float(got) == expected, format!("{expected:e}"));
    let halves = |lo: f64, hi: f64| {
        let (l, h) = (f16::from_bits(got as u16).to_f64(), f16::from_bits((got >> 16) as u16).to_f64());
        holds(l == lo && h == hi, format!("{lo:e}, {hi:e}"))
    };
    let arithmetic = |f: &dyn Fn(i128, i128, i128) -> i128, scale: i32| {
        let part =
            |s: u32| nearest_half(f(units(a >> s & 0xffff), units(b >> s & 0xffff), units(c >> s & 0xffff)), scale);
        halves(part(0), part(16))
    };
    let small = |lane: usize, r: usize| {
        [at(0, first + lane), at(1, first + lane)].map(|word| f64::from(word >> (4 * r) & 7) - 3.0)
    };
    let random = |lane: usize, r: usize| {
        let t = first + lane;
        let word = [at(8, t), at(9, t), at(10, t), at(8, t) & 0x7fff_7fff, at(9, t), at(10, t)][r];
        [word as u16, (word >> 16) as u16].map(|h| f16::from_bits(h).to_f64())
    };
    let digit = || name.as_bytes().last().map_or(0, |d| usize::from(d - b'0'));
    let start = |i: usize| f64::from(z >> (4 * i) & 15);
    use certkv_core::round::{F16, down, up};
    match name {
        "identity" => bits((lane | ((first / 32) << 8) | (i << 16)) as u32),
        "prmt" => bits((0..4).fold(0, |d, n| {
            let s = z >> (4 * n) & 15;
            let byte = (u64::from(y) << 32 | u64::from(x)).to_le_bytes()[(s & 7) as usize];
            let byte = if s & 8 == 0 { byte } else { ((byte as i8) >> 7) as u8 };
            d | u32::from(byte) << (8 * n)
        })),
        "lop_and_or" => bits((x & y) | z),
        "shfl" => bits(at(0, first + (lane * 7 + 3) % 32)),
        "shfl of 8 bytes" => bits(at(0, first + 11) ^ (at(1, first + 11) << 1)),
        "shfl_xor" => bits(at(0, first + (lane ^ 5))),
        "shfl_down" => bits(at(0, first + if lane + 9 < 32 { lane + 9 } else { lane })),
        "any" => bits(u32::from(first == 32 && (32..64).any(|i| at(0, i) & 15 == 0))),
        "ballot" => bits((0..32).fold(0, |all, l| all | (at(0, first + l) & 1) << l)),
        "warp_sum" => {
            let mut v: Vec<f32> = (0..32).map(|l| f32::from_bits(at(7, first + l))).collect();
            for d in [16, 8, 4, 2, 1] {
                v = (0..32).map(|l| v[l] + v[l ^ d]).collect();
            }
            bits(v[lane].to_bits())
        }
        "warp_max" => value((0..32).map(|l| float(at(7, first + l))).fold(f64::MIN, f64::max)),
        "sync_threads" | "cp_async16, first group" | "bulk_load, phase 0" => bits(at(0, 63 - i)),
        "named_barrier" | "bulk_load, phase 1" => bits(at(1, 63 - i)),
        "syncwarp" => bits(at(2, i ^ 1)),
        n if n.contains("rounded") => {
            let (exact, magnitude) = element(&matrices(random), lane, digit(), start(digit()));
            let bound = 17.0 * 2f64.powi(-23) * magnitude;
            holds((float(got) - exact).abs() <= bound, format!("{exact:e} +- {bound:e}"))
        }
        n if n.starts_with("mma") => value(element(&matrices(small), lane, digit(), start(digit())).0),
        "transpose8x8" => {
            let (row, column) = (lane / 4, 2 * (lane % 4));
            let of = |r: usize, c: usize| at(0, first + 4 * r + c / 2) >> (16 * (c % 2)) & 0xffff;
            bits(of(column, row) | of(column + 1, row) << 16)
        }
        "h2_mul" => arithmetic(&|a, b, _| a * b, 48),
        "h2_add" => arithmetic(&|a, b, _| a + b, 24),
        "h2_sub" => arithmetic(&|a, b, _| a - b, 24),
        "h2_fma" => arithmetic(&|a, b, c| a * b + (c << 24), 48),
        "h2_abs" => bits(a & 0x7fff_7fff),
        "h2_pack" => {
            bits(u32::from(f16::from_f32(m as f32).to_bits()) | u32::from(f16::from_f32(f as f32).to_bits()) << 16)
        }
        "h_lo" => value(f16::from_bits(a as u16).to_f64()),
        "h_hi" => value(f16::from_bits((a >> 16) as u16).to_f64()),
        "h_rn" => bits(u32::from(f16::from_f32(m as f32).to_bits())),
        "h_ru" => halves(up(m, F16), 0.0),
        "h_rd" => halves(down(m, F16), 0.0),
        "h_ru, h_rd at the ends" => halves(up(f, F16), down(k, F16)),
        "b2_pack" => {
            bits(u32::from(bf16::from_f32(f as f32).to_bits()) | u32::from(bf16::from_f32(k as f32).to_bits()) << 16)
        }
        "b_lo" | "b_hi" => bits(at(3, i) & 0xffff_0000),
        "ex2" => {
            let exact = m.exp2();
            holds((float(got) - exact).abs() <= exact * 2f64.powi(-21), format!("{exact:e}"))
        }
        "lg2" => {
            let exact = p.log2();
            let bound = 2f64.powi(-21) * exact.abs().max(1.0);
            holds((float(got) - exact).abs() <= bound, format!("{exact:e}"))
        }
        "rcp" => holds((float(got) * m - 1.0).abs() <= 2f64.powi(-22), format!("{:e}", 1.0 / m)),
        "fma_rn" => bits((f as f32).mul_add(g as f32, k as f32).to_bits()),
        "fma_ru" => holds(directed(got, true, |r| sum_against(f * g, k, r)), format!("{f:e} {g:e} + {k:e} up")),
        "add_ru" => holds(directed(got, true, |r| sum_against(f, g, r)), format!("{f:e} + {g:e} up")),
        "add_rd" => holds(directed(got, false, |r| sum_against(f, g, r)), format!("{f:e} + {g:e} down")),
        "mul_ru" => holds(directed(got, true, against_product(f, g)), format!("{f:e} {g:e} up")),
        "mul_rd" => holds(directed(got, false, against_product(f, g)), format!("{f:e} {g:e} down")),
        "div_ru" => holds(directed(got, true, against_quotient(f, g)), format!("{f:e} / {g:e} up")),
        "div_rd" => holds(directed(got, false, against_quotient(f, g)), format!("{f:e} / {g:e} down")),
        "sqrt_ru" => holds(
            directed(got, true, |r| if r < 0.0 { Ordering::Greater } else { p.total_cmp(&(r * r)) }),
            format!("root of {p:e} up"),
        ),
        "sqrt_rn" => bits((p as f32).sqrt().to_bits()),
        "cp_async16, second group" => bits(input[256 + 63 - i]),
        "ldg of 4 bytes" => bits(x),
        "ldg of 8 bytes" => bits(input[2 * i] ^ (input[2 * i + 1] << 1)),
        "ldg of 16 bytes" | "ld_stream16" => bits((0..4).fold(0, |d, n| d ^ (input[4 * i + n] << n))),
        "ldg of 1 and 2 bytes" => {
            let byte = input[i / 4] >> (8 * (i % 4)) & 0xff;
            bits(byte | (input[i / 2] >> (16 * (i % 2)) & 0xffff) << 16)
        }
        _ => Err(format!("a rule for {name}")),
    }
}
