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

/// Blocks of some layers to which all happens that may between two steps, for tests of who decides on their levels.
#[cfg(test)]
pub(crate) struct Blocks {
    pub(crate) levels: Vec<Vec<u8>>,
    /// As [`Standing`] has them.
    pub(crate) kept: usize,
    pub(crate) moved: bool,
}

#[cfg(test)]
impl Blocks {
    pub(crate) fn new(layers: usize, blocks: usize) -> Self {
        Self { levels: vec![vec![2; blocks]; layers], kept: usize::MAX, moved: true }
    }

    /// Now and then there is one more, they are cut, others taking their places at once or not, or one is moved by its caller. `dice(n, of)` is below `of`; 10 of them, from `at` on.
    pub(crate) fn live(&mut self, at: u64, dice: impl Fn(u64, u64) -> u64) {
        let Self { levels, kept, moved } = self;
        if dice(at, 7) == 0 {
            levels.iter_mut().for_each(|levels| levels.push(dice(at + 1, 3) as u8));
        }
        if dice(at + 2, 40) == 0 {
            let n = levels[0].len().saturating_sub(dice(at + 3, 4) as usize).max(1);
            let grown = if dice(at + 9, 2) == 0 { levels[0].len() } else { n };
            for levels in levels.iter_mut() {
                levels.truncate(n);
                levels.resize(grown, 2);
            }
            *kept = n;
        }
        if dice(at + 4, 15) == 0 {
            let (layers, blocks) = (levels.len() as u64, levels[0].len() as u64);
            let (layer, block) = (dice(at + 5, layers) as usize, dice(at + 6, blocks) as usize);
            let to = dice(at + 7, 3) as u8;
            *moved |= levels[layer][block] != to;
            levels[layer][block] = to;
        }
    }

    pub(crate) fn standing(&self) -> Standing {
        Standing { kept: self.kept, blocks: self.levels[0].len(), moved: self.moved }
    }

    /// Somebody was told, and the first blocks of a layer have other levels.
    pub(crate) fn told<'a>(&mut self, decided: impl Iterator<Item = Option<&'a Vec<u8>>>) {
        (self.kept, self.moved) = (usize::MAX, false);
        for (levels, wanted) in self.levels.iter_mut().zip(decided) {
            let Some(wanted) = wanted else { continue };
            self.moved |= levels[..wanted.len()] != wanted[..];
            levels[..wanted.len()].copy_from_slice(wanted);
        }
    }
}
