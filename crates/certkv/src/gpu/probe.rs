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

    /// Changes a bit of a full block's records in a layer, or of its originals. Waits for the device. Not part of the interface.
    ///
    /// # Errors
    /// Unknown sequence, a block that is not full, originals that are elsewhere; the driver's.
    #[doc(hidden)]
    pub fn damage(
        &mut self,
        id: SequenceId,
        (layer, block): (usize, usize),
        byte: usize,
        originals: bool,
    ) -> Result<(), Error> {
        self.land()?;
        self.core.finish()?;
        let s = &self.core.sizes;
        let table = &self.entry(id)?.tables[s.group_of(layer)];
        let none = Error::Shape { argument: "block", expected: table.len() / s.block, given: block };
        let entry = *table.get(block).filter(|entry| entry.packed.is_some()).ok_or(none)?;
        let Core { queue, packed, originals: rows, .. } = &*self.core;
        let mut bits = [0u8];
        match entry.packed.filter(|_| !originals) {
            Some(page) => {
                let bytes = s.record_page_bytes(layer, entry.level);
                let at = s.packed_at(layer, s.page_of(entry.level, page.index)) + byte % bytes;
                packed.read(queue.stream(), at, &mut bits)?;
                packed.write(queue.stream(), at, &[bits[0] ^ 1 << (byte % 8)])?;
            }
            None => {
                let at = self.host_at(layer, entry.host)? + byte % s.original_bytes;
                rows.read(at, &mut bits)?;
                rows.write(at, &[bits[0] ^ 1 << (byte % 8)])?;
            }
        }
        self.core.finish()
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
