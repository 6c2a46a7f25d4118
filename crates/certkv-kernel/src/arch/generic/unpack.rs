//! Codes of any width to one byte each, in one pass over the planes: each line of a plane is read once for all the segments
//! that lie in it.
use crate::line::Codes;
use crate::query::Levels;
use certkv_core::TURBO_BITS;

/// A line of codes.
pub(crate) type Bytes = [u8; 64];

/// Unpacks `count` codes of `bits` bits, a multiple of 512, in code order; `RAISED` ones stand at the top of their byte. `stand` says
/// what a line of codes stands for.
#[inline(always)]
pub(crate) fn unpack<const RAISED: bool>(
    section: &[u8],
    bits: usize,
    count: usize,
    out: &mut [Codes],
    stand: impl Fn(Bytes) -> Bytes,
) {
    // Known widths let the compiler see the planes.
    match bits {
        1 => planes_of::<1, RAISED>(section, count, out, stand),
        2 => planes_of::<2, RAISED>(section, count, out, stand),
        3 => planes_of::<3, RAISED>(section, count, out, stand),
        4 => planes_of::<4, RAISED>(section, count, out, stand),
        5 => planes_of::<5, RAISED>(section, count, out, stand),
        6 => planes_of::<6, RAISED>(section, count, out, stand),
        7 => planes_of::<7, RAISED>(section, count, out, stand),
        _ => planes_of::<8, RAISED>(section, count, out, stand),
    }
}

/// A plane of `width` bits has `count width / 512` lines, and line `j + s m` of the codes, `m` being those of the narrowest plane, lies
/// in its line `j + (s mod r) m`, segment `s / r`, `r` being how often it is as wide as the narrowest.
#[inline(always)]
fn planes_of<const BITS: usize, const RAISED: bool>(
    section: &[u8],
    count: usize,
    out: &mut [Codes],
    stand: impl Fn(Bytes) -> Bytes,
) {
    let lines = section.as_chunks::<64>().0;
    let narrow = BITS & BITS.wrapping_neg();
    let m = count / 64 * narrow / 8;
    // Where each plane begins, widest first, as `certkv_core::layout::planes` has it.
    let plane = |width: usize| &lines[m * (BITS & !(2 * width - 1)) / narrow..][..m * width / narrow];
    let planes = [8, 4, 2, 1].map(|width| if BITS & width != 0 { plane(width) } else { &[] });
    let out = &mut out[..count / 64];
    for j in 0..m {
        // One by one, so that shifts and masks are constants.
        macro_rules! segment {
            ($($s:literal)*) => {$(
                if $s < 8 / narrow {
                    out[j + $s * m].0 = stand(line_of::<BITS, RAISED, $s>(&planes, j, m));
                }
            )*};
        }
        segment!(0 1 2 3 4 5 6 7);
    }
}

/// Line `j + S m` of the codes.
#[inline(always)]
fn line_of<const BITS: usize, const RAISED: bool, const S: usize>(planes: &[&[Bytes]; 4], j: usize, m: usize) -> Bytes {
    let narrow = BITS & BITS.wrapping_neg();
    let raise = if RAISED { 8 - BITS } else { 0 };
    let mut code = [0u8; 64];
    for (plane, width) in planes.iter().zip([8, 4, 2, 1]) {
        if BITS & width == 0 {
            continue;
        }
        let r = width / narrow;
        let (from, to) = (width * (S / r), (BITS & (width - 1)) + raise);
        let mask = (((1u16 << width) - 1) << to) as u8;
        let line = &plane[j + S % r * m];
        for i in 0..64 {
            let moved = if from >= to { line[i] >> (from - to) } else { line[i] << (to - from) };
            code[i] |= moved & mask;
        }
    }
    code
}

/// What two neighbours stand for, by both codes.
struct PairLevels([u16; 1 << (2 * TURBO_BITS)]);

impl PairLevels {
    fn new(levels: &Levels, bits: usize) -> Self {
        let mut pairs = [0; 1 << (2 * TURBO_BITS)];
        for (row, second) in pairs.chunks_exact_mut(1 << bits).zip(&levels[..1 << bits]) {
            for (pair, first) in row.iter_mut().zip(levels) {
                *pair = u16::from_le_bytes([*first, *second]);
            }
        }
        Self(pairs)
    }

    /// Codes to what they stand for, in place: eight in a register, so that a look-up is a load and no more, where wide registers would have to be taken apart.
    fn look_up(&self, bits: usize, lines: &mut [Codes]) {
        let four = |word: u64| word * 0x0001_0001_0001_0001;
        let first = four((1 << bits) - 1);
        for eight in lines.iter_mut().flat_map(|line| line.0.as_chunks_mut::<8>().0) {
            let codes = u64::from_le_bytes(*eight);
            // The second code of a pair follows the first bit by bit.
            let pairs = codes & first | codes >> (8 - bits) & first << bits;
            let levels = |i: u32| u64::from(self.0[(pairs >> (16 * i)) as usize % self.0.len()]) << (16 * i);
            *eight = (levels(0) | levels(1) | levels(2) | levels(3)).to_le_bytes();
        }
    }
}

/// [`unpack`], and what the codes stand for where a table says so.
#[inline(always)]
pub(crate) fn unpack_levels(section: &[u8], bits: usize, count: usize, levels: Option<&Levels>, out: &mut [Codes]) {
    unpack::<false>(section, bits, count, out, |codes| codes);
    let (Some(levels), lines) = (levels, &mut out[..count / 64]) else { return };
    // A table of pairs is worth its making where it has fewer entries than there are codes.
    if bits <= usize::from(TURBO_BITS) && count > 1 << (2 * bits) {
        PairLevels::new(levels, bits).look_up(bits, lines);
    } else {
        lines.iter_mut().flat_map(|line| &mut line.0).for_each(|code| *code = levels[usize::from(*code) % 64]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use certkv_core::hash::splitmix64;
    use certkv_core::layout::{read_code, write_code};

    #[test]
    fn codes_come_out_in_order() {
        for (bits, count) in (1..=8).flat_map(|bits| [512, 1024, 1536, 64 * 256].map(|count| (bits, count))) {
            let mut section = vec![0; count * bits / 8];
            let codes: Vec<u8> = (0..count).map(|i| (splitmix64(i as u64) >> 13) as u8 >> (8 - bits)).collect();
            codes.iter().enumerate().for_each(|(i, code)| write_code(&mut section, bits, count, i, *code));
            assert!((0..count).all(|i| read_code(&section, bits, count, i) == codes[i]));
            let mut out = vec![Codes([0xaa; 64]); count / 64];
            let same = |out: &[Codes], want: &dyn Fn(u8) -> u8| {
                out.iter().flat_map(|line| line.0).zip(&codes).all(|(got, code)| got == want(*code))
            };
            unpack::<false>(&section, bits, count, &mut out, |codes| codes);
            assert!(same(&out, &|code| code), "{bits} bits, {count} codes");
            unpack::<true>(&section, bits, count, &mut out, |codes| codes);
            assert!(same(&out, &|code| code << (8 - bits)), "{bits} bits, {count} codes, raised");
            if bits <= 6 {
                let levels: Levels = core::array::from_fn(|i| (7 * i + 3) as u8);
                unpack_levels(&section, bits, count, Some(&levels), &mut out);
                assert!(same(&out, &|code| levels[usize::from(code)]), "{bits} bits, {count} codes, levels");
            }
        }
    }
}
