//! Steps that are nothing to anybody but a tick of a clock: where the blocks are those they were, at the levels that they had, and nothing was due then.

/// How the blocks of a layer, or of one of its heads, stand behind a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Standing {
    /// Blocks that are still those they were when somebody was told last.
    pub kept: usize,
    /// Blocks that there are.
    pub blocks: usize,
    /// Whether one of them has another level since then.
    pub moved: bool,
}

/// Blocks that there were when somebody was told last, if nothing was due then.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Rest(Option<usize>);

impl Rest {
    /// Of so many blocks, for which something `is_due`.
    pub(crate) fn of(blocks: usize, is_due: bool) -> Self {
        Self(Some(blocks).filter(|_| !is_due))
    }

    /// Whether bytes and blocks are what they were then.
    pub(crate) fn lasts(self, now: &Standing) -> bool {
        self.0 == Some(now.blocks) && now.kept >= now.blocks && !now.moved
    }
}
