//! Where results of a layer lie on the host when they have been read. Pure arithmetic.
use super::sections::ALIGN;
use super::sizes::Sizes;
use core::ops::Range;

/// Bytes of the area that results are read into.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ResultSections {
    pub(super) errors: Range<usize>,
    pub(super) repaired: Range<usize>,
    pub(super) dense: Range<usize>,
    pub(super) first: Range<usize>,
    pub(super) second: Range<usize>,
    pub(super) outputs: Range<usize>,
}

impl Sizes {
    /// What one read of results brings: errors, two lists, both sets of certificates, outputs; a tail fits, too, and what drafts of a layer bring.
    pub(super) fn result_bytes(&self) -> usize {
        (self.result_sections().outputs.end).max(self.original_bytes).max(self.drafts.result_bytes(self.rows))
    }

    pub(super) fn result_sections(&self) -> ResultSections {
        let errors = 0..4 * self.rows;
        let list_start = errors.end.next_multiple_of(ALIGN);
        let repaired = list_start..list_start + self.list_bytes();
        let dense = repaired.end..repaired.end + self.list_bytes();
        let first = dense.end..dense.end + self.certificate_bytes();
        let second = first.end..first.end + self.certificate_bytes();
        let start = second.end.next_multiple_of(ALIGN);
        ResultSections { errors, repaired, dense, first, second, outputs: start..start + self.query_bytes() }
    }
}
