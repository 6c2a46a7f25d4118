//! Byte accounting, math.md section 10: every byte of a block, headers included.
//!
//! This is the arithmetic of the interchange form (packed rows, a header per block); what a record really takes in
//! memory is `certkv_core::RecordLayout::bytes`.
use certkv_core::Dtype;

/// How codes narrower than a byte are held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Container {
    /// Bit stream.
    Packed,
    /// 4 bits for widths up to 4, else 8.
    Nibble,
}

/// A codec, as far as its bytes go. `group` counts channels per scale.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Codec<'a> {
    /// 16-bit originals.
    Dense,
    /// K8 keys.
    Channel8 {
        /// Scale type.
        meta: Dtype,
    },
    /// Affine values.
    Affine {
        /// Bits of a code.
        bits: usize,
        /// Channels per scale.
        group: usize,
        /// Scale type.
        meta: Dtype,
    },
    /// Symmetric codes.
    Symmetric {
        /// Bits of a code.
        bits: usize,
        /// Channels per scale.
        group: usize,
        /// One scale per token and group, or per block and group.
        per_token: bool,
        /// Scale type.
        meta: Dtype,
    },
    /// FP8 codes.
    Fp8 {
        /// Channels per scale.
        group: usize,
        /// One scale per token and group, or per block and group.
        per_token: bool,
        /// Scale type.
        meta: Dtype,
    },
    /// Block-GTQ: one radius per token and width.
    Gtq {
        /// Width of each RoPE pair.
        bits: &'a [u8],
        /// How codes are held.
        container: Container,
        /// Radius type.
        meta: Dtype,
    },
    /// Spherical groups: 8-bit radii, one scale per block and group.
    Spherical {
        /// Channels per codeword.
        group: usize,
        /// Bits of a codeword index.
        bits: usize,
        /// Scale type.
        meta: Dtype,
    },
}

/// Bytes of one block: codes and metadata.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CodecBytes {
    /// Codes.
    pub codes: usize,
    /// Scales, offsets, radii.
    pub metadata: usize,
}

/// What is stored beside codes and metadata.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Overhead {
    /// Annotations of a block, numbers of 4 bytes.
    pub annotations: usize,
    /// Block header.
    pub header: usize,
    /// Alignment of the code section and of the metadata section.
    pub alignment: usize,
    /// Page-table entry.
    pub entry: usize,
}

impl Default for Overhead {
    /// No annotations, 16-byte header and alignment, 8-byte entries.
    fn default() -> Self {
        Self { annotations: 0, header: 16, alignment: 16, entry: 8 }
    }
}

/// Codes and metadata of one block of `tokens` tokens and `dim` channels of one KV head. A group of 0 counts as 1.
pub fn codec_bytes(codec: Codec<'_>, tokens: usize, dim: usize) -> CodecBytes {
    let packed = |bits: usize| tokens * (dim * bits).div_ceil(8);
    let scales = |group: usize, per_token: bool| dim / group.max(1) * if per_token { tokens } else { 1 };
    let (codes, metadata) = match codec {
        Codec::Dense => (2 * tokens * dim, 0),
        Codec::Channel8 { meta } => (tokens * dim, 2 * dim * meta.bytes()),
        Codec::Affine { bits, group, meta } => (packed(bits), 2 * scales(group, true) * meta.bytes()),
        Codec::Symmetric { bits, group, per_token, meta } => (packed(bits), scales(group, per_token) * meta.bytes()),
        Codec::Fp8 { group, per_token, meta } => (tokens * dim, scales(group, per_token) * meta.bytes()),
        Codec::Gtq { bits, container, meta } => {
            let (row, widths) = gtq_row(bits, container);
            (tokens * row, tokens * widths * meta.bytes())
        }
        Codec::Spherical { group, bits, meta } => {
            let groups = dim / group.max(1);
            (tokens * (groups * (8 + bits)).div_ceil(8), groups * meta.bytes())
        }
    };
    CodecBytes { codes, metadata }
}

/// Bytes of one token's codes and the number of different widths.
fn gtq_row(bits: &[u8], container: Container) -> (usize, usize) {
    let (mut row, mut widths) = (0, 0);
    for width in 0..=u8::MAX {
        let channels = 2 * bits.iter().filter(|b| **b == width).count();
        if channels == 0 {
            continue;
        }
        let held = match container {
            Container::Packed => width as usize,
            Container::Nibble if width <= 4 => 4,
            Container::Nibble => 8,
        };
        row += (channels * held).div_ceil(8);
        widths += 1;
    }
    (row, widths)
}

/// One block: `align(codes) + align(metadata + 4 annotations + header)`, math.md (10.1).
pub fn block_bytes(codec: Codec<'_>, tokens: usize, dim: usize, overhead: Overhead) -> usize {
    let CodecBytes { codes, metadata } = codec_bytes(codec, tokens, dim);
    let align = |n: usize| n.next_multiple_of(overhead.alignment.max(1));
    align(codes) + align(metadata + 4 * overhead.annotations + overhead.header)
}

/// One KV head of a sequence of `tokens` tokens: full blocks coded, the last partial block whole in 16 bit, two
/// page-table entries per block, math.md (10.2). `key` and `value` carry the overhead of their blocks; alignment and
/// entry of the tail are the keys'.
pub fn sequence_bytes(
    tokens: usize,
    block: usize,
    dim: usize,
    key: (Codec<'_>, Overhead),
    value: (Codec<'_>, Overhead),
) -> usize {
    let block = block.max(1);
    let (full, tail) = (tokens / block, tokens % block);
    let entries = key.1.entry + value.1.entry;
    let coded = block_bytes(key.0, block, dim, key.1) + block_bytes(value.0, block, dim, value.1) + entries;
    let dense = 2 * (2 * block * dim).next_multiple_of(key.1.alignment.max(1)) + entries;
    full * coded + if tail > 0 { dense } else { 0 }
}

/// The same keys and values as 16-bit originals.
pub const fn dense_bytes(tokens: usize, dim: usize) -> usize {
    4 * tokens * dim
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_the_specification() {
        // Bytes per token, d = 128, without header and alignment: math.md section 10.
        let per_token = |codec, block: usize| {
            let b = codec_bytes(codec, block, 128);
            ((b.codes / block), (b.metadata as f64 / block as f64))
        };
        assert_eq!(per_token(Codec::Channel8 { meta: Dtype::F32 }, 16), (128, 64.0));
        for (block, metadata) in [(16, 32.0), (32, 16.0), (64, 8.0)] {
            assert_eq!(per_token(Codec::Channel8 { meta: Dtype::F16 }, block), (128, metadata));
        }
        for (bits, group, want) in [(4, 16, (64, 32.0)), (6, 64, (96, 8.0)), (8, 64, (128, 8.0))] {
            assert_eq!(per_token(Codec::Affine { bits, group, meta: Dtype::F16 }, 16), want);
        }
        let bits = [3; 64];
        assert_eq!(
            codec_bytes(Codec::Gtq { bits: &bits, container: Container::Packed, meta: Dtype::F16 }, 1, 128).codes,
            48
        );
        assert_eq!(
            codec_bytes(Codec::Gtq { bits: &bits, container: Container::Nibble, meta: Dtype::F16 }, 1, 128).codes,
            64
        );
    }

    #[test]
    fn a_sequence_counts_blocks_entries_and_the_whole_tail() {
        let key = (Codec::Channel8 { meta: Dtype::F16 }, Overhead { annotations: 2, ..Overhead::default() });
        let value = (
            Codec::Affine { bits: 4, group: 16, meta: Dtype::F16 },
            Overhead { annotations: 4, ..Overhead::default() },
        );
        let one = 2048 + (512 + 8 + 16usize).next_multiple_of(16) + 1024 + 512 + 32 + 16;
        assert_eq!(sequence_bytes(16, 16, 128, key, value), one);
        assert_eq!(sequence_bytes(33, 16, 128, key, value), 2 * one + 2 * 4096 + 16);
        assert_eq!(sequence_bytes(0, 16, 128, key, value), 0);
        assert_eq!(dense_bytes(2, 128), 1024);
    }
}
