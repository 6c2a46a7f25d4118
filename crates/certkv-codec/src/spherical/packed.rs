//! A block's codes as bytes, for interchange: each token's radii, a byte each, then its indices as a bit stream. That is
//! `ceil(groups (8 + bits) / 8)` bytes a token, what the source paper counts.
use super::{Block, Spherical, block_rows};
use crate::error::{CodecError, Input, finite, rows, sized};
use crate::pack;

/// Bytes of one token's codes.
pub fn row_bytes(codec: &Spherical) -> usize {
    let groups = codec.books.len();
    groups + pack::row_bytes(groups, codec.tier.bits())
}

/// The codes of a block, its scales left out.
///
/// # Errors
/// [`CodecError::Shape`] if the block is none of this codec, [`CodecError::NonFinite`] for a scale that is not finite.
pub fn to_bytes(codec: &Spherical, block: &Block) -> Result<Vec<u8>, CodecError> {
    let groups = codec.books.len();
    let mut out = Vec::with_capacity(block_rows(codec, block)? * row_bytes(codec));
    let packed = pack::pack(&block.indices, groups, codec.tier.bits())?;
    let tails = packed.chunks_exact(pack::row_bytes(groups, codec.tier.bits()));
    for (radii, indices) in block.radii.chunks_exact(groups).zip(tails) {
        out.extend_from_slice(radii);
        out.extend_from_slice(indices);
    }
    Ok(out)
}

/// The block whose codes are `bytes`, with `scale` (groups,).
///
/// # Errors
/// [`CodecError::Shape`] if the bytes are no whole number of tokens or `scale` has another length; [`CodecError::NonFinite`].
pub fn from_bytes(codec: &Spherical, bytes: &[u8], scale: &[f64]) -> Result<Block, CodecError> {
    let (groups, row) = (codec.books.len(), row_bytes(codec));
    let n = rows(Input::Codes, bytes.len(), row)?;
    sized(Input::Scale, scale.len(), groups)?;
    finite(Input::Scale, scale, groups)?;
    let (mut radii, mut packed) = (Vec::with_capacity(n * groups), Vec::new());
    for row in bytes.chunks_exact(row) {
        let (of_radii, of_indices) = row.split_at(groups);
        radii.extend_from_slice(of_radii);
        packed.extend_from_slice(of_indices);
    }
    Ok(Block { indices: pack::unpack(&packed, n, groups, codec.tier.bits())?, radii, scale: scale.to_vec() })
}
