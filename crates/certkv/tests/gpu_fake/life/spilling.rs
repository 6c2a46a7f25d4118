//! A life whose originals spill.
use super::{Life, Over, certified};
use crate::kernels::BLOCK;
use certkv::gpu::GpuConfig;
use certkv::store::{Backend, MemoryStore};
use certkv::{Policy, Spill};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Frames for some two blocks of each sequence where there may be nine.
pub(crate) fn with(format: &str, backend: Arc<dyn Backend>) -> GpuConfig {
    let mut config = super::config(format);
    (config.max_tokens, config.max_context, config.max_sequences) = (40 * BLOCK, 9 * BLOCK, 4);
    config.swap_tokens = 12 * BLOCK;
    config.prefixes.iter_mut().for_each(|prefixes| prefixes.units = 12);
    // One thread, so that a life without a fault is always the same one.
    let spill =
        Spill { workers: 1, in_flight: 12, deadline: Duration::from_secs(20), ..Spill::new(backend, 2 * BLOCK) };
    GpuConfig { spill: Some(spill), ..config }
}

pub(crate) fn config(format: &str) -> GpuConfig {
    with(format, Arc::new(MemoryStore::new(u64::MAX)))
}

impl Life {
    /// Waits until the store has nothing to do.
    fn quiet(&mut self) {
        let until = Instant::now() + Duration::from_secs(20);
        let busy = |life: &Self| life.cache.snapshot().spill.is_some_and(|spill| spill.records.putting > 0);
        while busy(self) && Instant::now() < until {
            std::thread::sleep(Duration::from_micros(50));
            self.cache.tend_spilled();
        }
        if let Some(what) = self.cache.check_spilled() {
            self.wrong.push(format!("the map of originals: {what}"));
        }
    }

    /// Full blocks, more than there are frames for.
    fn filled(&mut self, at: usize, blocks: usize) -> Result<(), Over> {
        for _ in 0..blocks {
            self.quiet();
            self.step(&[(at, BLOCK)], certified())?;
        }
        Ok(())
    }

    /// Steps of every policy, with what they need brought.
    fn decoded(&mut self, of: &[usize]) -> Result<(), Over> {
        let parts: Vec<_> = of.iter().map(|at| (*at, 1)).collect();
        for policy in [certified(), Policy::Dense, Policy::Packed, certified()] {
            self.quiet();
            self.step(&parts, policy)?;
        }
        Ok(())
    }

    pub(super) fn spilling(&mut self) -> Result<(), Over> {
        let (a, b) = (self.create()?, self.create()?);
        self.filled(a, 6)?;
        self.filled(b, 5)?;
        self.decoded(&[a, b])?;
        self.verify()?;
        let c = self.fork(a)?;
        self.truncate(c, 2 * BLOCK + 3)?;
        self.decoded(&[c, a])?;
        self.truncate(a, 4 * BLOCK + 5)?;
        // Up to the end of a block and beyond: rows leave their tail.
        while self.held[a].len() < 5 * BLOCK + 1 {
            self.quiet();
            self.step(&[(a, 1), (b, 1)], certified())?;
        }
        self.verify()?;
        self.released()?;
        self.quiet();
        self.saved(b)?;
        self.swapped(b, 3 * BLOCK + 5)?;
        self.quiet();
        let d = self.continued(a)?;
        self.step(&[(d, 1), (a, 3)], certified())?;
        self.verify()?;
        while !self.held.is_empty() {
            self.released()?;
        }
        if self.cache.evict_prefixes(99).is_err() || self.cache.live_pages() != 0 {
            self.wrong.push(format!("{} pages are live at the end", self.cache.live_pages()));
        }
        self.left()
    }

    /// After everything was released nothing is left in host memory, nor in the store.
    fn left(&mut self) -> Result<(), Over> {
        let until = Instant::now() + Duration::from_secs(20);
        loop {
            self.quiet();
            let Some(spill) = self.cache.snapshot().spill else { return Ok(()) };
            let left = [spill.resident + spill.stored + spill.spilled, spill.records.doomed, spill.records.putting];
            if left == [0; 3] {
                return Ok(());
            }
            if Instant::now() > until {
                self.wrong.push(format!("left of originals, records, puts: {left:?}"));
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(1));
            self.cache.tend_spilled();
        }
    }
}
