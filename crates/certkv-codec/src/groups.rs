//! Groups of channels of one width, math.md (2.18): which channels they are, how they are rotated, and what their codes stand for.
//!
//! [`Group`] is what [`crate::gtq`] codes; [`KeyGroups`] are those of a record's Block-GTQ keys (2.19c), whose levels are bytes.
use crate::error::{CodecError, Input, sized};
use crate::planes::{place_key_row, write_planes};
use crate::rotation::{self, Rotation};
use crate::turboquant::{Book, last_level, level_bytes, round_radius};
use certkv_core::{
    Dtype, GroupCode, KeyFormat, Pairing, RecordLayout, TURBO_BITS, fragment::Run, hash::hash64, tiles::gtq_tile,
};
use core::ops::Range;
use std::sync::Arc;

/// The pairs of one width.
#[derive(Debug, Clone)]
pub struct Group {
    pub(crate) bits: u8,
    pub(crate) channels: Vec<usize>,
    pub(crate) rotation: Rotation<f64>,
    pub(crate) book: Arc<Book>,
}

impl Group {
    /// Bits of a channel.
    pub const fn bits(&self) -> u8 {
        self.bits
    }

    /// Channels of the head in the order in which they are coded.
    pub fn channels(&self) -> &[usize] {
        &self.channels
    }

    pub(crate) fn take(&self, row: &[f64]) -> Vec<f64> {
        self.channels.iter().map(|c| row[*c]).collect()
    }
}

/// The groups of a schedule, (2.18): widths of 1 to `most` ascending, pairs ascending. `book(channels, bits)` are the levels.
///
/// # Errors
/// [`CodecError::Width`] for a pair of other widths; [`CodecError::Shape`] if the schedule is empty or `rotary` is no number of channels.
pub(crate) fn groups(
    bits: &[u8],
    pairing: Pairing,
    rotary: usize,
    seed: u64,
    most: u8,
    book: impl Fn(usize, u8) -> Arc<Book>,
) -> Result<Vec<Group>, CodecError> {
    let dim = 2 * bits.len();
    if bits.is_empty() {
        return Err(CodecError::Shape { input: Input::Schedule, got: 0, want: 1 });
    }
    if let Some(pair) = bits.iter().position(|b| !(1..=most).contains(b)) {
        return Err(CodecError::Width { pair, bits: bits[pair], most });
    }
    if rotary > dim || !rotary.is_multiple_of(2) {
        return Err(CodecError::Shape { input: Input::Parameters, got: rotary, want: dim });
    }
    let group = |width: u8| {
        let pairs = (0..bits.len()).filter(|pair| bits[*pair] == width);
        let channels: Vec<usize> = pairs.flat_map(|pair| pairing.channels(rotary, pair)).collect();
        let rotation = Rotation::new(channels.len(), hash64(&[seed, u64::from(width)]));
        (!channels.is_empty()).then(|| Group { bits: width, book: book(channels.len(), width), channels, rotation })
    };
    Ok((1..=most).filter_map(group).collect())
}

/// The groups of a head's keys in a record, and what kernels need of them.
#[derive(Debug, Clone)]
pub struct KeyGroups {
    dim: usize,
    groups: Vec<Group>,
    parts: Vec<KeyPart>,
}

/// One group as a record holds it.
#[derive(Debug, Clone)]
pub struct KeyPart {
    /// Places of its channels in the order in which the head is coded.
    pub places: Range<usize>,
    /// Bits of a channel.
    pub bits: u8,
    /// What codes stand for, 128 too large ([`level_bytes`]).
    pub levels: [u8; 64],
    /// Its rotation in single precision.
    pub single: Rotation<f32>,
    /// Bits of the channels before it.
    before: usize,
}

impl KeyPart {
    /// Where its codes lie in the key codes of a block of `tokens` tokens.
    pub const fn codes(&self, tokens: usize) -> Range<usize> {
        let start = tokens * self.before / 8;
        start..start + tokens * (self.places.end - self.places.start) * self.bits as usize / 8
    }
}

impl KeyGroups {
    /// Groups for `bits` of each pair, (dim / 2,), 1 to [`TURBO_BITS`], in a head of which the first `rotary` channels are turned. Some
    /// milliseconds for group sizes that no head had before.
    ///
    /// # Errors
    /// [`CodecError::Width`], or [`CodecError::Shape`] for an empty schedule, an odd `rotary` or one past the head.
    pub fn new(bits: &[u8], pairing: Pairing, rotary: usize) -> Result<Self, CodecError> {
        let groups = groups(bits, pairing, rotary, rotation::SEED, TURBO_BITS, Book::bytes)?;
        let (mut at, mut before) = (0, 0);
        let mut part = |group: &Group| {
            let (n, start) = (group.channels.len(), at);
            let levels = level_bytes(n, group.bits);
            let single = Rotation::new(n, hash64(&[rotation::SEED, u64::from(group.bits)]));
            let part = KeyPart { places: start..start + n, bits: group.bits, levels, single, before };
            (at, before) = (start + n, before + n * usize::from(group.bits));
            part
        };
        let parts = groups.iter().map(&mut part).collect();
        Ok(Self { dim: 2 * bits.len(), groups, parts })
    }

    /// Channels of the head.
    pub const fn channels(&self) -> usize {
        self.dim
    }

    /// The groups, widths ascending.
    pub fn groups(&self) -> &[Group] {
        &self.groups
    }

    /// The same as records hold them.
    pub fn parts(&self) -> &[KeyPart] {
        &self.parts
    }

    /// Their widths, as the order of codes on a GPU goes by them.
    pub fn runs(&self) -> Vec<Run> {
        self.parts.iter().map(|part| Run { channels: part.places.len(), bits: usize::from(part.bits) }).collect()
    }

    /// The scale of each channel that keys are coded in, given that of the calibration, (dim,): what groups of unlike width are off by
    /// becomes alike, (2.19d).
    pub fn weighted(&self, balance: &[f32]) -> Vec<f32> {
        let mut scale = balance.to_vec();
        for group in &self.groups {
            let whole = f32::from(1u16 << (group.bits / 2));
            let weight = if group.bits.is_multiple_of(2) { whole } else { whole * core::f32::consts::SQRT_2 };
            for channel in &group.channels {
                if let Some(scale) = scale.get_mut(*channel) {
                    *scale *= weight;
                }
            }
        }
        scale
    }

    /// Refuses records that do not hold such keys: another head, other bits in all, widths that are no tiles of the block, or codes
    /// that have no groups.
    ///
    /// # Errors
    /// [`CodecError::Shape`] naming the schedule, with bytes of codes or channels; [`CodecError::Metric`].
    pub fn check(&self, layout: &RecordLayout) -> Result<(), CodecError> {
        if !matches!(layout.format.key, KeyFormat::Gtq { code: GroupCode::Widths { .. } }) {
            return Err(CodecError::Metric { needed: false });
        }
        let tile = gtq_tile(layout.tokens());
        let bytes = self.parts.last().map_or(0, |part| part.codes(layout.tokens()).end);
        sized(Input::Schedule, self.dim, layout.dim)?;
        sized(Input::Schedule, bytes, layout.key_codes.len())?;
        match self.parts.iter().find(|part| !part.places.len().is_multiple_of(tile)) {
            Some(part) => Err(CodecError::Shape { input: Input::Schedule, got: part.places.len(), want: tile }),
            None => Ok(()),
        }
    }

    fn each(&self) -> impl Iterator<Item = (&Group, &KeyPart)> {
        self.groups.iter().zip(&self.parts)
    }

    /// A row of the head as it is coded: in order, and each group rotated. `room` is of the row's length.
    pub(crate) fn turn(&self, row: &mut [f64], room: &mut [f64]) {
        room.copy_from_slice(row);
        for (group, part) in self.each() {
            let to = &mut row[part.places.clone()];
            to.iter_mut().zip(&group.channels).for_each(|(to, c)| *to = room[*c]);
            group.rotation.turn(to);
        }
    }

    /// The inverse of [`KeyGroups::turn`].
    pub(crate) fn turn_back(&self, row: &mut [f64]) {
        let mut turned = row.to_vec();
        for (group, part) in self.each() {
            let from = &mut turned[part.places.clone()];
            group.rotation.turn_back(from);
            from.iter().zip(&group.channels).for_each(|(from, c)| row[*c] = *from);
        }
    }

    /// A query, (dim,), as it meets codes, into `out` of the same length.
    pub fn turn_query(&self, q: &[f32], out: &mut [f32]) {
        for (group, part) in self.each() {
            let to = &mut out[part.places.clone()];
            to.iter_mut().zip(&group.channels).for_each(|(to, c)| *to = q[*c]);
            part.single.turn(to);
        }
    }

    /// Codes of a turned row, and its radii, as many as there is room for; those without a group are 0.
    pub(crate) fn fit(&self, y: &[f64], row: usize, codes: &mut [u8], radii: &mut [f64]) -> Result<(), CodecError> {
        radii.fill(0.0);
        for ((group, part), radius) in self.each().zip(radii) {
            let fitted = group.book.code_row(&y[part.places.clone()], &mut codes[part.places.clone()]);
            *radius = round_radius(fitted, Input::Keys, row, Dtype::F16)?;
        }
        Ok(())
    }

    /// Errors of a turned row.
    pub(crate) fn errors(&self, y: &[f64], codes: &[u8], radii: &[f64], errors: &mut [f64]) {
        for ((group, part), radius) in self.each().zip(radii) {
            let at = part.places.clone();
            group.book.errors(&y[at.clone()], &codes[at.clone()], *radius, &mut errors[at]);
        }
    }

    /// Stages the codes of one token, (dim,), of a block of `tokens`.
    pub(crate) fn place(&self, codes: &[u8], token: usize, tokens: usize, staged: &mut [u8]) {
        for part in &self.parts {
            let of_group = &mut staged[tokens * part.places.start..tokens * part.places.end];
            place_key_row(&codes[part.places.clone()], token, of_group);
        }
    }

    /// Writes staged codes as bit planes.
    pub(crate) fn write(&self, staged: &[u8], tokens: usize, section: &mut [u8]) {
        for part in &self.parts {
            let of_group = &staged[tokens * part.places.start..tokens * part.places.end];
            write_planes(of_group, usize::from(part.bits), &mut section[part.codes(tokens)]);
        }
    }

    /// Norm of the largest levels of all channels, by radii (tokens, `slots`).
    pub(crate) fn magnitude(&self, radii: &[f64], slots: usize) -> f64 {
        let of_part = |(g, part): (usize, &KeyPart)| {
            let most = radii.iter().skip(g).step_by(slots).fold(0.0f64, |m, r| r.max(m));
            (last_level(part.bits) * most).powi(2) * part.places.len() as f64
        };
        self.parts.iter().enumerate().map(of_part).sum::<f64>().sqrt()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::numeric::sum_squares;

    #[test]
    fn rows_come_back_and_queries_meet_them() {
        for (dim, rotary, pairing) in
            [(64, 64, Pairing::Half), (96, 48, Pairing::Half), (256, 128, Pairing::Interleaved)]
        {
            let bits: Vec<u8> = (0..dim / 2).map(|i| [2, 3, 3, 5][i * 7 % (dim / 2) / 8 % 4]).collect();
            let groups = KeyGroups::new(&bits, pairing, rotary).unwrap();
            assert_eq!(groups.parts().last().unwrap().places.end, dim);
            let row: Vec<f64> = (0..dim).map(|c| (c as f64 * 1.3).sin()).collect();
            let q: Vec<f32> = (0..dim).map(|c| (c as f32 * 0.7).cos()).collect();
            let (mut turned, mut room, mut query) = (row.clone(), vec![0.0; dim], vec![0.0; dim]);
            groups.turn(&mut turned, &mut room);
            groups.turn_query(&q, &mut query);
            let dot = |a: &[f64], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * f64::from(*b)).sum::<f64>();
            assert!((dot(&row, &q) - dot(&turned, &query)).abs() < 1e-5);
            assert!((sum_squares(&row) - sum_squares(&turned)).abs() < 1e-12);
            groups.turn_back(&mut turned);
            assert!(row.iter().zip(&turned).all(|(a, b)| (a - b).abs() < 1e-13));
            // Twice the square for every bit: what a width is off by falls as much.
            let scale = groups.weighted(&vec![3.0; dim]);
            for group in groups.groups() {
                let want = 3.0 * (0.5 * f32::from(group.bits())).exp2();
                assert!(group.channels().iter().all(|c| (scale[*c] / want - 1.0).abs() < 1e-6));
            }
        }
        assert_eq!(
            KeyGroups::new(&[3, 7], Pairing::Half, 4).unwrap_err(),
            CodecError::Width { pair: 1, bits: 7, most: 6 }
        );
    }
}
