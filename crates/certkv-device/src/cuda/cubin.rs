//! A look at machine code before the driver gets it: the driver takes a pointer without a length.
use super::error::CudaError;

/// Checks that a cubin is a 64-bit ELF file whose tables and sections all lie inside of it.
pub(super) fn check(cubin: &[u8]) -> Result<(), CudaError> {
    let bad = |why| Err(CudaError::BadArgument { argument: "cubin", why });
    if cubin.get(..5) != Some(b"\x7fELF\x02") {
        return bad("is not a 64-bit ELF file");
    }
    if sections_inside(cubin) == Some(true) { Ok(()) } else { bad("is cut off or damaged") }
}

/// `None` if a field lies outside.
fn sections_inside(file: &[u8]) -> Option<bool> {
    const NO_BITS: u64 = 8;
    let inside = |start: u64, bytes: u64| start.checked_add(bytes).is_some_and(|end| end <= file.len() as u64);
    let field = |at: u64, bytes: usize| {
        let at = usize::try_from(at).ok()?;
        let raw = file.get(at..at.checked_add(bytes)?)?;
        Some(raw.iter().rev().fold(0u64, |sum, b| (sum << 8) | u64::from(*b)))
    };
    // Program headers: offset, size and number; then section headers.
    if !inside(field(32, 8)?, field(54, 2)? * field(56, 2)?) {
        return Some(false);
    }
    let (start, size, count) = (field(40, 8)?, field(58, 2)?, field(60, 2)?);
    if count == 0 || size < 64 || !inside(start, size * count) {
        return Some(false);
    }
    for section in 0..count {
        let header = start + section * size;
        if field(header + 4, 4)? != NO_BITS && !inside(field(header + 24, 8)?, field(header + 32, 8)?) {
            return Some(false);
        }
    }
    Some(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A header, one section of eight bytes and its table.
    fn file() -> Vec<u8> {
        let mut file = vec![0u8; 64 + 8 + 64];
        file[..5].copy_from_slice(b"\x7fELF\x02");
        for (at, value) in [(40, 72), (58, 64), (60, 1), (72 + 4, 1), (72 + 24, 64), (72 + 32, 8)] {
            file[at] = value;
        }
        file
    }

    #[test]
    fn a_whole_file_passes_and_every_cut_is_refused() {
        let whole = file();
        assert_eq!(check(&whole), Ok(()));
        for len in 0..whole.len() {
            assert!(check(&whole[..len]).is_err(), "{len} bytes");
        }
    }

    #[test]
    fn sections_outside_the_file_are_refused_unless_they_take_no_room() {
        for (at, value) in [(72 + 32, 200), (72 + 31, 255), (60, 2), (60, 0), (58, 8), (47, 255), (56, 1)] {
            let mut damaged = file();
            damaged[at] = value;
            damaged[54] = 255;
            assert!(check(&damaged).is_err(), "byte {at}");
        }
        let mut empty = file();
        (empty[72 + 4], empty[72 + 32]) = (8, 200);
        assert_eq!(check(&empty), Ok(()));
    }
}
