//! The packed bit stream of math.md (2.24), for interchange and conformance. Records use bit planes instead.
//!
//! Codes of `bits` bits per row, least significant bit first, each row padded to a byte. Signed codes are packed as
//! two's complement of `bits` bits.
use crate::error::{CodecError, Input, rows, sized};

/// Bytes of one packed row of `columns` codes.
pub const fn row_bytes(columns: usize, bits: u8) -> usize {
    (columns * bits as usize).div_ceil(8)
}

/// Packs rows of `columns` codes; bits above `bits` are dropped, so signed codes are passed as their bytes.
///
/// # Errors
/// [`CodecError::Shape`] if `codes` is not a whole number of rows or `bits` is not 1 to 8.
pub fn pack(codes: &[u8], columns: usize, bits: u8) -> Result<Vec<u8>, CodecError> {
    let n = rows(Input::Codes, codes.len(), columns)?;
    width(bits)?;
    let stride = row_bytes(columns, bits);
    let mut out = vec![0; n * stride];
    let mask = (1u16 << bits) - 1;
    for (row, out) in codes.chunks_exact(columns).zip(out.chunks_exact_mut(stride)) {
        let (mut held, mut count) = (0u16, 0);
        let mut bytes = out.iter_mut();
        for code in row {
            held |= (u16::from(*code) & mask) << count;
            count += u16::from(bits);
            if count >= 8 {
                if let Some(b) = bytes.next() {
                    *b = held as u8;
                }
                held >>= 8;
                count -= 8;
            }
        }
        if let Some(b) = bytes.next() {
            *b = held as u8;
        }
    }
    Ok(out)
}

/// Unsigned codes out of `rows` packed rows of `columns` codes.
///
/// # Errors
/// [`CodecError::Shape`] if `bytes` has another length than those rows, or `bits` is not 1 to 8.
pub fn unpack(bytes: &[u8], rows: usize, columns: usize, bits: u8) -> Result<Vec<u8>, CodecError> {
    width(bits)?;
    let stride = row_bytes(columns, bits);
    sized(Input::Codes, bytes.len(), rows.saturating_mul(stride))?;
    let mask = ((1u16 << bits) - 1) as u8;
    let code = |row: &[u8], i: usize| {
        let at = i * bits as usize;
        let byte = |k: usize| u16::from(row.get(k).copied().unwrap_or(0));
        ((byte(at / 8) | byte(at / 8 + 1) << 8) >> (at % 8)) as u8 & mask
    };
    Ok(bytes.chunks_exact(stride.max(1)).flat_map(|row| (0..columns).map(move |i| code(row, i))).collect())
}

/// As [`unpack`], codes sign-extended from `bits` bits.
///
/// # Errors
/// As [`unpack`].
pub fn unpack_signed(bytes: &[u8], rows: usize, columns: usize, bits: u8) -> Result<Vec<i8>, CodecError> {
    let codes = unpack(bytes, rows, columns, bits)?;
    let shift = 8 - bits;
    Ok(codes.into_iter().map(|c| ((c << shift) as i8) >> shift).collect())
}

fn width(bits: u8) -> Result<(), CodecError> {
    if (1..=8).contains(&bits) {
        Ok(())
    } else {
        Err(CodecError::Shape { input: Input::Parameters, got: bits as usize, want: 8 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn nibbles_lie_low_first() {
        assert_eq!(pack(&[1, 2, 15, 0, 7], 5, 4).unwrap(), [0x21, 0x0f, 0x07]);
        assert_eq!(pack(&[0b101, 0b011, 0b110], 3, 3).unwrap(), [0b1001_1101, 0b1]);
        assert!(pack(&[1; 5], 3, 4).is_err() && pack(&[1; 4], 2, 9).is_err() && unpack(&[0; 3], 1, 5, 4).is_ok());
        assert!(unpack(&[0; 4], 1, 5, 4).is_err());
    }

    proptest! {
        #[test]
        fn round_trips(bits in 1u8..=8, columns in 1usize..40, codes in prop::collection::vec(any::<u8>(), 120)) {
            let rows = codes.len() / columns;
            let codes = &codes[..rows * columns];
            let packed = pack(codes, columns, bits).unwrap();
            prop_assert_eq!(packed.len(), rows * row_bytes(columns, bits));
            let low: Vec<u8> = codes.iter().map(|c| (u16::from(*c) & ((1 << bits) - 1)) as u8).collect();
            prop_assert_eq!(&unpack(&packed, rows, columns, bits).unwrap(), &low);
            let signed = unpack_signed(&packed, rows, columns, bits).unwrap();
            for (s, u) in signed.iter().zip(&low) {
                prop_assert_eq!((*s as i16).rem_euclid(1 << bits), i16::from(*u));
            }
        }
    }
}
