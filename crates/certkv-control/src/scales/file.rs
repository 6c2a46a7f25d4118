//! Scales as bytes, little-endian:
//!
//! | bytes | what |
//! |---|---|
//! | 8 | magic |
//! | 4 | version |
//! | 4 each | layers, kv_heads, head_dim |
//! | 8 each | f64 percentile, tokens |
//! | 32 each | digests of model and text |
//! | 4 each | f32 magnitudes of keys, then of values, (layers, kv_heads, pieces) |
//! | 8 | checksum of all before it, as in a calibration |
use super::{PIECE, ScaleHeads, Scales};
use crate::calibration::sealed::{self, CHECKSUM};
use crate::calibration::{CalibrationError, Source};

/// How the file begins.
pub const MAGIC: [u8; 8] = *b"certkvSC";
/// The version that is written and read.
pub const VERSION: u32 = 1;

const HEADER: usize = 8 + 4 + 3 * 4 + 2 * 8 + 64;

impl Scales {
    /// The file.
    pub fn to_bytes(&self) -> Vec<u8> {
        let ScaleHeads { layers, kv_heads, head_dim } = self.heads;
        let mut out = sealed::begin(MAGIC, VERSION);
        for n in [layers, kv_heads, head_dim] {
            // All of them were checked to be small.
            out.extend((n as u32).to_le_bytes());
        }
        out.extend(self.percentile.to_le_bytes());
        out.extend(self.source.tokens.to_le_bytes());
        out.extend(self.source.model);
        out.extend(self.source.text);
        out.extend(self.keys.iter().chain(&self.values).flat_map(|x| x.to_le_bytes()));
        sealed::end(out)
    }

    /// Reads what [`Scales::to_bytes`] wrote. Memory grows with the file's length and not with what its header claims.
    ///
    /// # Errors
    /// [`CalibrationError`] says what is wrong: no scales, another version, cut, longer, changed, or holding what no scales hold, such as a
    /// magnitude that is NaN.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, CalibrationError> {
        let short = |need| CalibrationError::Truncated { have: bytes.len(), need };
        let mut file = sealed::open(bytes, MAGIC, VERSION, HEADER)?;
        let mut header = || {
            let heads = ScaleHeads {
                layers: file.u32()? as usize,
                kv_heads: file.u32()? as usize,
                head_dim: file.u32()? as usize,
            };
            let (percentile, tokens) = (f64::from_le_bytes(file.array()?), u64::from_le_bytes(file.array()?));
            Some((heads, percentile, Source { model: file.array()?, text: file.array()?, tokens }))
        };
        let (heads, percentile, source) = header().ok_or(short(HEADER + CHECKSUM))?;
        heads.check()?;
        let count = heads.layers * heads.kv_heads * (heads.head_dim / PIECE);
        let need = HEADER + 8 * count + CHECKSUM;
        sealed::whole(bytes, need)?;
        let keys = file.f32s(count).ok_or(short(need))?;
        let values = file.f32s(count).ok_or(short(need))?;
        Self::new(heads, source, percentile, keys, values)
    }
}
