//! Calibrations as bytes, little-endian:
//!
//! | bytes | what |
//! |---|---|
//! | 8 | magic |
//! | 4 | version |
//! | 4 each | layers, q_heads, kv_heads, head_dim, rotary, budget |
//! | 1 each | pairing, score, least bits, most bits, centred, balanced, two zeros |
//! | 8 | tokens |
//! | 32 each | digests of model and text |
//! | per layer and key head | f64 query energies, f64 key energies (by pair), f64 mean key, f32 least and greatest key, balance, centre (by channel), bits (a byte a pair) |
//! | 8 | checksum of all before it |
use super::sealed::{self, CHECKSUM, Reader};
use super::{Calibration, CalibrationError, HeadScheme, Heads, Rule, Seen, Source};
use crate::score::SCORES;
use certkv_core::Pairing;

/// How the file begins.
pub const MAGIC: [u8; 8] = *b"certkvGQ";
/// The version that is written and read.
pub const VERSION: u32 = 1;

const HEADER: usize = 8 + 4 + 6 * 4 + 8 + 8 + 64;
const PAIRINGS: [Pairing; 2] = [Pairing::Half, Pairing::Interleaved];

impl Calibration {
    /// The file.
    pub fn to_bytes(&self) -> Vec<u8> {
        let (heads, rule, source) = (&self.heads, &self.rule, &self.source);
        let mut out = sealed::begin(MAGIC, VERSION);
        for n in [heads.layers, heads.q_heads, heads.kv_heads, heads.head_dim, heads.rotary, rule.budget] {
            // All of them were checked to be small.
            out.extend((n as u32).to_le_bytes());
        }
        let at = |found: Option<usize>| found.unwrap_or(usize::from(u8::MAX)) as u8;
        let pairing = at(PAIRINGS.iter().position(|p| *p == heads.pairing));
        let score = at(SCORES.iter().position(|s| *s == rule.score));
        out.extend([pairing, score, rule.least, rule.most, rule.centred.into(), rule.balanced.into(), 0, 0]);
        out.extend(source.tokens.to_le_bytes());
        out.extend(source.model);
        out.extend(source.text);
        for (seen, scheme) in self.seen.iter().zip(&self.schemes) {
            for numbers in [&seen.queries, &seen.keys, &seen.mean] {
                out.extend(numbers.iter().flat_map(|x| x.to_le_bytes()));
            }
            for numbers in [&seen.low, &seen.high, &scheme.balance, &scheme.centre] {
                out.extend(numbers.iter().flat_map(|x| x.to_le_bytes()));
            }
            out.extend(&scheme.bits);
        }
        sealed::end(out)
    }

    /// Reads what [`Calibration::to_bytes`] wrote. Memory grows with the file's length and not with what its header claims.
    ///
    /// # Errors
    /// [`CalibrationError`] says what is wrong: not a calibration, another version, cut, longer, changed, or holding what no
    /// calibration holds.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, CalibrationError> {
        let short = |need| CalibrationError::Truncated { have: bytes.len(), need };
        let mut file = sealed::open(bytes, MAGIC, VERSION, HEADER)?;
        let (heads, rule, source) = header(&mut file).ok_or(short(HEADER + CHECKSUM))??;
        let (pairs, dim, count) = (heads.pairs(), heads.head_dim, heads.layers * heads.kv_heads);
        let need = HEADER + count * (17 * pairs + 24 * dim) + CHECKSUM;
        sealed::whole(bytes, need)?;
        let (mut seen, mut schemes) = (Vec::with_capacity(count), Vec::with_capacity(count));
        for at in 0..count {
            let (head, scheme) = file.head(pairs, dim).ok_or(short(need))?;
            head.check(&heads, at)?;
            scheme.check(&heads, &rule, at)?;
            seen.push(head);
            schemes.push(scheme);
        }
        Ok(Self { heads, source, rule, seen, schemes })
    }
}

/// The header behind magic and version; none if the bytes end in it.
fn header(file: &mut Reader<'_>) -> Option<Result<(Heads, Rule, Source), CalibrationError>> {
    let mut numbers = [0; 6];
    for n in &mut numbers {
        *n = file.u32()? as usize;
    }
    let [pairing, score, least, most, centred, balanced, zero, last] = file.array::<8>()?;
    let tokens = u64::from_le_bytes(file.array()?);
    let source = Source { model: file.array()?, text: file.array()?, tokens };
    let field = |what, found: u8| CalibrationError::Field { what, found: u64::from(found) };
    let read = || {
        let [layers, q_heads, kv_heads, head_dim, rotary, budget] = numbers;
        let pairing = *PAIRINGS.get(usize::from(pairing)).ok_or(field("pairing", pairing))?;
        let score = *SCORES.get(usize::from(score)).ok_or(field("score", score))?;
        for (what, flag, most) in [("centred", centred, 1), ("balanced", balanced, 1), ("reserved", zero | last, 0)] {
            if flag > most {
                return Err(field(what, flag));
            }
        }
        let heads = Heads { layers, q_heads, kv_heads, head_dim, rotary, pairing };
        let rule = Rule { budget, least, most, score, centred: centred == 1, balanced: balanced == 1 };
        heads.check()?;
        rule.check(&heads)?;
        Ok((heads, rule, source))
    };
    Some(read())
}

impl HeadScheme {
    fn check(&self, heads: &Heads, rule: &Rule, at: usize) -> Result<(), CalibrationError> {
        let (layer, head) = (at / heads.kv_heads, at % heads.kv_heads);
        let refuse = |what, index| Err(CalibrationError::Number { layer, head, what, index });
        if let Some(index) = self.bits.iter().position(|b| !(rule.least..=rule.most).contains(b)) {
            return refuse("bits", index);
        }
        if self.bits.iter().map(|b| usize::from(*b)).sum::<usize>() != rule.budget {
            return refuse("bits", self.bits.len());
        }
        if let Some(index) = self.balance.iter().position(|s| !(*s > 0.0 && s.is_finite())) {
            return refuse("balance", index);
        }
        match self.centre.iter().position(|c| !c.is_finite()) {
            Some(index) => refuse("centre", index),
            None => Ok(()),
        }
    }
}

impl Reader<'_> {
    fn head(&mut self, pairs: usize, dim: usize) -> Option<(Seen, HeadScheme)> {
        let (queries, keys, mean) = (self.f64s(pairs)?, self.f64s(pairs)?, self.f64s(dim)?);
        let (low, high) = (self.f32s(dim)?, self.f32s(dim)?);
        let (balance, centre, bits) = (self.f32s(dim)?, self.f32s(dim)?, self.take(pairs)?.to_vec());
        Some((Seen { queries, keys, mean, low, high }, HeadScheme { bits, balance, centre }))
    }
}
