//! Attention of a batch of which some originals lie in the store alone.
//!
//! Passes and repairs run as ever: they leave what is not in host memory on codes. Then the host waits for the layer's list of dense heads, has
//! what their sequences lack brought, and launches the dense rung over them, in as many rounds as the frames kept for reading need.
//!
//! *Cost:* a wait for the device a layer, and no store where no head is dense. Batches without such a sequence run what they run without spilling.
use super::Ask;
use super::fetch::asks;
use crate::Error;
use crate::gpu::cache::GpuCache;
use crate::gpu::core::Core;
use crate::gpu::ladder::{self, Call};
use crate::gpu::policy::Rule;
use crate::gpu::step::Part;
use certkv_kernel::cuda::queue::Span;
use core::ops::Range;
use std::sync::Arc;

/// What a step knows of where its sequences' originals are.
#[derive(Debug, Clone, Copy, Default)]
pub(in crate::gpu) struct Seen {
    /// How many frames had been given up when it looked.
    given_up: u64,
    /// Whether some of a single token's sequence lie in the store alone.
    away: bool,
}

impl Seen {
    /// Whether a batch has to be attended with the host at hand.
    pub(in crate::gpu) fn away(self) -> bool {
        self.away
    }
}

/// Looks at each block of the batch, a nanosecond or two each; not at all where everything is in host memory.
pub(in crate::gpu) fn look(cache: &GpuCache, parts: &[Part]) -> Seen {
    let Some(spill) = &cache.spill else { return Seen::default() };
    let mut seen = Seen { given_up: spill.given_up, away: spill.map.away() > 0 };
    if seen.away {
        let tables = parts
            .iter()
            .filter(|part| part.place.is_some())
            .filter_map(|part| cache.sequences.get(part.row).and_then(|entry| entry.tables.get(spill.group)));
        seen.away = tables.flat_map(|table| table.blocks()).any(|entry| spill.map.is_away(entry.host));
    }
    seen
}

/// Enqueues the launches of `call` for a step's single tokens, as [`ladder::attend`], and brings originals where heads need what the store alone
/// has.
///
/// # Errors
/// [`Error::Fetch`]; [`Error::Order`] for a step that is being recorded, which cannot wait; the driver's. The layer is to be attended again.
pub(in crate::gpu) fn attend(
    cache: &mut GpuCache,
    parts: &[Part],
    seen: &mut Seen,
    call: &Call<'_>,
) -> Result<(), Error> {
    let core = Arc::clone(&cache.core);
    // What is told now, attention may not look up before it is there.
    let call = &Call { fresh: !cache.ready(call.layer)? && call.fresh, ..*call };
    if !core.sizes.spills(call.layer) || !ladder::reads_all(&core, call) {
        return ladder::attend(&core, call);
    }
    if cache.spill.as_ref().is_some_and(|spill| spill.given_up != seen.given_up) {
        *seen = look(cache, parts);
    }
    if !seen.away {
        return ladder::attend(&core, call);
    }
    if core.queue.stream().capturing()? {
        return Err(Error::Order { layer: call.layer, why: RECORDED });
    }
    ladder::attend_but_dense(&core, call)?;
    let heads = if call.rule == Rule::Dense {
        (0..(call.seqs * core.sizes.kv_heads) as u32).collect()
    } else {
        listed(&core, call)?
    };
    if let Some(spill) = &mut cache.spill {
        spill.needed[spill.slots[call.layer] as usize] = !heads.is_empty();
    }
    rounds(cache, parts, call, heads)?;
    ladder::plan_next(&core, call)
}

/// Why such a step is not recorded, or run from a recording.
pub(in crate::gpu) const RECORDED: &str =
    "a recorded step cannot wait for originals that lie in the store alone: begin it plainly";

/// The heads that repairs have left. Waits for the device.
fn listed(core: &Core, call: &Call<'_>) -> Result<Vec<u32>, Error> {
    let (at, most) = (core.sizes.result_sections().dense.start, call.seqs * core.sizes.kv_heads);
    core.queue.download(&core.failures, core.list_at(call.layer, 1), &core.results, at, 4 * (1 + most))?;
    core.finish()?;
    let mut words = vec![0u32; 1 + most];
    core.results.read(at, &mut words)?;
    let count = (words[0] as usize).min(most);
    let mut heads = words.split_off(1);
    heads.truncate(count);
    heads.sort_unstable();
    Ok(heads)
}

/// Runs of the batch's sequences whose blocks have room beside each other in the frames kept for reading; at least one each.
fn runs(blocks: &[usize], room: usize) -> Vec<Range<usize>> {
    let (mut runs, mut start, mut sum) = (Vec::new(), 0, 0);
    for (i, n) in blocks.iter().enumerate() {
        if i > start && sum + n > room {
            runs.push(start..i);
            (start, sum) = (i, 0);
        }
        sum += n;
    }
    if start < blocks.len() {
        runs.push(start..blocks.len());
    }
    runs
}

/// The dense rung for `heads`, in the order of their sequences.
fn rounds(cache: &mut GpuCache, parts: &[Part], call: &Call<'_>, heads: Vec<u32>) -> Result<(), Error> {
    let core = Arc::clone(&cache.core);
    let (s, Some(list), Some(frames)) = (&core.sizes, &core.dense_list, core.sizes.frames) else { return Ok(()) };
    let of = |part: &Part| -> Vec<u32> {
        let place = part.place.unwrap_or(usize::MAX);
        heads.iter().filter(|head| **head as usize / s.kv_heads == place).copied().collect()
    };
    let members: Vec<(&Part, Vec<u32>)> =
        parts.iter().filter(|part| part.place.is_some()).map(|part| (part, of(part))).collect();
    let members: Vec<_> = members.into_iter().filter(|(_, heads)| !heads.is_empty()).collect();
    let blocks: Vec<usize> = members.iter().map(|(part, _)| part.len / s.block).collect();
    let room = if frames.reserve == 0 { usize::MAX } else { frames.reserve };
    for run in runs(&blocks, room) {
        let (mut wanted, mut words): (Vec<Ask>, Vec<u32>) = (Vec::new(), vec![0]);
        for (part, heads) in &members[run] {
            let table = cache.sequences.get(part.row).and_then(|entry| entry.tables.get(frames.group));
            wanted.extend(table.into_iter().flat_map(|table| asks(part.id, table, call.layer, part.len / s.block)));
            words.extend(heads);
        }
        cache.bring(&wanted)?;
        cache.flush()?;
        words[0] = words.len() as u32 - 1;
        cache.ring.send(&core.queue, list, 0, &words)?;
        ladder::dense(&core, call, Span::of(list, 0, list.len())?)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::runs;

    #[test]
    fn runs_fill_the_room_and_hold_everybody() {
        assert_eq!(runs(&[], 5), []);
        assert_eq!(runs(&[3, 2, 1, 5, 9, 1], 5), [0..2, 2..3, 3..4, 4..5, 5..6]);
        assert_eq!(runs(&[0, 0, 4, 1, 1], 5), [0..4, 4..5]);
        assert_eq!(runs(&[1, 1, 1], usize::MAX).len(), 1);
    }
}
