//! Block-GTQ keys, math.md 2.8: every RoPE pair has its own width, pairs of equal width are one TurboQuant vector. Keys may be
//! coded around a centre and in a balanced metric; both are undone by what is done to the query.
//!
//! Nothing here assumes that the schedule is a good one: `certkv_control` chooses it, and the errors are measured.
use crate::annotate::{op_norm_up, publish};
use crate::codebook;
use crate::error::{CodecError, Input, finite, rows, sized};
use crate::groups::groups;
use crate::numeric::{UP, dot, norm, sum_squares};
use crate::turboquant::{Book, Radius, round_radius};
use certkv_core::{Dtype, Pairing, TURBO_BITS};
use std::sync::Arc;

pub use crate::groups::Group;

/// How the keys of a head are coded.
#[derive(Debug, Clone, Copy)]
pub struct Scheme<'a> {
    /// Bits of each pair of channels, 1 to 8, (dim / 2,).
    pub bits: &'a [u8],
    /// Which channels are a pair.
    pub pairing: Pairing,
    /// Channels that positions turn, the first of the head: an even number, at most the channels.
    pub rotary: usize,
    /// Seed of the rotations.
    pub seed: u64,
    /// Balance scale `S`, (dim,): positive and finite. None is 1 everywhere.
    pub balance: Option<&'a [f64]>,
    /// What is taken off the keys before they are coded, (dim,). None is 0 everywhere.
    pub centre: Option<&'a [f64]>,
    /// Which radius is stored.
    pub radius: Radius,
    /// Type of the radii.
    pub meta: Dtype,
    /// What codes stand for.
    pub levels: Levels,
}

impl<'a> Scheme<'a> {
    /// Whole heads turned in halves, least radii in f16, neither centred nor balanced.
    pub const fn new(bits: &'a [u8], seed: u64) -> Self {
        let (rotary, radius, levels) = (2 * bits.len(), Radius::LeastSquares, Levels::LloydMax);
        let (pairing, meta) = (Pairing::Half, Dtype::F16);
        Self { bits, pairing, rotary, seed, balance: None, centre: None, radius, meta, levels }
    }
}

/// What codes stand for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Levels {
    /// The levels of (2.12) themselves.
    LloydMax,
    /// Whole numbers that fit a byte, (2.17b), as records have them; 1 to 6 bits.
    Bytes,
}

fn lloyd_max(channels: usize, bits: u8) -> Arc<Book> {
    Arc::new(Book::lloyd_max(channels, bits))
}

/// A scheme made ready: rotations and codebooks of its groups. Some milliseconds to make, for the widest codebooks.
#[derive(Debug, Clone)]
pub struct BlockGtq {
    dim: usize,
    groups: Vec<Group>,
    balance: Vec<f64>,
    centre: Vec<f64>,
    radius: Radius,
    meta: Dtype,
}

/// The codes of one group of a block.
#[derive(Debug, Clone, PartialEq)]
pub struct Part {
    /// Codes of the rotated vectors, row-major (rows, channels of the group).
    pub codes: Vec<u8>,
    /// Radii, (rows,).
    pub radius: Vec<f64>,
}

/// What a block's decoded form is off by, group by group, in the metric in which it was coded, math.md (3.5), (3.6).
#[derive(Debug, Clone, PartialEq)]
pub struct GroupErrors {
    /// `max_t ||S_G e_t^(G)||`.
    pub largest: Vec<f32>,
    /// `||E_G S_G||_op`.
    pub spectral: Vec<f32>,
}

impl Part {
    /// `r^ y^` of one row, before it is rotated back.
    fn turned(&self, group: &Group, row: usize) -> Result<Vec<f64>, CodecError> {
        let n = group.channels.len();
        let codes = self.codes.get(row * n..(row + 1) * n).unwrap_or_default();
        sized(Input::Codes, codes.len(), n)?;
        let r = self.radius.get(row).copied().unwrap_or(f64::NAN);
        let level = |c: &u8| group.book.levels.get(usize::from(*c)).map(|level| level * r);
        let (got, want) = (codes.iter().copied().max().unwrap_or(0), group.book.levels.len());
        let levels: Option<Vec<f64>> = codes.iter().map(level).collect();
        levels.ok_or(CodecError::Shape { input: Input::Codes, got: usize::from(got), want })
    }
}

impl BlockGtq {
    /// Rotations and codebooks of `scheme`.
    ///
    /// # Errors
    /// [`CodecError::Width`] for a pair of 0 bits, or of more than its levels have; [`CodecError::Shape`] if the schedule is empty, `rotary` is no
    /// number of channels, or balance or centre has another length; [`CodecError::NotPositive`]; [`CodecError::NonFinite`] for
    /// the centre.
    pub fn new(scheme: &Scheme<'_>) -> Result<Self, CodecError> {
        let Scheme { bits, pairing, rotary, seed, radius, meta, .. } = *scheme;
        let dim = 2 * bits.len();
        let balance = scheme.balance.map_or_else(|| vec![1.0; dim], <[f64]>::to_vec);
        let centre = scheme.centre.map_or_else(|| vec![0.0; dim], <[f64]>::to_vec);
        sized(Input::Balance, balance.len(), dim)?;
        sized(Input::KeyCentre, centre.len(), dim)?;
        if let Some(channel) = balance.iter().position(|s| !(*s > 0.0 && s.is_finite() && s.recip().is_finite())) {
            return Err(CodecError::NotPositive { input: Input::Balance, channel });
        }
        finite(Input::KeyCentre, &centre, dim)?;
        let (most, book) = match scheme.levels {
            Levels::LloydMax => (codebook::MAX_BITS, lloyd_max as fn(usize, u8) -> Arc<Book>),
            Levels::Bytes => (TURBO_BITS, Book::bytes as fn(usize, u8) -> Arc<Book>),
        };
        let groups = groups(bits, pairing, rotary, seed, most, book)?;
        Ok(Self { dim, groups, balance, centre, radius, meta })
    }

    /// Channels of a head.
    pub const fn channels(&self) -> usize {
        self.dim
    }

    /// The groups, widths ascending: the order of parts, errors and norms.
    pub fn groups(&self) -> &[Group] {
        &self.groups
    }

    /// `x / S`, in which the metric of the codes becomes that of products.
    fn folded(&self, q: &[f64]) -> Result<Vec<f64>, CodecError> {
        sized(Input::Query, q.len(), self.dim)?;
        Ok(q.iter().zip(&self.balance).map(|(q, s)| q / s).collect())
    }
}

/// Codes `keys` (rows, dim), a part for each group.
///
/// # Errors
/// [`CodecError::Shape`], [`CodecError::NonFinite`] (also where the balanced key overflows), or [`CodecError::ScaleOverflow`]
/// for a radius that its type cannot hold.
pub fn encode(codec: &BlockGtq, keys: &[f64]) -> Result<Vec<Part>, CodecError> {
    let n = rows(Input::Keys, keys.len(), codec.dim)?;
    finite(Input::Keys, keys, codec.dim)?;
    let metric = codec.balance.iter().zip(&codec.centre).cycle();
    let balanced: Vec<f64> = keys.iter().zip(metric).map(|(k, (s, mu))| (k - mu) * s).collect();
    finite(Input::Keys, &balanced, codec.dim)?;
    let part = |group: &Group| {
        let width = group.channels.len();
        let (mut codes, mut radius) = (vec![0; n * width], Vec::with_capacity(n));
        for (row, (key, codes)) in balanced.chunks_exact(codec.dim).zip(codes.chunks_exact_mut(width)).enumerate() {
            let mut y = group.take(key);
            group.rotation.turn(&mut y);
            let fitted = group.book.code_row(&y, codes);
            let r = if codec.radius == Radius::Norm { sum_squares(&y).sqrt() } else { fitted };
            radius.push(round_radius(r, Input::Keys, row, codec.meta)?);
        }
        Ok(Part { codes, radius })
    };
    codec.groups.iter().map(part).collect()
}

/// Rows of `block`, whose parts must be those of the codec's groups.
fn block_rows(codec: &BlockGtq, block: &[Part]) -> Result<usize, CodecError> {
    sized(Input::Codes, block.len(), codec.groups.len())?;
    let n = block.first().map_or(0, |part| part.radius.len());
    for (group, part) in codec.groups.iter().zip(block) {
        sized(Input::Scale, part.radius.len(), n)?;
        sized(Input::Codes, part.codes.len(), n * group.channels.len())?;
    }
    Ok(n)
}

/// The decoded keys, row-major (rows, dim), math.md (2.19).
///
/// # Errors
/// [`CodecError::Shape`] if the parts are not those of this codec, or hold a code that no level has.
pub fn decode(codec: &BlockGtq, block: &[Part]) -> Result<Vec<f64>, CodecError> {
    let n = block_rows(codec, block)?;
    let mut keys = vec![0.0; n * codec.dim];
    for (group, part) in codec.groups.iter().zip(block) {
        for (row, key) in keys.chunks_exact_mut(codec.dim).enumerate() {
            let mut y = part.turned(group, row)?;
            group.rotation.turn_back(&mut y);
            for (c, y) in group.channels.iter().zip(y) {
                key[*c] = y / codec.balance[*c] + codec.centre[*c];
            }
        }
    }
    Ok(keys)
}

/// Logits from codes, (rows,): the query is divided by the balance scale and rotated once per group; no key is rotated back.
/// [`shift`], which all rows share, is in them.
///
/// # Errors
/// As [`decode`], or if `q` has not as many entries as the head has channels.
pub fn score(codec: &BlockGtq, block: &[Part], q: &[f64], scale: f64) -> Result<Vec<f64>, CodecError> {
    let n = block_rows(codec, block)?;
    let folded = codec.folded(q)?;
    let mut logits = vec![shift(codec, q, scale)?; n];
    for (group, part) in codec.groups.iter().zip(block) {
        let mut q = group.take(&folded);
        group.rotation.turn(&mut q);
        for (row, z) in logits.iter_mut().enumerate() {
            *z += scale * dot(&part.turned(group, row)?, &q);
        }
    }
    Ok(logits)
}

/// `s q.mu`: what the centre adds to every logit. Where all keys of a head are scored around the centre it may be left out.
///
/// # Errors
/// [`CodecError::Shape`] if `q` has not as many entries as the head has channels.
pub fn shift(codec: &BlockGtq, q: &[f64], scale: f64) -> Result<f64, CodecError> {
    sized(Input::Query, q.len(), codec.dim)?;
    Ok(scale * dot(q, &codec.centre))
}

/// What `decoded` is off `keys` by, both (rows, dim).
///
/// # Errors
/// [`CodecError::Shape`] if the two do not fit; [`CodecError::NonFinite`].
pub fn annotate(codec: &BlockGtq, keys: &[f64], decoded: &[f64]) -> Result<GroupErrors, CodecError> {
    rows(Input::Keys, keys.len(), codec.dim)?;
    sized(Input::Decoded, decoded.len(), keys.len())?;
    finite(Input::Keys, keys, codec.dim)?;
    finite(Input::Decoded, decoded, codec.dim)?;
    let errors: Vec<f64> =
        keys.iter().zip(decoded).zip(codec.balance.iter().cycle()).map(|((k, d), s)| k * s - d * s).collect();
    let (mut largest, mut spectral) = (Vec::new(), Vec::new());
    for group in &codec.groups {
        let of_group: Vec<f64> = errors.chunks_exact(codec.dim).flat_map(|row| group.take(row)).collect();
        let width = group.channels.len();
        let most = of_group.chunks_exact(width).map(sum_squares).fold(0.0, f64::max);
        largest.push(publish(most.sqrt()));
        spectral.push(publish(op_norm_up(&of_group, width)?));
    }
    Ok(GroupErrors { largest, spectral })
}

/// `s sum_G ||q_G/S_G|| e_G`.
fn over_groups(codec: &BlockGtq, q: &[f64], errors: &[f32], scale: f64) -> Result<f64, CodecError> {
    sized(Input::Scale, errors.len(), codec.groups.len())?;
    let folded = codec.folded(q)?;
    let terms = codec.groups.iter().zip(errors).map(|(group, e)| norm(&group.take(&folded)) * f64::from(*e));
    Ok(scale * terms.sum::<f64>() * UP)
}

/// `Delta` of a block, math.md (4.4) with a group per width.
///
/// # Errors
/// [`CodecError::Shape`] if `q` or `errors` does not fit the codec.
pub fn delta(codec: &BlockGtq, q: &[f64], errors: &GroupErrors, scale: f64) -> Result<f64, CodecError> {
    over_groups(codec, q, &errors.largest, scale)
}

/// `Lambda` of a block, math.md (4.9) with a group per width.
///
/// # Errors
/// As [`delta`].
pub fn lambda(codec: &BlockGtq, q: &[f64], errors: &GroupErrors, scale: f64) -> Result<f64, CodecError> {
    over_groups(codec, q, &errors.spectral, scale)
}

#[cfg(test)]
mod tests;
