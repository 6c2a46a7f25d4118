//! Which tokens are always read from their originals: the first ones of a sequence, and the newest.
use crate::{Config, Control, Error};
use core::ops::Range;

/// Tokens whose blocks every decode step reads from the 16-bit originals, whatever its policy: those that attention falls back on ("sinks"), and those
/// that were just said. A query at position `p` has the tokens `t < sinks` and `t + recent > p` protected, its own among the recent ones; the open block is
/// read from originals anyway. Whole blocks are read so, those that hold a protected token.
///
/// What is read exactly adds nothing to a bound but its arithmetic. Codes are kept of these blocks as of others: what leaves the newest tokens is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Protection {
    /// First tokens of a sequence.
    pub sinks: usize,
    /// Newest tokens before and with the query's own.
    pub recent: usize,
}

/// Most tokens of either kind.
const MOST_TOKENS: usize = 1 << 31;

impl Protection {
    /// Nothing is protected.
    pub const NONE: Self = Self { sinks: 0, recent: 0 };

    /// The first `sinks` tokens and the `recent` newest.
    pub const fn new(sinks: usize, recent: usize) -> Self {
        Self { sinks, recent }
    }

    /// Whether nothing is.
    pub const fn is_none(self) -> bool {
        self.sinks == 0 && self.recent == 0
    }

    /// Full blocks of `size` tokens that hold a protected one, by their numbers, for the query of the last of `total` tokens: of the first tokens, then
    /// of the newest, none in both.
    pub(crate) fn blocks(self, size: usize, total: usize) -> [Range<usize>; 2] {
        let full = total / size;
        let sinks = self.sinks.div_ceil(size).min(full);
        let recent = if self.recent == 0 { full } else { total.saturating_sub(self.recent) / size };
        [0..sinks, recent.clamp(sinks, full)..full]
    }

    /// Full blocks of one sequence that are protected at once for queries of so many tokens in a row, at most: of the first tokens, and of the newest.
    pub(crate) fn most_blocks(self, size: usize, max_blocks: usize, queries: usize) -> [usize; 2] {
        let tokens = if self.recent == 0 { 0 } else { self.recent.saturating_add(queries - 1) };
        let recent = if tokens == 0 { 0 } else { (tokens - 1).div_ceil(size) + 1 };
        [self.sinks.div_ceil(size), recent].map(|blocks| blocks.min(max_blocks))
    }

    /// # Errors
    /// [`Error::Config`] for more tokens than a sequence can have.
    pub(crate) fn check(self) -> Result<(), Error> {
        for (field, n) in [("protection.sinks", self.sinks), ("protection.recent", self.recent)] {
            if n > MOST_TOKENS {
                return Err(Error::Config { field, why: format!("{n} tokens; must be at most 2^31") });
            }
        }
        Ok(())
    }
}

impl Config {
    /// Checks what is protected by itself and beside what it does not go with.
    pub(crate) fn check_protection(&self) -> Result<(), Error> {
        self.protection.check()?;
        if !self.protection.is_none() && self.control.is_some_and(|control| matches!(control, Control::Budget(_))) {
            let why = "the bound's budget goes by what codes cost, and those of protected blocks are not read";
            return Err(Error::Config { field: "protection", why: why.to_owned() });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The blocks are those of the rule, token by token.
    #[test]
    fn blocks_that_hold_a_protected_token_are_protected() {
        for size in [1, 2, 4] {
            for (sinks, recent) in (0..12).flat_map(|s| (0..12).map(move |r| (s, r))) {
                let protection = Protection::new(sinks, recent);
                for total in 1..40 {
                    let query = total - 1;
                    let is = |t: usize| t < sinks || t + recent > query;
                    let expected: Vec<usize> =
                        (0..total / size).filter(|b| (b * size..(b + 1) * size).any(is)).collect();
                    let [first, last] = protection.blocks(size, total);
                    let found: Vec<usize> = first.chain(last).collect();
                    assert_eq!(found, expected, "{protection:?}, {total} tokens in blocks of {size}");
                    let most = protection.most_blocks(size, 40, 1);
                    let [first, last] = protection.blocks(size, total);
                    assert!(first.len() <= most[0] && last.len() <= most[1], "{protection:?} {size} {total}");
                }
            }
        }
        assert!(Protection::NONE.is_none() && !Protection::new(0, 1).is_none());
    }

    #[test]
    fn sizes_beyond_a_sequence_are_refused() {
        for (bad, name) in [
            (Protection::new(MOST_TOKENS + 1, 0), "protection.sinks"),
            (Protection::new(0, usize::MAX), "protection.recent"),
        ] {
            assert!(matches!(bad.check(), Err(Error::Config { field, .. }) if field == name), "{bad:?}");
        }
        assert!(Protection::new(MOST_TOKENS, MOST_TOKENS).check().is_ok());
        assert_eq!(Protection::new(usize::MAX, usize::MAX).blocks(64, 130), [0..2, 2..2]);
    }
}
