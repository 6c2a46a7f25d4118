//! What is asked for ahead of time while a block is computed.
use crate::attend::Kernel;
use crate::block::Block;
use crate::query::Cursor;
use certkv_core::PageCode;
use core::ops::Range;

/// What to prefetch: the next block's record, and the distance in bytes from this block's exact sides to the next one's
/// (0 where there is none).
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Ahead {
    pub(crate) record: Cursor,
    pub(crate) keys: isize,
    pub(crate) values: isize,
}

/// Which sides of a block a loop reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sides {
    Both,
    Keys,
    Values,
}

impl Kernel {
    /// The coded part of the next record line by line, exact sides row by row; nothing of skipped values.
    pub(crate) fn look_ahead(&self, block: &Block<'_>, next: Option<&Block<'_>>, sides: Sides) -> Ahead {
        let l = &self.layout;
        let Some(next) = next else { return Ahead::default() };
        let (wants_keys, wants_values) = (sides != Sides::Values, sides != Sides::Keys);
        // Floating-point codes are asked for row by row, as exact sides are.
        let by_row = |exact: bool, page: Option<PageCode>| exact || page.is_some_and(PageCode::is_float);
        let (key, value) = (l.format.key, l.format.value);
        let keys = wants_keys && next.keys.is_none() && !by_row(key.is_exact(), key.page());
        let values =
            wants_values && next.values.is_none() && !by_row(value.is_exact(), value.page()) && !next.skip_values;
        let start = if keys {
            0
        } else if values {
            l.value_codes.start
        } else {
            l.summary.start
        };
        let end = if values { l.summary.start } else { l.value_codes.start };
        if wants_keys {
            // The summary lies at the end but is read first.
            let mut summary = Cursor::over(next.record.get(l.summary.clone()).unwrap_or(&[]));
            (self.ops.finish)(&mut summary);
        }
        let from = |side: Option<&[u16]>, record: &[u8], section: &Range<usize>| match side {
            Some(words) => words.as_ptr() as isize,
            None => record.get(section.clone()).map_or(0, |r| r.as_ptr() as isize),
        };
        let distance = |wanted: bool, this: Option<&[u16]>, that: Option<&[u16]>, section: &Range<usize>| {
            let same = wanted && this.is_some() == that.is_some();
            if same { from(that, next.record, section) - from(this, block.record, section) } else { 0 }
        };
        Ahead {
            record: Cursor::over(next.record.get(start..end).unwrap_or(&[])),
            keys: distance(wants_keys, block.keys, next.keys, &l.key_codes),
            values: distance(wants_values, block.values, next.values, &l.value_codes),
        }
    }
}
