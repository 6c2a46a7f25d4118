//! For tests that ask what no caller may notice: what memory holds that nobody wrote, and where pages lie.
use super::cache::GpuCache;
use super::core::Core;
use crate::Error;
use certkv_core::SequenceId;

impl GpuCache {
    /// Fills records, tails, scratch, partial results and originals with a byte: what they hold before somebody writes is undefined, so
    /// that nothing may come of it. What lives is overwritten, too. Waits for the device. Not part of the interface.
    ///
    /// # Errors
    /// The driver's.
    #[doc(hidden)]
    pub fn poison(&mut self, byte: u8) -> Result<(), Error> {
        let Core { queue, packed, tails, scratch, partials, originals, .. } = &*self.core;
        for buffer in [packed, tails, scratch, partials] {
            buffer.fill(queue.stream(), 0, buffer.len(), byte)?;
        }
        self.core.finish()?;
        let piece = vec![byte; originals.len().min(1 << 20)];
        for at in (0..originals.len()).step_by(piece.len()) {
            originals.write(at, &piece[..piece.len().min(originals.len() - at)])?;
        }
        Ok(())
    }

    /// Pages of originals and of records of a sequence's blocks, in its first group of layers. Not part of the interface.
    ///
    /// # Errors
    /// Unknown sequence.
    #[doc(hidden)]
    pub fn places(&self, id: SequenceId) -> Result<Vec<(u32, Option<u32>)>, Error> {
        let Some(table) = self.entry(id)?.tables.first() else { return Ok(Vec::new()) };
        let blocks = table.blocks();
        Ok(blocks.iter().map(|block| (block.host.index, block.packed.map(|page| page.index))).collect())
    }

    /// The masses that the last attention under a certified policy left, as bits. Waits for the device. Not part of the interface.
    ///
    /// # Errors
    /// The driver's.
    #[doc(hidden)]
    pub fn mass_bits(&self) -> Result<Vec<u32>, Error> {
        let Core { queue, masses, .. } = &*self.core;
        let mut bits = vec![0; masses.len() / 4];
        masses.read(queue.stream(), 0, &mut bits)?;
        Ok(bits)
    }
}
