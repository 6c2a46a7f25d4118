//! Codebooks as bytes, little-endian:
//!
//! | bytes | what |
//! |---|---|
//! | 8 | magic |
//! | 4 | version |
//! | 4 each | layers, kv_heads, head_dim, rounds |
//! | 1 each | tier, objective, six zeros |
//! | 8 each | seed, tokens |
//! | 32 each | digests of model and text |
//! | per layer and key head | f64 loss by group, f32 directions (groups, words, channels of a group) |
//! | 8 | checksum of all before it, as in a calibration |
use super::{Codebooks, HeadBooks, KeyHeads, Objective, Training};
use crate::calibration::sealed::{self, CHECKSUM, Reader};
use crate::calibration::{CalibrationError, Source};
use certkv_codec::spherical::Tier;

/// How the file begins.
pub const MAGIC: [u8; 8] = *b"certkvSP";
/// The version that is written and read.
pub const VERSION: u32 = 1;

const HEADER: usize = 8 + 4 + 4 * 4 + 8 + 2 * 8 + 64;

impl Codebooks {
    /// The file.
    pub fn to_bytes(&self) -> Vec<u8> {
        let KeyHeads { layers, kv_heads, head_dim } = self.heads;
        let mut out = sealed::begin(MAGIC, VERSION);
        for n in [layers, kv_heads, head_dim, self.training.rounds] {
            // All of them were checked to be small.
            out.extend((n as u32).to_le_bytes());
        }
        let at = |found: Option<usize>| found.unwrap_or(usize::from(u8::MAX)) as u8;
        let tier = at(Tier::ALL.iter().position(|t| *t == self.tier));
        let objective = at(Objective::ALL.iter().position(|o| *o == self.training.objective));
        out.extend([tier, objective, 0, 0, 0, 0, 0, 0]);
        out.extend(self.training.seed.to_le_bytes());
        out.extend(self.source.tokens.to_le_bytes());
        out.extend(self.source.model);
        out.extend(self.source.text);
        for head in &self.books {
            out.extend(head.loss.iter().flat_map(|x| x.to_le_bytes()));
            out.extend(head.words.iter().flat_map(|x| x.to_le_bytes()));
        }
        sealed::end(out)
    }

    /// Reads what [`Codebooks::to_bytes`] wrote. Memory grows with the file's length and not with what its header claims.
    ///
    /// # Errors
    /// [`CalibrationError`] says what is wrong: no codebooks, another version, cut, longer, changed, or holding what no codebook
    /// holds, such as a direction that is not of length 1.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, CalibrationError> {
        let short = |need| CalibrationError::Truncated { have: bytes.len(), need };
        let mut file = sealed::open(bytes, MAGIC, VERSION, HEADER)?;
        let (heads, tier, training, source) = header(&mut file).ok_or(short(HEADER + CHECKSUM))??;
        let (groups, count) = (heads.head_dim / tier.group(), heads.layers * heads.kv_heads);
        let need = HEADER + count * groups * (8 + 4 * tier.book_len()) + CHECKSUM;
        sealed::whole(bytes, need)?;
        let mut head = || Some(HeadBooks { loss: file.f64s(groups)?, words: file.f32s(groups * tier.book_len())? });
        let books = (0..count).map(|_| head().ok_or(short(need))).collect::<Result<_, _>>()?;
        Self::new(heads, source, tier, training, books)
    }
}

type Header = (KeyHeads, Tier, Training, Source);

/// The header behind magic and version; none if the bytes end in it.
fn header(file: &mut Reader<'_>) -> Option<Result<Header, CalibrationError>> {
    let mut numbers = [0; 4];
    for n in &mut numbers {
        *n = file.u32()? as usize;
    }
    let [tier, objective, zeros @ ..] = file.array::<8>()?;
    let (seed, tokens) = (u64::from_le_bytes(file.array()?), u64::from_le_bytes(file.array()?));
    let source = Source { model: file.array()?, text: file.array()?, tokens };
    let field = |what, found: u8| CalibrationError::Field { what, found: u64::from(found) };
    let read = || {
        let [layers, kv_heads, head_dim, rounds] = numbers;
        let tier = *Tier::ALL.get(usize::from(tier)).ok_or(field("tier", tier))?;
        let objective = *Objective::ALL.get(usize::from(objective)).ok_or(field("objective", objective))?;
        if let Some(found) = zeros.iter().find(|zero| **zero != 0) {
            return Err(field("reserved", *found));
        }
        let heads = KeyHeads { layers, kv_heads, head_dim };
        heads.check(tier.group())?;
        Ok((heads, tier, Training { objective, seed, rounds }, source))
    };
    Some(read())
}
