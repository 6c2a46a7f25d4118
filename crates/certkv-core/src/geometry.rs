//! Shape of the attention that a cache serves.
use crate::Dtype;
use core::fmt;

/// Shape of a model's attention. All layers share it; formats may differ by layer (see [`crate::Format`]).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Geometry {
    /// Number of layers, 1 to 4096.
    pub layers: usize,
    /// Query heads per layer; a multiple of `kv_heads`.
    pub q_heads: usize,
    /// Key/value heads per layer.
    pub kv_heads: usize,
    /// Channels per head: 64, 96, 128 or 256.
    pub head_dim: usize,
    /// Type of the 16-bit originals (`F16` or `Bf16`).
    pub store: Dtype,
    /// Logit scale, usually `head_dim^(-1/2)`; from 2^-64 to 2^64.
    pub scale: f32,
}

/// Why a [`Geometry`] was refused. Each variant carries the value that was given.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum GeometryError {
    /// `layers` is 0 or above 4096.
    Layers(usize),
    /// `kv_heads` is 0 or above 1024.
    KvHeads(usize),
    /// `q_heads` is 0 or no multiple of `kv_heads`, or the group is larger than 16.
    QueryHeads {
        /// Query heads given.
        q_heads: usize,
        /// Key/value heads given.
        kv_heads: usize,
    },
    /// `head_dim` is not 64, 96, 128 or 256.
    HeadDim(usize),
    /// Originals must be 16-bit.
    Store(Dtype),
    /// `scale` is not from 2^-64 to 2^64.
    Scale(f32),
}

impl fmt::Display for GeometryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Layers(n) => write!(f, "layers = {n}: must be 1 to 4096"),
            Self::KvHeads(n) => write!(f, "kv_heads = {n}: must be 1 to 1024"),
            Self::QueryHeads { q_heads, kv_heads } => {
                write!(f, "q_heads = {q_heads}: must be a multiple of kv_heads = {kv_heads}, at most 16 times as many")
            }
            Self::HeadDim(d) => write!(f, "head_dim = {d}: must be 64, 96, 128 or 256"),
            Self::Store(t) => write!(f, "store = {t}: originals are kept in f16 or bf16"),
            Self::Scale(s) => write!(f, "scale = {s}: must be positive, from 2^-64 to 2^64"),
        }
    }
}
impl std::error::Error for GeometryError {}

/// Logit scales. Sums of products are formed before they are scaled, in single precision: with a smaller scale they could overflow where logits are small, with
/// a larger one the scale itself, in octaves.
const SCALES: core::ops::RangeInclusive<f32> = 5.421_011e-20..=1.844_674_4e19;

/// Head dimensions that every kernel supports.
pub const HEAD_DIMS: [usize; 4] = [64, 96, 128, 256];

impl Geometry {
    /// A geometry with f16 originals and the usual scale `head_dim^(-1/2)`.
    ///
    /// # Errors
    /// [`GeometryError`] names the argument that is out of range.
    pub fn new(layers: usize, q_heads: usize, kv_heads: usize, head_dim: usize) -> Result<Self, GeometryError> {
        let scale = if head_dim == 0 { 1.0 } else { (head_dim as f64).powf(-0.5) as f32 };
        Self { layers, q_heads, kv_heads, head_dim, store: Dtype::F16, scale }.validated()
    }

    /// Checks every field, for values built by hand.
    ///
    /// # Errors
    /// [`GeometryError`] names the field that is out of range.
    pub fn validated(self) -> Result<Self, GeometryError> {
        if self.layers == 0 || self.layers > 4096 {
            return Err(GeometryError::Layers(self.layers));
        }
        if self.kv_heads == 0 || self.kv_heads > 1024 {
            return Err(GeometryError::KvHeads(self.kv_heads));
        }
        let (q, kv) = (self.q_heads, self.kv_heads);
        if q == 0 || q % kv != 0 || q / kv > 16 {
            return Err(GeometryError::QueryHeads { q_heads: q, kv_heads: kv });
        }
        if !HEAD_DIMS.contains(&self.head_dim) {
            return Err(GeometryError::HeadDim(self.head_dim));
        }
        if !self.store.is_sixteen_bit() {
            return Err(GeometryError::Store(self.store));
        }
        if !SCALES.contains(&self.scale) {
            return Err(GeometryError::Scale(self.scale));
        }
        Ok(self)
    }

    /// Query heads that share one key/value head.
    pub const fn group(&self) -> usize {
        self.q_heads / self.kv_heads
    }

    /// Elements of one token's keys (or values) in one layer: `kv_heads * head_dim`.
    pub const fn kv_width(&self) -> usize {
        self.kv_heads * self.head_dim
    }

    /// Elements of one token's queries (or outputs) in one layer: `q_heads * head_dim`.
    pub const fn q_width(&self) -> usize {
        self.q_heads * self.head_dim
    }

    /// Bytes of one token's dense 16-bit keys and values in one layer and KV head: `4 * head_dim`.
    pub const fn dense_bytes_per_token_head(&self) -> usize {
        4 * self.head_dim
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_each_bad_field_by_name() {
        assert_eq!(Geometry::new(0, 4, 2, 128), Err(GeometryError::Layers(0)));
        assert_eq!(Geometry::new(1, 4, 0, 128), Err(GeometryError::KvHeads(0)));
        assert_eq!(Geometry::new(1, 5, 2, 128), Err(GeometryError::QueryHeads { q_heads: 5, kv_heads: 2 }));
        assert_eq!(Geometry::new(1, 34, 2, 128), Err(GeometryError::QueryHeads { q_heads: 34, kv_heads: 2 }));
        assert_eq!(Geometry::new(1, 4, 2, 0), Err(GeometryError::HeadDim(0)));
        let g = Geometry::new(6, 4, 2, 128).unwrap();
        assert_eq!((g.group(), g.kv_width(), g.q_width()), (2, 256, 512));
        for scale in [f32::NAN, 0.0, -1.0, 2f32.powi(-65), 2f32.powi(65), f32::INFINITY] {
            assert!(Geometry { scale, ..g }.validated().is_err(), "{scale}");
        }
        assert_eq!((*SCALES.start(), *SCALES.end()), (2f32.powi(-64), 2f32.powi(64)));
        assert!([*SCALES.start(), 1.0, *SCALES.end()].iter().all(|s| Geometry { scale: *s, ..g }.validated().is_ok()));
        assert!(Geometry { store: Dtype::F32, ..g }.validated().is_err());
    }
}
