//! Pages and rows that changed hands: nothing of them may be remembered when the next step begins.
use super::cache::GpuCache;
use super::core::Choice;
use crate::Error;
use certkv_core::SequenceId;
use certkv_kernel::cuda::select::{ROW_ENTRY, SelectMode};

impl GpuCache {
    /// Pages of a group that may be given to other tokens, of a row whose blocks are not what they were. A page that others share is
    /// forgotten for them, too: they read its codes until it is promoted again. Where there are none the row keeps what is promoted, as nothing is of its open
    /// block; but not if it is `anew` another sequence's, or blocks that a window has passed are to come again, of which words may be left.
    pub(super) fn forget_later(&mut self, id: SequenceId, group: usize, pages: Vec<u32>, anew: bool) {
        if anew || !pages.is_empty() {
            self.forgotten[group].extend(pages);
            self.forgotten[group].push(ROW_ENTRY | id.slot);
        }
    }

    /// Enqueues, in every layer, that nothing is remembered of pages and rows that changed hands. A launch to a layer, and only
    /// after truncations, releases, steps that were dropped, and steps in which a window passed a block.
    pub(super) fn forget(&mut self) -> Result<(), Error> {
        let Self { core, ring, forgotten, config, .. } = self;
        let mode = if config.erase { SelectMode::Erase } else { SelectMode::Forget };
        for (group, forgotten) in core.sizes.groups.iter().zip(forgotten) {
            forgotten.sort_unstable();
            forgotten.dedup();
            for part in forgotten.chunks(ring.most() / 4 - 1) {
                let bytes = 4 * (1 + part.len());
                let at = ring.take(&core.queue, bytes)?;
                ring.area().write(at, &[part.len() as u32])?;
                ring.area().write(at + 4, part)?;
                let list = ring.area().span(at, bytes)?;
                for layer in &group.layers {
                    let all = Choice::plan(*layer, 0, 0, false);
                    core.select(&core.queue, &Choice { mode, only: Some(list), ..all })?;
                }
            }
            forgotten.clear();
        }
        Ok(())
    }
}
