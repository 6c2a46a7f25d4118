//! Seeded keys, values and queries with the features that make attention caches hard, as 16-bit patterns.
use certkv_core::{Dtype, hash::splitmix64};

/// A small deterministic generator: splitmix64 over a counter.
#[derive(Debug, Clone)]
pub struct Rng(u64);

impl Rng {
    /// A generator; equal seeds give equal sequences.
    pub const fn new(seed: u64) -> Self {
        Self(splitmix64(seed ^ 0x6b76_6365_7274_0001))
    }
    /// 64 random bits.
    pub const fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(1);
        splitmix64(self.0)
    }
    /// Uniform in `[0, 1)`.
    pub fn uniform(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }
    /// Uniform in `0..n`; 0 for `n = 0`.
    pub fn below(&mut self, n: usize) -> usize {
        (self.uniform() * n as f64) as usize
    }
    /// True with probability `p`.
    pub fn chance(&mut self, p: f64) -> bool {
        self.uniform() < p
    }
    /// Standard normal.
    pub fn normal(&mut self) -> f64 {
        (-2.0 * (1.0 - self.uniform()).ln()).sqrt() * (std::f64::consts::TAU * self.uniform()).cos()
    }
    /// Nearly normal, within 5 standard deviations: eight bytes added up. Ten times as fast, where a test needs many.
    pub fn nearly_normal(&mut self) -> f64 {
        let sum: u32 = self.bits().to_le_bytes().into_iter().map(u32::from).sum();
        // Of a byte: mean 255/2, variance (256^2 - 1)/12.
        (f64::from(sum) - 8.0 * 127.5) / (8.0_f64 * 65535.0 / 12.0).sqrt()
    }
    /// 1 or -1.
    pub fn sign(&mut self) -> f64 {
        if self.chance(0.5) { 1.0 } else { -1.0 }
    }
    /// Student t with 3 degrees of freedom: heavy tails with a finite variance.
    pub fn heavy(&mut self) -> f64 {
        let x = self.normal();
        let chi = (0..3).map(|_| self.normal().powi(2)).sum::<f64>();
        x / (chi / 3.0).sqrt().max(1e-6)
    }
    /// `n` normals.
    pub fn normals(&mut self, n: usize) -> Vec<f64> {
        (0..n).map(|_| self.normal()).collect()
    }
}

/// What is hard about a case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Nothing.
    Gaussian,
    /// Keys and values with Student tails.
    HeavyTailed,
    /// A few tokens hold most of the mass and have small values.
    Sinks,
    /// A few channels a hundred times larger than the rest.
    OutlierChannels,
    /// Tokens in near-equal pairs, so that logits, masses and gains almost tie.
    NearTies,
    /// One token (the shape's count is ignored).
    OneToken,
    /// Constant, zero, offset and subnormal channels.
    ConstantChannels,
    /// Keys and values near the top of the format's range.
    HugeNorms,
    /// RoPE structure: large means in slow pairs, rotation in fast ones, correlated neighbours, a retrieval peak.
    Rope,
    /// Every 8-bit per-channel key error is near half a step, with a sign that pushes the output one way.
    Aligned,
    /// Values that are multiples of the least half: a scale of 4 bits is an odd one, half of which is no half.
    TinyValues,
    /// A key that halves do not hold, or whose codes stand for more than they do, in the channel where queries point, with a value that matters; not among
    /// [`Kind::ALL`].
    TallKey,
    /// Values whose squares single precision does not hold: for originals of bf16, and not among [`Kind::ALL`].
    VanishingValues,
}

impl Kind {
    /// Every kind.
    pub const ALL: [Self; 11] = [
        Self::Gaussian,
        Self::HeavyTailed,
        Self::Sinks,
        Self::OutlierChannels,
        Self::NearTies,
        Self::OneToken,
        Self::ConstantChannels,
        Self::HugeNorms,
        Self::Rope,
        Self::Aligned,
        Self::TinyValues,
    ];
}

/// Size of a case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Tokens.
    pub tokens: usize,
    /// Channels per head, even.
    pub head_dim: usize,
    /// Query heads that share the KV head.
    pub group: usize,
    /// Tokens per block ([`Kind::Aligned`] plants its errors block by block).
    pub block: usize,
    /// Type of the 16-bit patterns.
    pub store: Dtype,
}

/// Head dimensions and group sizes to run through.
pub const GEOMETRIES: [(usize, usize); 10] =
    [(64, 1), (64, 4), (96, 2), (96, 3), (128, 1), (128, 4), (128, 8), (256, 2), (256, 5), (256, 8)];

/// One KV head and its query heads, as 16-bit patterns of `shape.store`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Heads {
    /// The size; `tokens` is 1 for [`Kind::OneToken`].
    pub shape: Shape,
    /// `[token][channel]`.
    pub keys: Vec<u16>,
    /// `[token][channel]`.
    pub values: Vec<u16>,
    /// `[head][channel]`.
    pub queries: Vec<u16>,
}

impl Heads {
    /// Keys as numbers.
    pub fn keys_f64(&self) -> Vec<f64> {
        decode(&self.keys, self.shape.store)
    }
    /// Values as numbers.
    pub fn values_f64(&self) -> Vec<f64> {
        decode(&self.values, self.shape.store)
    }
    /// One head's query as numbers.
    pub fn query_f64(&self, head: usize) -> Vec<f64> {
        let d = self.shape.head_dim;
        decode(&self.queries[head * d..(head + 1) * d], self.shape.store)
    }
    /// The usual logit scale, `head_dim^(-1/2)`.
    pub fn scale(&self) -> f64 {
        (self.shape.head_dim as f64).powf(-0.5)
    }
}

/// Numbers of 16-bit patterns.
pub fn decode(bits: &[u16], store: Dtype) -> Vec<f64> {
    bits.iter().map(|&b| f64::from(store.decode16(b))).collect()
}

/// 16-bit patterns nearest to the numbers, clamped to the finite range of half precision.
pub fn encode(x: &[f64], store: Dtype) -> Vec<u16> {
    x.iter().map(|&v| store.encode16(v.clamp(-65504.0, 65504.0) as f32)).collect()
}

/// A case of one kind. Equal arguments give equal patterns; all of them are finite.
pub fn heads(kind: Kind, shape: Shape, seed: u64) -> Heads {
    let mut r = Rng::new(seed.wrapping_mul(31).wrapping_add(kind as u64));
    let tokens = if kind == Kind::OneToken { 1 } else { shape.tokens };
    let shape = Shape { tokens, ..shape };
    let (n, d) = (tokens, shape.head_dim);
    let mut q = r.normals(shape.group * d);
    let mut k = r.normals(n * d);
    let mut v = r.normals(n * d);
    let spread = 0.5 + 2.5 * r.uniform();
    match kind {
        Kind::Gaussian | Kind::OneToken => {}
        Kind::HeavyTailed => [&mut k, &mut v].into_iter().flatten().for_each(|x| *x = r.heavy()),
        Kind::Sinks => v.iter_mut().take(d).for_each(|x| *x *= 0.05),
        Kind::OutlierChannels => outliers(&mut k, &mut q, d, &mut r),
        Kind::NearTies => near_ties(&mut k, &mut v, d),
        Kind::ConstantChannels => constant_channels(&mut k, d, &mut r),
        Kind::HugeNorms => {
            k.iter_mut().for_each(|x| *x *= 8e3);
            v.iter_mut().for_each(|x| *x *= 1.2e4);
        }
        Kind::Rope => rope(&mut k, &mut q, d, &mut r),
        Kind::Aligned => {}
        Kind::TallKey => v.iter_mut().take(d).for_each(|x| *x *= 3.0),
        Kind::VanishingValues => v.iter_mut().for_each(|x| *x *= (-80.0_f64).exp2()),
        Kind::TinyValues => {
            for (i, x) in v.iter_mut().enumerate() {
                // The ends of the range are in every group of channels.
                let steps = [0, 75].get(i % 16).copied().unwrap_or_else(|| r.below(76));
                *x = steps as f64 * (-24.0_f64).exp2();
            }
        }
    }
    normalise_logits(&mut q, &k, d, spread);
    match kind {
        Kind::Sinks => lift(&mut k, &q[..d], 0, spread + 3.0 + 3.0 * r.uniform()),
        Kind::Rope => lift(&mut k, &q[..d], r.below(n), spread + 6.0 * r.uniform()),
        Kind::Aligned => align(&mut k, &v, &q[..d], shape, &mut r),
        Kind::TallKey => tall_key(&mut k, &mut q, d),
        _ => {}
    }
    let bits = |x: &[f64]| encode(x, shape.store);
    Heads { shape, keys: bits(&k), values: bits(&v), queries: bits(&q) }
}

/// In one channel nothing but the largest half, and not half as much the other way; queries point hardly anywhere else, and take a logit of one off it.
fn tall_key(k: &mut [f64], q: &mut [f64], d: usize) {
    const CHANNEL: usize = 5;
    k.iter_mut().skip(CHANNEL).step_by(d).for_each(|x| *x = 0.0);
    for (token, x) in [65504.0, -30000.0].into_iter().enumerate().take(k.len() / d) {
        k[token * d + CHANNEL] = x;
    }
    q.iter_mut().for_each(|x| *x *= 1e-7);
    q.iter_mut().skip(CHANNEL).step_by(d).for_each(|x| *x = -(d as f64).sqrt() / 65504.0);
}

fn outliers(k: &mut [f64], q: &mut [f64], d: usize, r: &mut Rng) {
    for _ in 0..3 {
        let (c, offset) = (r.below(d), 50.0 * r.normal());
        k.iter_mut().skip(c).step_by(d).for_each(|x| *x = 100.0 * *x + offset);
        q.iter_mut().skip(c).step_by(d).for_each(|x| *x *= 0.05);
    }
}

fn near_ties(k: &mut [f64], v: &mut [f64], d: usize) {
    for m in [k, v] {
        for pair in m.chunks_exact_mut(2 * d) {
            let (a, b) = pair.split_at_mut(d);
            b.iter_mut().zip(a).for_each(|(y, x)| *y = *x * (1.0 + 1e-3));
        }
    }
}

fn constant_channels(k: &mut [f64], d: usize, r: &mut Rng) {
    for row in k.chunks_exact_mut(d) {
        row[0] = 1.5;
        row[1] = 100.0 + 0.0625 * r.below(4) as f64;
        row[2 % d] = 0.0;
        row[3 % d] *= 2f64.powi(-20);
    }
}

/// Slow pairs have large heavy-tailed means, fast pairs rotate with position, neighbours correlate.
fn rope(k: &mut [f64], q: &mut [f64], d: usize, r: &mut Rng) {
    let half = d / 2;
    let mean: Vec<f64> = (0..d)
        .map(|c| if c % half > half * 3 / 5 { 3.0 * r.heavy().clamp(-20.0, 20.0) } else { 0.3 * r.normal() })
        .collect();
    let std: Vec<f64> = (0..half).map(|_| 0.7 * (0.6 * r.normal()).exp()).collect();
    let rotate = |row: &mut [f64], position: f64| {
        for i in 0..half {
            let (sin, cos) = (position * 5e5f64.powf(-2.0 * i as f64 / d as f64)).sin_cos();
            let (a, b) = (row[i], row[i + half]);
            (row[i], row[i + half]) = (a * cos - b * sin, a * sin + b * cos);
        }
    };
    let mut before = vec![0.0; d];
    for (t, row) in k.chunks_exact_mut(d).enumerate() {
        for c in 0..d {
            before[c] = 0.4 * before[c] + 0.9165 * row[c];
            row[c] = mean[c] + std[c % half] * before[c];
        }
        rotate(row, t as f64);
    }
    let end = (k.len() / d) as f64;
    for row in q.chunks_exact_mut(d) {
        for c in 0..d {
            row[c] = 0.5 * mean[c] + row[c] / std[c % half];
        }
        rotate(row, end);
    }
}

/// Scales each head's query so that its logits spread by `spread` nats.
fn normalise_logits(q: &mut [f64], k: &[f64], d: usize, spread: f64) {
    let scale = (d as f64).powf(-0.5);
    for row in q.chunks_exact_mut(d) {
        let z: Vec<f64> =
            k.chunks_exact(d).map(|k| scale * k.iter().zip(row.iter()).map(|(a, b)| a * b).sum::<f64>()).collect();
        let mean = z.iter().sum::<f64>() / z.len().max(1) as f64;
        let deviation = (z.iter().map(|z| (z - mean).powi(2)).sum::<f64>() / z.len().max(1) as f64).sqrt();
        let factor = spread / deviation.max(1e-3);
        row.iter_mut().for_each(|x| *x *= factor);
    }
}

/// Moves one token's key along the query until its logit is `target` standard scores up.
fn lift(k: &mut [f64], q: &[f64], token: usize, target: f64) {
    let d = q.len();
    let square = q.iter().map(|x| x * x).sum::<f64>().max(1e-12);
    let row = &mut k[token * d..(token + 1) * d];
    let z: f64 = row.iter().zip(q).map(|(a, b)| a * b).sum::<f64>();
    let step = (target * (d as f64).sqrt() - z) / square;
    row.iter_mut().zip(q).for_each(|(x, q)| *x += step * q);
}

/// Keys on the grid of the 8-bit per-channel code of their block, off by 0.49 of a step with the sign of
/// `q_c * side(t)`, where `side(t)` tells on which side of a random plane the value lies. The first two tokens of a
/// block pin each channel's range; a block shorter than three tokens is left alone.
fn align(k: &mut [f64], v: &[f64], q: &[f64], shape: Shape, r: &mut Rng) {
    let (d, block) = (shape.head_dim, shape.block.max(1));
    let plane = r.normals(d);
    for (b, rows) in k.chunks_mut(block * d).enumerate() {
        if rows.len() < 3 * d {
            continue;
        }
        for c in 0..d {
            let low = -1.0 - r.uniform();
            let step = (1.0 + r.uniform()) / 128.0;
            for (i, row) in rows.chunks_exact_mut(d).enumerate() {
                let value = &v[(b * block + i) * d..(b * block + i + 1) * d];
                let side = value.iter().zip(&plane).map(|(a, b)| a * b).sum::<f64>().signum();
                row[c] = match i {
                    0 => low,
                    1 => low + 255.0 * step,
                    _ => low + step * (1.0 + r.below(253) as f64 + 0.49 * side * q[c].signum()),
                };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: Shape = Shape { tokens: 48, head_dim: 64, group: 2, block: 16, store: Dtype::F16 };

    #[test]
    fn every_kind_is_finite_repeatable_and_its_own() {
        for store in [Dtype::F16, Dtype::Bf16] {
            let shape = Shape { store, ..SHAPE };
            let mut seen = Vec::new();
            for kind in Kind::ALL {
                let h = heads(kind, shape, 5);
                assert_eq!(h, heads(kind, shape, 5));
                assert_ne!(h, heads(kind, shape, 6));
                let n = if kind == Kind::OneToken { 1 } else { 48 };
                assert_eq!((h.keys.len(), h.values.len(), h.queries.len()), (n * 64, n * 64, 128));
                let mut all = h.keys.iter().chain(&h.values).chain(&h.queries);
                assert!(all.all(|&b| !store.is_nonfinite16(b)), "{kind:?}");
                assert!(!seen.contains(&h.keys));
                seen.push(h.keys);
            }
        }
    }

    #[test]
    fn kinds_have_what_they_promise() {
        let h = heads(Kind::HugeNorms, SHAPE, 1);
        assert!(h.keys_f64().iter().any(|x| x.abs() > 2e4));
        let k = heads(Kind::ConstantChannels, SHAPE, 1).keys_f64();
        assert!(k.chunks(64).all(|row| row[0] == 1.5 && row[2] == 0.0));
        let h = heads(Kind::Sinks, SHAPE, 1);
        let (q, k) = (h.query_f64(0), h.keys_f64());
        let z = |t: usize| k[t * 64..][..64].iter().zip(&q).map(|(a, b)| a * b).sum::<f64>();
        assert!((1..48).all(|t| z(t) < z(0)));
        let k = heads(Kind::OutlierChannels, SHAPE, 1).keys_f64();
        assert!(k.iter().any(|x| x.abs() > 50.0));
    }

    #[test]
    fn normals_have_unit_variance() {
        let mut r = Rng::new(3);
        let x = r.normals(20_000);
        let (mean, square) = (x.iter().sum::<f64>() / 2e4, x.iter().map(|x| x * x).sum::<f64>() / 2e4);
        assert!(mean.abs() < 0.03 && (square - 1.0).abs() < 0.05);
        let y: Vec<_> = (0..20_000).map(|_| r.nearly_normal()).collect();
        let (mean, square) = (y.iter().sum::<f64>() / 2e4, y.iter().map(|y| y * y).sum::<f64>() / 2e4);
        assert!(mean.abs() < 0.03 && (square - 1.0).abs() < 0.05 && y.iter().all(|y| y.abs() < 5.0));
        assert!((0..100).all(|_| r.below(7) < 7));
    }
}
