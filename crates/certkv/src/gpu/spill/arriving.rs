//! Pages whose rows are on their way to their frames.
use certkv_core::PageId;
use certkv_device::cuda::Event as Mark;
use std::collections::VecDeque;

/// First come, first arrived. Asks the allocator for nothing once it was as long before.
#[derive(Debug, Default)]
pub(super) struct Arriving {
    pages: VecDeque<PageId>,
    /// How many of them lie behind each mark, which says that they are there.
    marks: VecDeque<(Mark, usize)>,
    /// Pages behind no mark yet: the last ones.
    unmarked: usize,
}

impl Arriving {
    /// A page's rows were sent.
    pub(super) fn push(&mut self, page: PageId) {
        self.pages.push_back(page);
        self.unmarked += 1;
    }

    /// This mark is behind all that was sent.
    pub(super) fn mark(&mut self, mark: Mark) {
        if self.unmarked > 0 {
            self.marks.push_back((mark, core::mem::take(&mut self.unmarked)));
        }
    }

    /// What is behind no mark was not sent after all.
    pub(super) fn forget(&mut self) {
        self.pages.truncate(self.pages.len() - core::mem::take(&mut self.unmarked));
    }

    /// The mark to be waited for next.
    pub(super) fn first(&self) -> Option<&Mark> {
        self.marks.front().map(|(mark, _)| mark)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.marks.is_empty()
    }

    /// Those before the first mark have arrived.
    pub(super) fn arrive(&mut self) -> impl Iterator<Item = PageId> + '_ {
        let count = self.marks.pop_front().map_or(0, |(_, count)| count);
        self.pages.drain(..count)
    }
}
