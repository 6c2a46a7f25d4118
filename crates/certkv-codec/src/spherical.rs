//! Spherical keys, math.md 2.9: a head is cut into groups of neighbouring channels; of each group are kept the index of the
//! direction in a codebook that is nearest to it, and how far it reaches along that direction. A query meets the codebooks once,
//! and a key is then scored by a look-up and a product for each group.
//!
//! Nothing here assumes that the directions are good ones: `certkv_control` trains them, and the errors of a block are measured.
use crate::annotate::annotate_keys;
use crate::bytes::Codec;
use crate::error::{CodecError, Input, finite, rows, sized};
use crate::logit;
use crate::numeric::{divisor, norm};
use crate::turboquant::Radius;
use certkv_core::{
    Dtype,
    round::{Fp, up},
};

mod directions;
mod packed;
mod record;

pub use certkv_core::{Tier, UnknownTier};
pub use directions::{Directions, UNIT};
pub use packed::{from_bytes, row_bytes, to_bytes};

/// What the accounting of bytes calls a tier, with scales of type `meta`.
pub const fn counted(tier: Tier, meta: Dtype) -> Codec<'static> {
    Codec::Spherical { group: tier.group(), bits: tier.bits() as usize, meta }
}

/// How the keys of a head are coded.
#[derive(Debug, Clone, Copy)]
pub struct Scheme<'a> {
    /// Sizes of groups and codebooks.
    pub tier: Tier,
    /// Unit directions, (groups, words, channels of a group): `2^bits` numbers for each channel of the head.
    pub words: &'a [f32],
    /// Which radius is stored: the projection, or the published length of the group.
    pub radius: Radius,
    /// Type of the scales of radii.
    pub meta: Dtype,
}

impl<'a> Scheme<'a> {
    /// Projections as radii, their scales in f16.
    pub const fn new(tier: Tier, words: &'a [f32]) -> Self {
        Self { tier, words, radius: Radius::LeastSquares, meta: Dtype::F16 }
    }
}

/// A scheme made ready: its directions checked, and laid out so that a group meets several at once.
#[derive(Debug, Clone)]
pub struct Spherical {
    tier: Tier,
    books: Vec<Directions>,
    radius: Radius,
    meta: Dtype,
}

/// A coded block.
#[derive(Debug, Clone, PartialEq)]
pub struct Block {
    /// Positions of the directions in the codebooks of their groups, row-major (rows, groups).
    pub indices: Vec<u8>,
    /// Radii in units of their group's scale, row-major (rows, groups).
    pub radii: Vec<u8>,
    /// Scales of the radii, (groups,).
    pub scale: Vec<f64>,
}

/// What a block's decoded form is off by, group by group, math.md (3.5), (3.6).
#[derive(Debug, Clone, PartialEq)]
pub struct GroupErrors {
    /// `max_t ||e_t^(G)||`.
    pub largest: Vec<f32>,
    /// `||E_G||_op`.
    pub spectral: Vec<f32>,
}

/// What a query makes of every direction, (2.22): one table for all blocks of the head.
#[derive(Debug, Clone, PartialEq)]
pub struct Table {
    words: usize,
    products: Vec<f64>,
}

impl Spherical {
    /// The codebooks of `scheme`.
    ///
    /// # Errors
    /// [`CodecError::Shape`] if they are not those of a whole number of groups, [`CodecError::NotUnit`] for a direction that is
    /// not finite or not of length 1 to `2^-20`.
    pub fn new(scheme: &Scheme<'_>) -> Result<Self, CodecError> {
        let tier = scheme.tier;
        rows(Input::Codebook, scheme.words.len(), tier.book_len())?;
        let book = |(group, words): (usize, &[f32])| {
            let wide: Vec<f64> = words.iter().map(|x| f64::from(*x)).collect();
            Directions::new(&wide, tier.group()).map_err(|e| match e {
                CodecError::NotUnit { word, .. } => CodecError::NotUnit { group, word },
                other => other,
            })
        };
        let books = scheme.words.chunks_exact(tier.book_len()).enumerate().map(book).collect::<Result<_, _>>()?;
        Ok(Self { tier, books, radius: scheme.radius, meta: scheme.meta })
    }

    /// Sizes of groups and codebooks.
    pub const fn tier(&self) -> Tier {
        self.tier
    }

    /// Channels of a head.
    pub fn channels(&self) -> usize {
        self.books.len() * self.tier.group()
    }

    /// The codebooks, in order of their groups.
    pub fn books(&self) -> &[Directions] {
        &self.books
    }
}

/// Codes `keys` (rows, dim).
///
/// # Errors
/// [`CodecError::Shape`], [`CodecError::NonFinite`], or [`CodecError::ScaleOverflow`] for a scale that its type cannot hold.
pub fn encode(codec: &Spherical, keys: &[f64]) -> Result<Block, CodecError> {
    let (dim, groups, width) = (codec.channels(), codec.books.len(), codec.tier.group());
    let n = rows(Input::Keys, keys.len(), dim)?;
    finite(Input::Keys, keys, dim)?;
    let (mut indices, mut reach) = (Vec::with_capacity(n * groups), Vec::with_capacity(n * groups));
    let mut scale = vec![0.0f64; groups];
    for key in keys.chunks_exact(dim) {
        for ((part, book), most) in key.chunks_exact(width).zip(&codec.books).zip(&mut scale) {
            let (index, product) = book.nearest(part);
            let r = if codec.radius == Radius::Norm { norm(part) } else { product.max(0.0) };
            indices.push(index);
            reach.push(r);
            *most = most.max(r);
        }
    }
    for (group, s) in scale.iter_mut().enumerate() {
        *s = up(*s / 255.0, Fp::from(codec.meta));
        if !s.is_finite() {
            let channel = group * width;
            return Err(CodecError::ScaleOverflow { input: Input::Keys, row: 0, channel, meta: codec.meta });
        }
    }
    let code = |(r, s): (&f64, &f64)| (r / divisor(*s)).round_ties_even().clamp(0.0, 255.0) as u8;
    let radii = reach.iter().zip(scale.iter().cycle()).map(code).collect();
    Ok(Block { indices, radii, scale })
}

/// Rows of `block`, which must be one of the codec's.
fn block_rows(codec: &Spherical, block: &Block) -> Result<usize, CodecError> {
    let groups = codec.books.len();
    sized(Input::Scale, block.scale.len(), groups)?;
    finite(Input::Scale, &block.scale, groups)?;
    let n = rows(Input::Codes, block.indices.len(), groups)?;
    sized(Input::Codes, block.radii.len(), block.indices.len())?;
    let (got, want) = (usize::from(block.indices.iter().copied().max().unwrap_or(0)), codec.tier.words());
    if got < want { Ok(n) } else { Err(CodecError::Shape { input: Input::Codes, got, want }) }
}

/// The decoded keys, row-major (rows, dim), math.md (2.21).
///
/// # Errors
/// [`CodecError::Shape`] if the block is none of this codec, [`CodecError::NonFinite`] for a scale that is not finite.
pub fn decode(codec: &Spherical, block: &Block) -> Result<Vec<f64>, CodecError> {
    let n = block_rows(codec, block)?;
    let mut keys = Vec::with_capacity(n * codec.channels());
    let codes = block.indices.iter().zip(&block.radii).zip(block.scale.iter().zip(&codec.books).cycle());
    for ((index, u), (scale, book)) in codes {
        let r = scale * f64::from(*u);
        keys.extend(book.word(*index).iter().map(|c| c * r));
    }
    Ok(keys)
}

/// The products of a query with every direction.
///
/// # Errors
/// [`CodecError::Shape`] if `q` has not as many entries as the head has channels; [`CodecError::NonFinite`].
pub fn table(codec: &Spherical, q: &[f64]) -> Result<Table, CodecError> {
    sized(Input::Query, q.len(), codec.channels())?;
    finite(Input::Query, q, q.len())?;
    let parts = q.chunks_exact(codec.tier.group()).zip(&codec.books);
    Ok(Table { words: codec.tier.words(), products: parts.flat_map(|(part, book)| book.products(part)).collect() })
}

/// Logits from codes, (rows,), math.md (2.22): no key is decoded.
///
/// # Errors
/// As [`decode`], or if the table is one of another codec.
pub fn score(codec: &Spherical, block: &Block, table: &Table, scale: f64) -> Result<Vec<f64>, CodecError> {
    block_rows(codec, block)?;
    let groups = codec.books.len();
    sized(Input::Query, table.words, codec.tier.words())?;
    sized(Input::Query, table.products.len(), groups * table.words)?;
    let row = |(indices, radii): (&[u8], &[u8])| {
        let codes = indices.iter().zip(radii).zip(block.scale.iter().zip(table.products.chunks_exact(table.words)));
        let term = |((index, u), (s, products)): ((&u8, &u8), (&f64, &[f64]))| {
            s * f64::from(*u) * products.get(usize::from(*index)).copied().unwrap_or(f64::NAN)
        };
        scale * codes.map(term).sum::<f64>()
    };
    Ok(block.indices.chunks_exact(groups).zip(block.radii.chunks_exact(groups)).map(row).collect())
}

/// What `decoded` is off `keys` by, both (rows, dim).
///
/// # Errors
/// [`CodecError::Shape`] if the two do not fit; [`CodecError::NonFinite`].
pub fn annotate(codec: &Spherical, keys: &[f64], decoded: &[f64]) -> Result<GroupErrors, CodecError> {
    let found = annotate_keys(keys, decoded, codec.channels(), codec.tier.group(), None)?;
    Ok(GroupErrors { largest: found.group_errors, spectral: found.group_norms })
}

fn over_groups(codec: &Spherical, q: &[f64], errors: &[f32], scale: f64) -> Result<f64, CodecError> {
    sized(Input::Query, q.len(), codec.channels())?;
    sized(Input::Scale, errors.len(), codec.books.len())?;
    let errors: Vec<f64> = errors.iter().map(|e| f64::from(*e)).collect();
    Ok(logit::delta_groups(q, &errors, codec.tier.group(), scale))
}

/// `Delta` of a block, math.md (4.4).
///
/// # Errors
/// [`CodecError::Shape`] if `q` or `errors` does not fit the codec.
pub fn delta(codec: &Spherical, q: &[f64], errors: &GroupErrors, scale: f64) -> Result<f64, CodecError> {
    over_groups(codec, q, &errors.largest, scale)
}

/// `Lambda` of a block, math.md (4.9).
///
/// # Errors
/// As [`delta`].
pub fn lambda(codec: &Spherical, q: &[f64], errors: &GroupErrors, scale: f64) -> Result<f64, CodecError> {
    over_groups(codec, q, &errors.spectral, scale)
}

#[cfg(test)]
mod tests;
