//! Names of stored pages.
use core::fmt;

/// 256 bits that name a page outside the process: a keyed hash over everything that changes its contents. Whoever makes
/// keys salts them per tenant; the store compares all 32 bytes and never a part of them.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StoreKey(pub [u8; 32]);

impl StoreKey {
    /// Reads what `Display` wrote: 64 lower-case hexadecimal digits.
    pub fn parse(text: &str) -> Option<Self> {
        let digit = |c: u8| match c {
            b'0'..=b'9' => Some(c - b'0'),
            b'a'..=b'f' => Some(c - b'a' + 10),
            _ => None,
        };
        let mut key = [0; 32];
        if text.len() != 2 * key.len() {
            return None;
        }
        for (byte, pair) in key.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
            *byte = digit(pair[0])? << 4 | digit(pair[1])?;
        }
        Some(Self(key))
    }
}

impl fmt::Display for StoreKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for StoreKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StoreKey({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_names_exactly_one_key() {
        let key = StoreKey(core::array::from_fn(|i| (i * 37) as u8));
        let text = key.to_string();
        assert_eq!((text.len(), StoreKey::parse(&text)), (64, Some(key)));
        let wrong = [&text[1..], &format!("{text}0"), &text.to_uppercase(), &text.replacen('2', "g", 1)];
        assert!(wrong.iter().all(|t| StoreKey::parse(t).is_none()));
    }
}
