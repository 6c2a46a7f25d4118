//! One step: a ragged batch of new tokens, layer by layer, committed as a whole.
use super::cache::{GpuCache, coded};
use super::core::Core;
use super::drafts;
use super::extend::{self, Io};
use super::extended::Extended;
use super::ladder::Call;
use super::learn;
use super::lists::Lists;
use super::ordered;
use super::policy::{Limit, Rule};
use super::prefill;
use super::published;
use super::queries::send_queries;
use super::record::{GpuGraph, Shape};
use super::spill;
use super::window::blocks;
use crate::{Chunk, Error, Side};
use certkv_core::{SequenceId, nonfinite_at, planted, try_resize};
use certkv_kernel::cuda::args::Element;
use certkv_kernel::cuda::select::ROW_ENTRY;
use certkv_page::Reservation;
use std::sync::Arc;

/// One sequence of a step.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) id: SequenceId,
    /// Row in the tables.
    pub(super) row: usize,
    /// New tokens.
    pub(super) tokens: usize,
    /// First new token's row in the step's inputs.
    pub(super) first_row: usize,
    /// Tokens before the step.
    pub(super) len: usize,
    /// Place in the batch of the kernels; `None` for a chunk of several tokens.
    pub(super) place: Option<usize>,
    /// Place behind the batch, of a chunk of several tokens.
    pub(super) guest: usize,
    /// First new token's row among those of all drafts.
    pub(super) draft: usize,
    /// By group of layers, until the step is over.
    pub(super) reservations: Vec<Reservation>,
}

/// How far a layer has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Progress {
    Waiting,
    Appended,
    Attended,
    /// Appended, and an attention began that was not enqueued to its end: results are of no step, and lists are not empty.
    Broken,
    /// A failed append may have written rows past the committed length; appending again overwrites them.
    Failed,
}

impl Progress {
    pub(super) fn is_appended(self) -> bool {
        matches!(self, Self::Appended | Self::Attended | Self::Broken)
    }
}

/// A step in progress. Dropping it without [`GpuStep::finish`] gives back what it reserved: the sequences are as before.
///
/// Order: [`GpuStep::append`] once per layer, [`GpuStep::attend`] on a layer any time after its append, [`GpuStep::finish`]
/// after every layer was appended. Nothing here waits for the device but [`GpuStep::outputs`] and
/// [`GpuStep::certificates`], and staging when the host is four batches ahead.
#[derive(Debug)]
#[must_use = "a step that is not finished is rolled back"]
pub struct GpuStep<'c> {
    pub(super) cache: &'c mut GpuCache,
    pub(super) rule: Rule,
    /// Of the attend calls that follow, in place of the policy's.
    pub(super) limit: Option<Limit>,
    pub(super) parts: Vec<Part>,
    pub(super) progress: Vec<Progress>,
    /// Empty, for parts.
    reservations: Vec<Vec<Reservation>>,
    pub(super) tokens: usize,
    /// Sequences with one token each: the batch of the kernels.
    pub(super) seqs: usize,
    /// Of a step of drafts alone, whose single tokens are drafts, too: the blocks that they fill.
    pub(super) drafting: Option<usize>,
    /// Type of the outputs in the cache's own buffer.
    pub(super) answers: Element,
    /// The layer whose outputs are in the cache's own buffer, and those of longer chunks.
    pub(super) last: Option<usize>,
    pub(super) chunks: Vec<f32>,
    /// By layer: certificates of all tokens' heads, if the GPU attended a longer chunk of it.
    pub(super) extended: Vec<Extended>,
    /// By layer: what rounding to 16 bits took from the outputs of longer chunks, `[tokens][q_heads]`; empty where nothing was rounded.
    pub(super) lost: Vec<Vec<f64>>,
    /// Under which its certificates are published.
    number: u64,
    /// Whether a recording has done so.
    published: bool,
    /// Where the single tokens' originals are.
    pub(super) seen: spill::Seen,
}

impl<'c> GpuStep<'c> {
    pub(super) fn begin(cache: &'c mut GpuCache, chunks: &[Chunk], rule: Rule) -> Result<Self, Error> {
        if chunks.is_empty() {
            return Err(Error::Shape { argument: "chunks", expected: 1, given: 0 });
        }
        cache.begun += 1;
        let (layers, number) = (cache.core.sizes.layers, cache.published);
        let Lists { parts, progress, reservations, chunks: rows, extended, lost } =
            core::mem::take(&mut cache.lists).of(layers);
        let mut step = Self {
            cache,
            rule,
            limit: None,
            parts,
            progress,
            reservations,
            tokens: 0,
            seqs: 0,
            drafting: None,
            answers: Element::F32,
            last: None,
            chunks: rows,
            extended,
            lost,
            number,
            published: false,
            seen: spill::Seen::default(),
        };
        for chunk in chunks {
            step.join(chunk)?;
        }
        if drafts::take(&step.cache.core, &mut step.parts) {
            (step.drafting, step.seqs) = (Some(0), 0);
        }
        step.house()?;
        step.announce()?;
        step.seen = spill::look(step.cache, &step.parts);
        Ok(step)
    }

    /// Takes a sequence into the step and reserves its pages.
    fn join(&mut self, chunk: &Chunk) -> Result<(), Error> {
        if chunk.tokens == 0 {
            return Err(Error::Shape { argument: "chunk.tokens", expected: 1, given: 0 });
        }
        if self.parts.iter().any(|part| part.id == chunk.sequence) {
            return Err(Error::BusySequence(chunk.sequence));
        }
        let entry = self.cache.entry_mut(chunk.sequence)?;
        let len = entry.len();
        let mut reservations = self.reservations.pop().unwrap_or_default();
        // All groups or none: what was reserved goes back if one refuses.
        let reserved = entry.tables.iter_mut().try_for_each(|table| {
            reservations.push(table.reserve(chunk.tokens)?);
            Ok(())
        });
        if let Err(error) = reserved {
            reservations.clear();
            self.reservations.push(reservations);
            return Err(Error::from_table(error));
        }
        let place = (chunk.tokens == 1).then_some(self.seqs);
        self.seqs += usize::from(place.is_some());
        self.parts.push(Part {
            id: chunk.sequence,
            row: chunk.sequence.slot as usize,
            tokens: chunk.tokens,
            first_row: self.tokens,
            len,
            place,
            guest: 0,
            draft: 0,
            reservations,
        });
        self.tokens += chunk.tokens;
        Ok(())
    }

    /// Frames for the originals of blocks that become full, and of all blocks of longer chunks, which the host writes.
    fn house(&mut self) -> Result<(), Error> {
        let Self { cache, parts, .. } = self;
        let Some(group) = cache.spill.as_ref().map(|spill| spill.group()) else { return Ok(()) };
        let spans = parts.iter().flat_map(|part| {
            let rows = part.reservations.get(group).into_iter().flat_map(Reservation::rows);
            rows.map(move |span| (part.place, span))
        });
        let written = spans.clone().filter(|(place, span)| place.is_none() || span.packed.is_some());
        cache.house(group, written.map(|(_, span)| span.host))?;
        for (place, span) in spans {
            if let (Some(_), Some(_), Some(tail)) = (place, span.packed, span.tail) {
                cache.fill_from(span.host, tail.index);
            }
        }
        Ok(())
    }

    /// Sends lengths, tails and new pages to the device; for longer chunks, fetches the rows of their open blocks.
    fn announce(&mut self) -> Result<(), Error> {
        let Self { cache, parts, seqs, drafting, rule, .. } = self;
        for part in parts.iter() {
            for (group, reservation) in part.reservations.iter().enumerate() {
                for span in reservation.rows() {
                    let packed = span.packed.map(|page| page.index);
                    cache.mirror.set(group, part.row, span.block, span.host.index, packed);
                }
                if part.place.is_some() && tail(reservation).is_none() {
                    return Err(Error::Order { layer: 0, why: "an open block has no tail" });
                }
            }
        }
        cache.forgive_dropped()?;
        cache.hear_pending()?;
        for layer in 0..cache.core.sizes.layers {
            cache.core.settle(layer)?;
        }
        cache.forget()?;
        if drafting.is_none() && parts.iter().any(|part| part.place.is_none()) {
            // Longer chunks read and write pages of originals on the host.
            cache.land()?;
        }
        cache.tell_moves()?;
        for layer in 0..cache.core.sizes.layers {
            cache.ready(layer)?;
        }
        let mut guest = drafts::place(parts, *seqs, cache.core.sizes.drafts.tokens);
        for part in parts.iter_mut() {
            match part.place {
                Some(place) => cache.mirror.join(place, part.row, part.len),
                None => {
                    if part.tokens > cache.core.sizes.drafts.tokens {
                        part.guest = guest;
                        guest += 1;
                    }
                    cache.mirror.follow(part.guest, part.row, part.len, part.tokens);
                }
            }
            for (group, reservation) in part.reservations.iter().enumerate() {
                // A chunk that ends with a block has no open one.
                cache.mirror.tail(group, part.row, tail(reservation).unwrap_or(0));
            }
        }
        cache.mirror.count(*seqs);
        cache.send_tables()?;
        cache.core.protect(parts.len(), *rule)?;
        let filled = drafts::tell(cache, parts, drafting.is_some())?;
        if let Some(drafting) = drafting {
            *drafting = filled;
        } else if parts.iter().any(|part| part.place.is_none()) {
            for part in parts.iter().filter(|part| part.place.is_none()) {
                for (group, reservation) in part.reservations.iter().enumerate() {
                    for span in reservation.rows().filter(|span| span.first_row > 0) {
                        if let Some(tail) = span.tail {
                            prefill::fetch_open(cache, group, tail.index, span.host)?;
                        }
                    }
                }
            }
            // From here on the host reads and writes pages of originals itself.
            cache.core.finish()?;
        }
        Ok(())
    }

    /// The cache, to be asked while the step is open.
    pub fn cache(&self) -> &GpuCache {
        self.cache
    }

    /// New tokens of all chunks: the rows that `append` and `attend` expect, in the order of the chunks.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// The step's number in the [ring of certificates](GpuCache::certificate_ring). A step that is neither finished nor replayed does not
    /// use it up.
    pub fn number(&self) -> u64 {
        self.number
    }

    pub(super) fn check_layer(&self, layer: usize) -> Result<Progress, Error> {
        self.progress.get(layer).copied().ok_or(Error::Layer { layer, layers: self.progress.len() })
    }

    fn check_append(&self, layer: usize) -> Result<(), Error> {
        match self.check_layer(layer)? {
            Progress::Waiting | Progress::Failed => Ok(()),
            Progress::Appended | Progress::Attended | Progress::Broken => {
                Err(Error::Order { layer, why: "appended twice in one step" })
            }
        }
    }

    pub(super) fn check_attend(&self, layer: usize) -> Result<(), Error> {
        match self.check_layer(layer)? {
            Progress::Appended | Progress::Attended | Progress::Broken => Ok(()),
            Progress::Waiting | Progress::Failed => Err(Error::Order { layer, why: "attended before it was appended" }),
        }
    }

    /// Writes the new tokens' keys (after RoPE) and values of one layer, `[tokens][kv_heads * head_dim]` each. They are
    /// rounded to the cache's 16-bit type; what is certified is attention over the rounded originals. Blocks that become
    /// full are coded.
    ///
    /// # Errors
    /// A bad layer, shape, order, or a value that is not finite or too large: nothing was written. A device error: the
    /// layer counts as not appended and may be appended again.
    pub fn append(&mut self, layer: usize, keys: &[f32], values: &[f32]) -> Result<(), Error> {
        self.check_rows(layer, keys.len(), values.len())?;
        let (width, store) = (self.cache.geometry().kv_width(), self.cache.geometry().store);
        self.cache.rows.round(keys, values, width, store)?;
        self.append_rows(layer)
    }

    /// As [`GpuStep::append`] for rows that already are 16-bit patterns of the cache's type.
    ///
    /// # Errors
    /// As [`GpuStep::append`].
    pub fn append_bits(&mut self, layer: usize, keys: &[u16], values: &[u16]) -> Result<(), Error> {
        self.check_rows(layer, keys.len(), values.len())?;
        let (width, store) = (self.cache.geometry().kv_width(), self.cache.geometry().store);
        self.cache.rows.copy(keys, values, width, store)?;
        self.append_rows(layer)
    }

    pub(super) fn check_rows(&self, layer: usize, keys: usize, values: usize) -> Result<(), Error> {
        let expected = self.tokens * self.cache.geometry().kv_width();
        for (argument, given) in [("keys", keys), ("values", values)] {
            if given != expected {
                return Err(Error::Shape { argument, expected, given });
            }
        }
        self.check_append(layer)
    }

    fn append_rows(&mut self, layer: usize) -> Result<(), Error> {
        self.check_host(layer)?;
        if self.progress[layer] == Progress::Failed && self.has_chunks() {
            // What the append that failed had enqueued may still read the pages that the host is to write.
            self.cache.core.finish()?;
        }
        self.progress[layer] = Progress::Failed;
        let Self { cache, parts, seqs, drafting, tokens, .. } = self;
        if drafting.is_some() {
            ordered::tell_pages(cache, parts.iter(), layer..layer + 1)?;
            drafts::append(cache, layer, *tokens)?;
        } else if *seqs > 0 {
            for (side, offset) in [(Side::Key, 0), (Side::Value, cache.core.sizes.row_bytes())] {
                let GpuCache { core, rows, ring, batch_words, .. } = &mut **cache;
                batch_words.clear();
                for part in parts.iter().filter(|part| part.place.is_some()) {
                    batch_words.extend_from_slice(rows.side(part.first_row, side));
                }
                ring.send(&core.queue, &core.inputs, offset, batch_words)?;
            }
            let [keys, values] = cache.core.staged_rows(*seqs)?;
            ordered::tell_pages(cache, parts.iter().filter(|part| part.place.is_some()), layer..layer + 1)?;
            cache.core.append(layer, *seqs, keys, values)?;
        }
        for part in parts.iter().filter(|part| part.place.is_none() && drafting.is_none()) {
            prefill::append(cache, layer, part)?;
        }
        self.progress[layer] = Progress::Appended;
        Ok(())
    }

    /// Enqueues attention of the new tokens' queries (after RoPE) over everything up to and including themselves, for one
    /// layer; [`GpuStep::outputs`] reads the result. `queries` is `[tokens][q_heads * head_dim]`.
    ///
    /// A chunk of one token is a decode step under the step's policy. A longer chunk is causal attention over the originals,
    /// computed by the CPU before the call returns; or on the GPU, over originals and codes, as a draft or as a chunk, for which the call waits:
    /// [`GpuConfig::chunk_tokens`](super::GpuConfig::chunk_tokens).
    ///
    /// # Errors
    /// A bad layer, shape or order, a query that is not finite, or a device error: the layer counts as not attended and may be attended
    /// again.
    pub fn attend(&mut self, layer: usize, queries: &[f32]) -> Result<(), Error> {
        self.attend_in(layer, queries, Element::F32)
    }

    /// The same with outputs of single tokens rounded to `answers`, which their bounds know of.
    pub(super) fn attend_in(&mut self, layer: usize, queries: &[f32], answers: Element) -> Result<(), Error> {
        self.check_attend(layer)?;
        let width = self.cache.geometry().q_width();
        let expected = self.tokens * width;
        if queries.len() != expected {
            return Err(Error::Shape { argument: "queries", expected, given: queries.len() });
        }
        if let Some(at) = nonfinite_at(queries) {
            return Err(Error::NonFinite { argument: "queries", token: at / width, element: at % width });
        }
        (self.last, self.answers) = (None, answers);
        let fresh = self.progress[layer] == Progress::Appended;
        self.progress[layer] = Progress::Broken;
        self.check_host(layer)?;
        let rule = self.rule();
        self.lost[layer].clear();
        let Self { cache, parts, seqs, drafting, chunks, extended, tokens, seen, .. } = self;
        let heads = cache.geometry().q_heads;
        extended[layer].clear();
        if drafting.is_some() {
            drafts::attend_host(cache, layer, parts, queries, (rule, fresh), true)?;
        } else if *seqs > 0 {
            cache.batch_queries.clear();
            for part in parts.iter().filter(|part| part.place.is_some()) {
                cache.batch_queries.extend_from_slice(&queries[part.first_row * width..(part.first_row + 1) * width]);
            }
            let element = send_queries(cache, width, 0)?;
            let core = Arc::clone(&cache.core);
            let query = core.staged_queries(0, *seqs, element)?;
            let out = core.own_outputs(0, *seqs, answers)?;
            let blocks = blocks(&core, layer, parts);
            let call = Call { layer, seqs: *seqs, blocks, query, out, rule, fresh, drafts: None };
            spill::attend(cache, parts, seen, &call)?;
        }
        chunks.clear();
        if drafting.is_none() && parts.iter().any(|part| part.place.is_none()) {
            try_resize(chunks, expected, f32::NAN)?;
            let drafted =
                drafts::attend(cache, layer, parts, (queries, chunks), rule, (&mut extended[layer].drafts, *tokens))?;
            for part in parts.iter().filter(|part| part.place.is_none() && part.tokens > drafted) {
                let attended = cache.core.sizes.chunk_tokens > 0 && {
                    let words = extended[layer].words(*tokens * heads)?;
                    extend::attend(cache, layer, part, Io::Host(queries, chunks), rule, words)?
                };
                if !attended {
                    prefill::attend(cache, layer, part, queries, chunks)?;
                }
                if let Rule::Certified(limit) = rule {
                    let last = part.first_row + part.tokens - 1;
                    prefill::plan(cache, layer, part, &queries[last * width..(last + 1) * width], limit)?;
                    learn::learn(&cache.core, layer, part, &chunks[last * width..(last + 1) * width])?;
                }
            }
        }
        self.last = Some(layer);
        self.progress[layer] = Progress::Attended;
        Ok(())
    }

    /// Enqueues a recording of all layers, appends and attention, for a step of as many sequences as it was made for.
    ///
    /// # Errors
    /// A step that began otherwise, or a recording of another cache, batch or policy; a device error.
    pub fn replay(&mut self, graph: &GpuGraph<'_>) -> Result<(), Error> {
        self.check_replay(&graph.core, graph.shape, graph.rule)?;
        self.progress.fill(Progress::Failed);
        ordered::tell_pages(self.cache, self.on_device(), 0..self.progress.len())?;
        graph.run(&self.cache.core)?;
        self.count_published();
        self.progress.fill(Progress::Attended);
        Ok(())
    }

    /// Whether a recording of such steps under `rule` may be this step.
    pub(super) fn check_replay(&self, core: &Arc<Core>, shape: Shape, rule: Rule) -> Result<(), Error> {
        let own = self.recordable(0)?;
        if let Some(layer) = self.progress.iter().position(|p| *p != Progress::Waiting) {
            return Err(Error::Order { layer, why: "a recording holds the layer's append" });
        }
        if !Arc::ptr_eq(core, &self.cache.core) && !planted!(B15) {
            return Err(Error::Order { layer: 0, why: "the recording is another cache's" });
        }
        for (argument, expected, given) in
            [("chunks", shape.seqs, own.seqs), ("chunk.tokens", shape.tokens, own.tokens)]
        {
            if expected != given {
                return Err(Error::Shape { argument, expected, given });
            }
        }
        if self.limit.is_some() {
            return Err(Error::Policy("a recording has the tolerance of its policy, and the step has another".into()));
        }
        if self.rule != rule {
            return Err(Error::Policy("the recording was made under another".into()));
        }
        let reads_all = |layer: &usize| rule != Rule::Packed && core.sizes.spills(*layer) && !core.kit(*layer).exact;
        match (0..core.sizes.layers).find(reads_all).filter(|_| self.seen.away()) {
            Some(layer) => Err(Error::Order { layer, why: spill::RECORDED }),
            None => Ok(()),
        }
    }

    /// A recording publishes the step's certificates.
    pub(super) fn count_published(&mut self) {
        self.cache.published += 1;
        self.published = true;
    }

    /// Enqueues the choice of what the next step reads exactly in a layer, by the masses of this one's attention, and its copies to scratch, where
    /// [`GpuConfig::plan_apart`](super::GpuConfig::plan_apart) has attention leave that to the caller: on a stream of the cache's own, behind what it has enqueued so far.
    /// What the caller enqueues next runs beside it; the end of the step waits for it, and so does attention of the same layer. A layer that is not
    /// planned reads what it has read in this step. Called again before either it does nothing, as where attention itself plans: formats with residual planes, layers with a
    /// store, policies that promote nothing, and every layer without `plan_apart`. A recording holds it. Two launches; the host waits for nothing.
    ///
    /// # Errors
    /// A bad layer, or one that was not attended; the driver's: attention of the layer or the next step finishes what was begun.
    pub fn plan(&mut self, layer: usize) -> Result<(), Error> {
        if self.check_layer(layer)? != Progress::Attended {
            return Err(Error::Order { layer, why: "planned before it was attended" });
        }
        let core = &self.cache.core;
        if !core.plans_apart(layer) || !matches!(self.rule(), Rule::Certified(_)) {
            return Ok(());
        }
        core.plan_beside(layer, self.seqs)
    }

    /// Makes the new tokens part of their sequences, publishes the step's certificates where there is a ring of them, and enqueues that blocks which are
    /// full now are coded, those of all layers at once, and that their originals leave for host memory beside what comes next. Does not wait: what comes later
    /// on the stream sees them. Of blocks that filled it costs one call of the driver with a copy for each and layer, and the next step a launch more.
    ///
    /// # Errors
    /// A layer that was not appended; a stream that records ([`GpuStep::captured`] ends such a step); the driver's. The step is rolled back then.
    pub fn finish(mut self) -> Result<(), Error> {
        if let Some(layer) = self.progress.iter().position(|p| !p.is_appended()) {
            return Err(Error::Order { layer, why: "the step was finished before the layer was appended" });
        }
        if self.cache.core.queue.stream().capturing()? {
            return Err(Error::Order { layer: 0, why: "the step was finished while its stream records" });
        }
        let seen = self.sees_masses();
        if !self.published {
            let attended = self.progress.iter().map(|p| *p == Progress::Attended);
            published::publish(&self.cache.core, self.whose(), self.rule, attended)?;
            self.cache.published += 1;
            self.cache.core.join()?;
            ordered::tell_pages(self.cache, self.on_device(), 0..self.progress.len())?;
            self.cache.core.close(self.seqs)?;
            self.cache.core.close_drafts(self.drafting.unwrap_or(0))?;
        }
        let mark = self.cache.store_filled()?;
        let Self { cache, parts, drafting, .. } = &mut self;
        cache.depart(parts, drafting.is_some())?;
        for part in parts {
            cache.see(part, seen)?;
            for (group, reservation) in part.reservations.drain(..).enumerate() {
                let table = &mut cache.entry_mut(part.id)?.tables[group];
                let committed = table.commit(reservation).map_err(|e| Error::from_table(e.error))?;
                // Of pages that a window has passed nothing may be remembered; other blocks of the row are what they were.
                cache.forgotten[group].note_all(coded(&cache.core.sizes, &committed.dropped));
                committed.dropped.retire(|| cache.stamp(group))?;
                for block in committed.filled {
                    cache.full(part.id, group, block)?;
                }
            }
        }
        cache.filled(mark);
        cache.keep_room();
        cache.tend();
        Ok(())
    }
}

impl Drop for GpuStep<'_> {
    fn drop(&mut self) {
        for part in &mut self.parts {
            // Whatever ran of it: a graph of the caller's, too, that nobody has said to have been launched.
            if !part.reservations.is_empty() {
                self.cache.forgive_later(part.row, part.len);
            }
            for (group, reservation) in part.reservations.drain(..).enumerate() {
                // Blocks that were coded in this step are gone; what was chosen of them goes before their pages are used.
                let forgotten = &mut self.cache.forgotten[group];
                let coded = reservation.rows().filter_map(|span| span.packed).map(|page| page.index);
                if forgotten.note_all(coded) {
                    forgotten.note(ROW_ENTRY | part.row as u32);
                }
                reservation.abort(|| self.cache.stamp(group));
            }
        }
        self.cache.filled(None);
        self.cache.core.leave_lane();
        // What the driver refuses is tried again behind the next step.
        let _ = self.cache.core.erase_chunks();
        // What prompts had goes with them.
        let drafts = self.is_of_drafts();
        let Self { cache, parts, progress, reservations, chunks, extended, lost, .. } = self;
        let lists = Lists {
            parts: core::mem::take(parts),
            progress: core::mem::take(progress),
            reservations: core::mem::take(reservations),
            chunks: core::mem::take(chunks),
            extended: core::mem::take(extended),
            lost: core::mem::take(lost),
        };
        cache.lists = lists.kept(drafts);
        if !drafts {
            (cache.carried, cache.pack_items) = <_>::default();
        }
    }
}

/// Slot of the open block that a sequence has behind the step.
fn tail(reservation: &Reservation) -> Option<u32> {
    reservation.rows().last().and_then(|span| span.tail).map(|tail| tail.index)
}
