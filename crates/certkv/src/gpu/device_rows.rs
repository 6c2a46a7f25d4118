//! Steps whose rows are in device memory.
use super::carry;
use super::chunk_rows;
use super::drafts;
use super::extend::{self, Io};
use super::ladder::Call;
use super::learn;
use super::ordered;
use super::policy::Rule;
use super::prefill;
use super::queries::{check_elements, check_queries};
use super::record::Shape;
use super::refused;
use super::spill;
use super::step::{GpuStep, Part, Progress};
use super::window::{blocks, most_blocks};
use crate::Error;
use certkv_core::try_resize;
use certkv_kernel::cuda::tensor::Tensor;
use std::sync::Arc;

/// Why a step is not recorded.
const SEVERAL: &str = "a recording is of one token per sequence, or of drafts of one length";

impl GpuStep<'_> {
    /// As [`GpuStep::append`] for rows in device memory. Keys and values have a type each, and their rows need not follow each other:
    /// [`Tensor::rows_of`](super::Tensor::rows_of) takes those of a buffer in which something else is between them.
    ///
    /// In a step of one token per sequence, and of [drafts](super::GpuConfig::chunk_tokens) beside such, nothing is waited for. A row that is not finite, or too large, is refused: zeros stand in its place, and the host learns of it
    /// when it reads results. [`GpuStep::outputs`] and [`GpuStep::certificates`] are errors then, in this step and in all others of the sequence, and of forks of it, until it is truncated to a length
    /// without that row, or the step is dropped. With a longer chunk the call waits, and refuses such a row at once; without room for chunks on the device ([`GpuConfig::chunk_tokens`](super::GpuConfig::chunk_tokens)), or with
    /// single tokens of single precision beside it, all rows go by way of the host.
    ///
    /// # Errors
    /// A bad layer, shape or order, a longer chunk in a recording, or a device error; with a longer chunk as [`GpuStep::append`].
    pub fn append_device(&mut self, layer: usize, keys: Tensor<'_>, values: Tensor<'_>) -> Result<(), Error> {
        self.check_rows(layer, keys.elements(), values.elements())?;
        if self.has_chunks() {
            self.check_waits(layer)?;
            if self.append_chunks(layer, keys, values)? {
                return Ok(());
            }
            let g = *self.cache.geometry();
            let shape = [self.tokens, g.kv_heads, g.head_dim];
            return self.carried(|step, lists, [own_keys, own_values]| {
                carry::fetch(step.cache, "keys", keys, shape, lists, own_keys)?;
                carry::fetch(step.cache, "values", values, shape, lists, own_values)?;
                step.append(layer, own_keys, own_values)
            });
        }
        self.check_recorded_drafts(layer)?;
        self.progress[layer] = Progress::Failed;
        ordered::tell_pages(self.cache, self.on_device(), layer..layer + 1)?;
        match self.drafting {
            Some(_) => self.cache.core.append_drafts(layer, self.tokens, [keys, values])?,
            None => self.cache.core.append(layer, self.seqs, keys, values)?,
        }
        self.progress[layer] = Progress::Appended;
        Ok(())
    }

    /// As [`GpuStep::attend`] with queries and outputs in device memory, which do not overlap. Each has a type of its own, and rows need not
    /// follow each other ([`Rows`](super::Rows)); what rounding outputs to 16 bits takes from them is in their bounds. Outputs may be read by work
    /// behind [`GpuCache::synchronize`](super::GpuCache::synchronize) or by the host after [`GpuStep::certificates`], which says what they are worth.
    ///
    /// In a step of one token per sequence, and of drafts beside such, nothing is waited for, and an output that its type cannot hold has no bound. For a longer chunk the call waits, and where
    /// the GPU does not attend it, or drafts are beside it, all queries and outputs go by way of the host.
    ///
    /// # Errors
    /// A bad layer, shape or order, a longer chunk in a recording, single precision where the kernels take 16 bits only, or a device error: as
    /// [`GpuStep::attend`]; `out` may be written then, and is worth nothing. With a longer chunk also as [`GpuStep::outputs`], and
    /// [`Error::Overflow`] for an output that its type cannot hold.
    pub fn attend_device(&mut self, layer: usize, query: Tensor<'_>, out: Tensor<'_>) -> Result<(), Error> {
        self.check_attend(layer)?;
        let expected = self.tokens * self.cache.geometry().q_width();
        check_elements("query", query, expected)?;
        check_elements("out", out, expected)?;
        check_queries(self.cache, query.element())?;
        if self.has_chunks() {
            self.check_waits(layer)?;
            return match self.attend_chunks(layer, query, out)? {
                true => Ok(()),
                false => self.attend_carried(layer, query, out),
            };
        }
        if self.last == Some(layer) {
            self.last = None;
        }
        self.lost[layer].clear();
        let core = Arc::clone(&self.cache.core);
        if self.drafting.is_some() {
            self.check_recorded_drafts(layer)?;
            self.check_recorded_tolerance(layer)?;
            let (rule, fresh) = (self.rule(), self.progress[layer] == Progress::Appended);
            self.progress[layer] = Progress::Broken;
            self.cache.ready(layer)?;
            let (place, launches) = drafts::of_step(&core, &self.parts);
            drafts::enqueue(&core, (layer, place, true), launches, (query, out), (rule, fresh))?;
            self.progress[layer] = Progress::Attended;
            return Ok(());
        }
        // A recording serves sequences of any length.
        let most = most_blocks(&core, layer, self.seqs);
        let recorded = self.check_recorded_tolerance(layer)?;
        let blocks = if recorded { most } else { blocks(&core, layer, &self.parts) };
        let call = Call {
            layer,
            seqs: self.seqs,
            blocks,
            query,
            out,
            rule: self.rule(),
            fresh: self.progress[layer] == Progress::Appended,
            drafts: None,
        };
        self.progress[layer] = Progress::Broken;
        spill::attend(self.cache, &self.parts, &mut self.seen, &call)?;
        self.progress[layer] = Progress::Attended;
        Ok(())
    }

    /// Where they are: single tokens as a batch, whose rows are put together, and chunks by way of staging on the device. Returns `false` where there is none, single tokens are of single precision, which
    /// their batch has no room for, or the device refuses a row, so that the host is to say which: nothing is appended then.
    fn append_chunks(&mut self, layer: usize, keys: Tensor<'_>, values: Tensor<'_>) -> Result<bool, Error> {
        let Self { cache, parts, seqs, progress, .. } = self;
        let core = Arc::clone(&cache.core);
        let (s, seqs, narrow) = (&core.sizes, *seqs, |t: Tensor<'_>| t.element().bytes() == 2);
        if s.chunk_tokens == 0 || (seqs > 0 && !(narrow(keys) && narrow(values))) {
            return Ok(false);
        }
        let shape = [s.kv_heads, s.dim];
        for (argument, rows) in [("keys", keys), ("values", values)] {
            rows.tokens(argument, shape, (0, parts.iter().map(|part| part.tokens).sum()))?;
        }
        progress[layer] = Progress::Failed;
        if seqs > 0 {
            let single = || parts.iter().filter_map(|part| Some((part.first_row, part.place?)));
            let own = |at, rows: Tensor<'_>| Tensor::of(&core.inputs, at, rows.element(), seqs * s.kv_heads * s.dim);
            let [own_keys, own_values] = [own(0, keys)?, own(s.row_bytes(), values)?];
            carry::between(cache, ("keys", shape), [keys, own_keys], single())?;
            carry::between(cache, ("values", shape), [values, own_values], single())?;
            ordered::tell_pages(cache, parts.iter().filter(|part| part.place.is_some()), layer..layer + 1)?;
            core.append(layer, seqs, own_keys, own_values)?;
        }
        for part in parts.iter().filter(|part| part.place.is_none()) {
            chunk_rows::append(cache, layer, part, [keys, values])?;
        }
        core.finish()?;
        let mut words = vec![0u32; s.rows];
        core.counters.read(core.queue.stream(), 4 * s.counters.errors.start, &mut words)?;
        let refused = |part: &Part| refused::since(&words, part);
        if !parts.iter().any(refused) {
            progress[layer] = Progress::Appended;
            return Ok(true);
        }
        parts.iter().try_for_each(|part| core.forgive(part.row, part.len))?;
        Ok(false)
    }

    /// Where they are: single tokens as a batch, whose rows are put together, and chunks as there is room for them. Returns `false` where the GPU does not do, or a chunk is a draft.
    fn attend_chunks(&mut self, layer: usize, query: Tensor<'_>, out: Tensor<'_>) -> Result<bool, Error> {
        let (rule, fresh) = (self.rule(), self.progress[layer] == Progress::Appended);
        let Self { cache, parts, seqs, extended, tokens, seen, lost, .. } = self;
        let core = Arc::clone(&cache.core);
        let (s, seqs) = (&core.sizes, *seqs);
        let (heads, shape) = (s.q_heads(), [s.q_heads(), s.dim]);
        if s.chunk_tokens == 0 || (core.drafts_in(layer) && drafts::any(parts, s.drafts.tokens)) {
            return Ok(false);
        }
        self.last = None;
        self.progress[layer] = Progress::Broken;
        lost[layer].clear();
        extended[layer].clear();
        if seqs > 0 {
            let single = || parts.iter().filter_map(|part| Some((part.first_row, part.place?)));
            let own = [core.staged_queries(0, seqs, query.element())?, core.own_outputs(0, seqs, out.element())?];
            carry::between(cache, ("query", shape), [query, own[0]], single())?;
            let blocks = blocks(&core, layer, parts);
            let call = Call { layer, seqs, blocks, query: own[0], out: own[1], rule, fresh, drafts: None };
            spill::attend(cache, parts, seen, &call)?;
            carry::between(cache, ("out", shape), [own[1], out], single().map(|(row, place)| (place, row)))?;
        }
        for part in parts.iter().filter(|part| part.place.is_none()) {
            let words = extended[layer].words(*tokens * heads)?;
            if !extend::attend(cache, layer, part, Io::Device(query, out), rule, words)? {
                return Ok(false);
            }
            if let Rule::Certified(limit) = rule {
                let last = (part.first_row + part.tokens - 1, 1);
                prefill::plan_from(cache, layer, part, query.tokens("query", shape, last)?, limit)?;
                if core.kit(layer).corrects.is_some() {
                    let (mut lists, mut row) = (core::mem::take(&mut cache.carried), Vec::new());
                    let one = [1, heads, s.dim];
                    carry::fetch(cache, "out", out.tokens("out", shape, last)?, one, &mut lists, &mut row)?;
                    cache.carried = lists;
                    learn::learn(&core, layer, part, &row)?;
                }
            }
        }
        // What a plan reads of the caller's queries, too.
        core.finish()?;
        self.progress[layer] = Progress::Attended;
        Ok(true)
    }

    /// By way of the host. Outputs of single tokens are rounded by the kernel, whose certificates know of it.
    fn attend_carried(&mut self, layer: usize, query: Tensor<'_>, out: Tensor<'_>) -> Result<(), Error> {
        let g = *self.cache.geometry();
        let shape = [self.tokens, g.q_heads, g.head_dim];
        self.carried(|step, lists, [queries, rows]| {
            carry::fetch(step.cache, "query", query, shape, lists, queries)?;
            step.attend_in(layer, queries, out.element())?;
            rows.clear();
            try_resize(rows, queries.len(), f32::NAN)?;
            step.outputs(layer, rows, &mut [])?;
            carry::round(out.element(), rows, [g.q_heads, g.head_dim], &mut step.lost[layer])?;
            step.last = None;
            carry::put(step.cache, "out", out, shape, lists, rows)
        })
    }

    /// No chunk is longer than those that the GPU attends.
    pub(super) fn is_of_drafts(&self) -> bool {
        let most = self.cache.core.sizes.chunk_tokens.max(1);
        self.parts.iter().all(|part| part.tokens <= most)
    }

    /// Whether some chunk is one that calls wait for.
    pub(super) fn has_chunks(&self) -> bool {
        self.drafting.is_none() && self.seqs < self.parts.len()
    }

    /// What launches of the layers append and attend.
    pub(super) fn on_device(&self) -> impl Iterator<Item = &Part> {
        self.parts.iter().filter(|part| part.place.is_some() || self.drafting.is_some())
    }

    /// What waits for the device is not recorded.
    fn check_waits(&self, layer: usize) -> Result<(), Error> {
        if self.cache.core.queue.stream().capturing()? {
            return Err(Error::Order { layer, why: SEVERAL });
        }
        Ok(())
    }

    /// Neither is what comes from the host, by memory that other steps use again.
    pub(super) fn check_host(&self, layer: usize) -> Result<(), Error> {
        if self.cache.core.queue.stream().capturing()? {
            let why = "rows and queries of the host are not recorded: those of a recording are in device memory";
            return Err(Error::Order { layer, why });
        }
        Ok(())
    }

    /// What a recording of the step serves.
    ///
    /// # Errors
    /// Longer chunks; drafts of several lengths.
    pub(super) fn recordable(&self, layer: usize) -> Result<Shape, Error> {
        let [first, rest @ ..] = &self.parts[..] else { return Ok(Shape { seqs: 0, tokens: 1 }) };
        if self.has_chunks() || rest.iter().any(|part| part.tokens != first.tokens) {
            return Err(Error::Order { layer, why: SEVERAL });
        }
        Ok(Shape { seqs: self.parts.len(), tokens: first.tokens })
    }

    /// A step of drafts that is recorded has drafts of one length.
    fn check_recorded_drafts(&self, layer: usize) -> Result<(), Error> {
        if self.drafting.is_some() && self.cache.core.queue.stream().capturing()? {
            self.recordable(layer)?;
        }
        Ok(())
    }

    /// Whether the step is recorded.
    fn check_recorded_tolerance(&self, layer: usize) -> Result<bool, Error> {
        let recorded = self.cache.core.queue.stream().capturing()?;
        if recorded && self.limit.is_some() {
            return Err(Error::Order {
                layer,
                why: "a recording has the tolerance of its policy, and the step has another",
            });
        }
        Ok(recorded)
    }
}
