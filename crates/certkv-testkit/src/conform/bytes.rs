//! Byte accounting: exact.
use super::{ConformError, Family, Report};
use crate::cgv::Vectors;
use certkv_codec::bytes::{Codec, Container, Overhead, block_bytes, codec_bytes};
use certkv_codec::spherical::{Tier, counted};
use certkv_core::Dtype;

pub(crate) const FAMILIES: &[Family] = &[Family { prefix: "bytes", replay: accounting }];

/// Sizes beyond this are no blocks; keeps a damaged file from reserving memory.
const LARGEST: usize = 1 << 16;

fn accounting(_: &str, v: &Vectors, report: &mut Report) -> Result<(), ConformError> {
    let rows = v.i64s("rows")?;
    let names: Vec<&str> = v.text("name")?.split(' ').collect();
    let mut got = Vec::with_capacity(rows.len());
    for (name, row) in names.iter().zip(rows.chunks(5)) {
        let &[tokens, dim, ..] = row else { continue };
        let size = |x: i64| match usize::try_from(x) {
            Ok(n) if n <= LARGEST => Ok(n),
            _ => Err(ConformError::refused(format_args!("no block of size {x}"))),
        };
        let (tokens, dim) = (size(tokens)?, size(dim)?);
        let widths: Vec<u8> = vec![number(name, "gtq") as u8; dim / 2];
        let codec =
            codec_named(name, &widths).ok_or_else(|| ConformError::refused(format_args!("no codec `{name}`")))?;
        let parts = codec_bytes(codec, tokens, dim);
        let whole = block_bytes(codec, tokens, dim, Overhead { annotations: 4, ..Overhead::default() });
        got.extend([tokens, dim, parts.codes, parts.metadata, whole].map(|n| n as i64));
    }
    report.exact_ints("bytes", got, &rows);
    Ok(())
}

/// The number that follows `prefix` in one of the words of a name, 0 if there is none.
fn number(name: &str, prefix: &str) -> usize {
    name.split('_').find_map(|w| w.strip_prefix(prefix)?.parse().ok()).filter(|n| *n <= LARGEST).unwrap_or(0)
}

fn codec_named<'a>(name: &str, widths: &'a [u8]) -> Option<Codec<'a>> {
    let has = |word: &str| name.split('_').any(|w| w == word);
    let (group, per_token) = (number(name, "g"), !has("block"));
    Some(match name.split('_').next()? {
        "fp16" => Codec::Dense,
        "k8" => Codec::Channel8 { meta: if has("f16") { Dtype::F16 } else { Dtype::F32 } },
        "fp8" => Codec::Fp8 { group, per_token, meta: Dtype::F32 },
        "sph" if has("b1") => counted(Tier::B1, Dtype::F16),
        "sph" if has("b2") => counted(Tier::B2, Dtype::F16),
        "sph" if has("b3") => counted(Tier::B3, Dtype::F16),
        w if w.starts_with("gtq") => {
            let container = if has("nibble") { Container::Nibble } else { Container::Packed };
            Codec::Gtq { bits: widths, container, meta: Dtype::F16 }
        }
        w if w.starts_with("sym") => Codec::Symmetric { bits: number(name, "sym"), group, per_token, meta: Dtype::F16 },
        w if w.starts_with('v') => Codec::Affine { bits: number(name, "v"), group, meta: Dtype::F16 },
        _ => return None,
    })
}
