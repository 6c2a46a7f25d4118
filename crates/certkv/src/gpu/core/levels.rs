//! Attention where blocks have levels: a launch of the decode kernel for each, and one that makes outputs of what all have left.
use super::Core;
use crate::Error;
use crate::gpu::level_sizes::LevelSizes;
use certkv_kernel::cuda::launch::{self, Attend, Tables};
use certkv_kernel::cuda::queue::Span;
use certkv_kernel::cuda::select::LevelRecords;
use certkv_kernel::cuda::unite::{self, Left, MOST_LEVELS, Unite};

// Tables of levels are as long in both.
const _: () = assert!(MOST_LEVELS == certkv_page::MOST_LEVELS);

impl Core {
    /// Writes where records of all levels are, in every layer.
    pub(super) fn name_levels(&self) -> Result<(), Error> {
        let (s, Some((_, _, records))) = (&self.sizes, &self.levels) else { return Ok(()) };
        let mut words: Vec<u64> = Vec::with_capacity(records.len() / 8);
        for layer in 0..s.layers {
            for level in &s.levels {
                let bytes = level.pages * level.page_bytes;
                let of = LevelRecords {
                    packed: self.packed.address_of(s.packed_at(layer, level.first), bytes)?,
                    page_stride: level.page_bytes as u64,
                    head_stride: level.layout.bytes as u32,
                    first: level.first,
                    summary: level.layout.summary.start as u32,
                    unused: 0,
                };
                words.extend(of.words());
            }
        }
        Ok(records.write(self.queue.stream(), 0, &words)?)
    }

    /// Where records of the layer's levels are; `None` where blocks have none.
    pub(super) fn level_records(&self, layer: usize) -> Result<Option<Span<'_>>, Error> {
        let Some((_, _, records)) = &self.levels else { return Ok(None) };
        Ok(Some(self.of_layer(records, layer)?))
    }

    /// Pages of records of a layer at a level.
    pub(super) fn packed_at_level(&self, layer: usize, level: &LevelSizes) -> Result<Span<'_>, Error> {
        Ok(Span::of(&self.packed, self.sizes.packed_at(layer, level.first), level.pages * level.page_bytes)?)
    }

    /// Enqueues one pass, over blocks of all levels, with the arguments of one over a single format. `blocks`: that it reads, over all sequences and KV heads,
    /// where it is over the step's batch: launches run beside each other then, each on its part of the CTAs, or else one behind the other.
    ///
    /// Costs a launch for each level, and one more.
    pub(in crate::gpu) fn attend_levels(
        &self,
        layer: usize,
        args: &Attend<'_>,
        blocks: Option<usize>,
    ) -> Result<(), Error> {
        let (s, Some((kits, kept, _))) = (&self.sizes, &self.levels) else { return Ok(()) };
        let group = s.group(layer);
        // What is not settled waits for what is ahead of it.
        let beside = blocks.is_some() && args.settled;
        let (heads, count) = (&s.counters.heads, kits.each.len());
        let (each, partials) = (heads.len() / count, self.partials.len() / count);
        let nothing = Left { kept: Span::of(kept, 0, 0)?, lens: args.lens };
        let mut left = [nothing; MOST_LEVELS];
        for (level, (kit, (of, own))) in kits.each.iter().zip(s.levels.iter().zip(&group.tables.levels)).enumerate() {
            let (attend, variant) = kit.cut_for(blocks.unwrap_or(0));
            let kept = Span::of(kept, level * s.level_kept_bytes, s.level_kept_bytes)?;
            let lens = self.table(&own.lens)?;
            let share = group.tables.shares.start + level;
            let args = Attend {
                variant,
                tables: Tables { packed: self.table(&own.packed)?, ..args.tables },
                lens,
                packed: self.packed_at_level(layer, of)?,
                homes: Some(self.table(&own.homes)?),
                kept: Some(kept),
                metrics: self.metrics_at(layer, level)?,
                failures: None,
                partials: Span::of(&self.partials, level * partials, partials)?,
                counters: self.counter(&(heads.start + level * each..heads.start + (level + 1) * each))?,
                share: if beside { Some(self.table(&(share..share + 1))?) } else { None },
                beside: beside && level > 0,
                ..*args
            };
            launch::attend(&self.queue, attend, &args)?;
            left[level] = Left { kept, lens };
        }
        let args = Unite {
            variant: &kits.each[0].variant,
            ctas: 4 * self.ctas,
            seqs: args.seqs,
            rows: s.rows,
            kv_heads: s.kv_heads,
            batch: args.tables.batch,
            levels: &left[..count],
            centres: args.centres,
            out: args.out,
            certificates: args.certificates,
            only: args.only,
            failures: args.failures,
            tolerance: [args.relative, args.absolute],
            limits: args.limits,
        };
        Ok(unite::unite(&self.queue, &kits.unite, &args)?)
    }
}
