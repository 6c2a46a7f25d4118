//! What each level would lose of each block: the block is coded once at every level, and what the error summaries say is kept.
use super::encoder_of;
use crate::Error;
use crate::append::encode;
use crate::cache::Cache;
use crate::group::Group;
use crate::sequence::SequenceState;
use crate::work::Workspace;
use certkv_codec::decode::read_summary;
use certkv_core::ErrorSummary;
use certkv_page::BlockEntry;

/// Numbers of a level: `eps`, `eta`, `sop` (3.1), (3.4), (3.5). Not a number where the level cannot hold the block.
const OF_LEVEL: usize = 3;

/// Numbers of the blocks of one layer, `[block][KV head]`: `R_b` (3.3), then those of each level of the ladder, which ascends.
#[derive(Debug, Clone)]
pub(crate) struct Probes {
    kv_heads: usize,
    levels: usize,
    numbers: Vec<f32>,
    /// Blocks that are known elsewhere: where a cache keeps their numbers on a device, of which those here are a part.
    apart: usize,
    /// What is there of their losses.
    peaks: Peaks,
}

/// How much of what a device keeps of the blocks of a layer, first ones first, is of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Peaks {
    /// Blocks whose losses are there, of the steps that were looked at since the last decision.
    pub(crate) known: usize,
    /// Blocks behind which nothing was ever written, so that there is none.
    pub(crate) written: usize,
}

/// What is known of one block in one KV head.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Probe<'a>(&'a [f32]);

impl Probe<'_> {
    /// `R_b`.
    pub(crate) fn radius(&self) -> f64 {
        self.0.first().map_or(f64::NAN, |x| f64::from(*x))
    }

    /// `[eps, eta, sop]` of the codes at every level of the ladder.
    pub(crate) fn levels(&self) -> impl Iterator<Item = [f64; OF_LEVEL]> {
        self.0.get(1..).unwrap_or(&[]).as_chunks().0.iter().map(|errors: &[f32; OF_LEVEL]| errors.map(f64::from))
    }

    /// The same of one.
    pub(crate) fn errors(&self, level: usize) -> [f64; OF_LEVEL] {
        core::array::from_fn(|i| self.0.get(1 + level * OF_LEVEL + i).map_or(f64::NAN, |x| f64::from(*x)))
    }
}

impl Probes {
    pub(crate) fn new(kv_heads: usize, levels: usize) -> Self {
        Self { kv_heads, levels, numbers: Vec::new(), apart: 0, peaks: Peaks { known: 0, written: usize::MAX } }
    }

    /// Levels of the ladder.
    pub(crate) fn levels(&self) -> usize {
        self.levels
    }

    fn stride(&self) -> usize {
        1 + self.levels * OF_LEVEL
    }

    /// Blocks that are known.
    pub(crate) fn blocks(&self) -> usize {
        self.numbers.len() / (self.kv_heads * self.stride()).max(1)
    }

    /// Forgets all blocks but the first `blocks`.
    pub(crate) fn truncate(&mut self, blocks: usize) {
        self.numbers.truncate(blocks * self.kv_heads * self.stride());
        self.apart = self.apart.min(blocks);
        self.peaks.known = self.peaks.known.min(blocks);
    }

    /// What a device has of losses.
    pub(crate) fn peaks(&self) -> Peaks {
        self.peaks
    }

    /// It has those of so many blocks now, and of no others.
    pub(crate) fn looked_at(&mut self, blocks: usize) {
        self.peaks = Peaks { known: blocks, written: blocks };
    }

    /// Somebody was told of them.
    pub(crate) fn told(&mut self) {
        self.peaks.known = 0;
    }

    /// Blocks whose numbers are elsewhere.
    pub(crate) fn apart(&self) -> usize {
        self.apart
    }

    /// They are so many now.
    pub(crate) fn now_apart(&mut self, blocks: usize) {
        self.apart = blocks;
    }

    /// Room for the numbers of so many blocks more: until they are [`Probes::put`] there no level can hold them.
    pub(crate) fn grow(&mut self, blocks: usize) {
        let more = blocks * self.kv_heads * self.stride();
        self.numbers.resize(self.numbers.len() + more, f32::NAN);
    }

    /// What the codes of a block at level `up` of the ladder say of one KV head.
    pub(crate) fn put(&mut self, block: usize, head: usize, up: usize, summary: &ErrorSummary) {
        let start = (block * self.kv_heads + head) * self.stride();
        let Some(numbers) = self.numbers.get_mut(start..start + 1 + self.levels * OF_LEVEL) else { return };
        numbers[0] = summary.radius;
        let errors = [summary.eps, summary.eta, summary.sop];
        numbers[1 + up * OF_LEVEL..1 + (up + 1) * OF_LEVEL].copy_from_slice(&errors);
    }

    /// Takes the numbers of blocks behind, `[block][KV head]`, as they are kept elsewhere.
    pub(crate) fn extend(&mut self, numbers: &[f32]) {
        self.numbers.extend_from_slice(numbers);
    }

    pub(crate) fn get(&self, block: usize, kv_head: usize) -> Probe<'_> {
        let start = (block * self.kv_heads + kv_head) * self.stride();
        Probe(self.numbers.get(start..start + self.stride()).unwrap_or(&[]))
    }

    pub(crate) fn bytes(&self) -> usize {
        self.numbers.capacity() * size_of::<f32>()
    }

    /// At so many blocks: the list grows by doubling.
    pub(crate) fn most_bytes(blocks: usize, kv_heads: usize, levels: usize) -> usize {
        2 * blocks * kv_heads * (1 + levels * OF_LEVEL) * size_of::<f32>()
    }
}

impl Cache {
    /// Codes the blocks of a layer that are not known yet, up to `blocks`, at every level but their own, if the last step said something of them. Costs one read of a
    /// block's originals and its encoding at the other levels, once in its life.
    pub(super) fn probe(
        &self,
        index: usize,
        state: &mut SequenceState,
        work: &mut Workspace,
        blocks: usize,
    ) -> Result<(), Error> {
        let group = &self.groups[index];
        let layer = group.first;
        let SequenceState { tables, centres, control, uncoded, heads, .. } = state;
        let Some(probes) = control.get_mut(index).map(|control| &mut control.probes) else { return Ok(()) };
        if probes.blocks() >= blocks || heads[group.all_memories().start].mass.is_empty() {
            return Ok(());
        }
        let table = &tables[index];
        let mut page = vec![0u8; group.bytes_at(0)];
        for block in probes.blocks()..blocks {
            let missing = Error::Order { layer, why: "a page of the sequence is missing" };
            let BlockEntry { host, packed, level: has, .. } = *table.get(block).ok_or(missing)?;
            let originals = group.host.read_tagged(group.host_slot(host, layer)?, &self.main, Group::tag(host))?;
            work.block.clear();
            work.block.extend_from_slice(originals.words());
            drop(originals);
            probes.grow(1);
            let coded = (0..group.level_count())
                .filter(|_| !uncoded[group.strand(layer)].contains(block))
                .try_for_each(|level| {
                    let Workspace { block: rows, encoders, .. } = &mut *work;
                    let encoders = &mut encoders[encoder_of(group, index, level)];
                    let page = &mut page[..group.bytes_at(level)];
                    match packed.filter(|_| level == has) {
                        // It has these codes.
                        Some(id) => {
                            let own = group.packed_at(level).read_tagged(
                                group.slot(id, layer),
                                &self.main,
                                Group::tag(id),
                            )?;
                            page.copy_from_slice(&own.bytes()[..page.len()]);
                        }
                        None => {
                            let centre = &centres[group.strand(layer)];
                            if !encode(self, group, (layer, level), centre, rows, encoders, page)?.whole {
                                return Ok(());
                            }
                        }
                    }
                    let up = usize::from(group.level_count() - 1 - level);
                    for head in 0..probes.kv_heads {
                        let summary = read_summary(group.layout_at(level), &page[group.record_at(level, head)]);
                        probes.put(block, head, up, &summary);
                    }
                    Ok(())
                });
            if let Err(error) = coded {
                // It is looked at again.
                probes.truncate(block);
                return Err(error);
            }
        }
        Ok(())
    }
}
