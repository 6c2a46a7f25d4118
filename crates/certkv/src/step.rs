//! One step: a ragged batch of new tokens, layer by layer, committed as a whole.
use crate::append::{Rows, append};
use crate::attend::attend;
use crate::cache::Chunk;
use crate::counters::Kind;
use crate::sequence::SequenceState;
use crate::spill::Turn;
use crate::work::Workspace;
use crate::{Cache, Error, Policy, Tolerance};
use certkv_bound::{Certificate, Status};
use certkv_core::{Geometry, SequenceId, nonfinite_at, span, try_resize};
use certkv_page::{PageError, Reservation, TableError};

/// One sequence of a step.
#[derive(Debug)]
pub(crate) struct Part {
    pub(crate) id: SequenceId,
    /// New tokens.
    pub(crate) tokens: usize,
    /// First new token's row in the step's inputs.
    pub(crate) first_row: usize,
    /// Tokens before the step.
    pub(crate) len: usize,
    pub(crate) state: Box<SequenceState>,
    /// One per KV group.
    pub(crate) reservations: Vec<Reservation>,
    /// Each token is a decode step; else the chunk is a prompt's.
    pub(crate) decodes: bool,
}

/// How far a layer has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Progress {
    Waiting,
    Appended,
    /// A failed append may have written rows past the committed length; appending again overwrites them.
    Failed,
}

/// Lists of a step, empty, kept with their memory for the next one.
#[derive(Debug, Default)]
pub(crate) struct Lists {
    parts: Vec<Part>,
    progress: Vec<Progress>,
    tolerances: Vec<Tolerance>,
    /// One for each sequence.
    reservations: Vec<Vec<Reservation>>,
}

/// A step in progress. Dropping it without [`Step::finish`] gives back what it reserved: the sequences are as before.
///
/// Order: [`Step::append`] once per layer, [`Step::attend`] on a layer any time after its append, [`Step::finish`] after
/// every layer was appended.
#[derive(Debug)]
#[must_use = "a step that is not finished is rolled back"]
pub struct Step<'c> {
    cache: &'c Cache,
    policy: Policy,
    /// In place of the policy's: none, one for all query heads, or one each.
    tolerances: Vec<Tolerance>,
    parts: Vec<Part>,
    progress: Vec<Progress>,
    tokens: usize,
    /// Empty, for parts.
    reservations: Vec<Vec<Reservation>>,
    work: Option<Box<Workspace>>,
}

impl<'c> Step<'c> {
    pub(crate) fn begin(
        cache: &'c Cache,
        turn: &mut Turn<'_>,
        chunks: &[Chunk],
        policy: Policy,
    ) -> Result<Self, Error> {
        if chunks.is_empty() {
            return Err(Error::Shape { argument: "chunks", expected: 1, given: 0 });
        }
        let layers = cache.geometry().layers;
        let mut work = cache.workspace()?;
        let Lists { parts, mut progress, tolerances, mut reservations } = core::mem::take(&mut work.lists);
        progress.resize(layers, Progress::Waiting);
        reservations.resize_with(chunks.len().max(reservations.len()), Vec::new);
        let mut step = Self { cache, policy, tolerances, parts, progress, tokens: 0, reservations, work: Some(work) };
        for chunk in chunks {
            if chunk.tokens == 0 {
                return Err(Error::Shape { argument: "chunk.tokens", expected: 1, given: 0 });
            }
            let state = cache.take(chunk.sequence)?;
            // From here on the drop of the step puts the state back.
            step.parts.push(Part {
                id: chunk.sequence,
                tokens: chunk.tokens,
                first_row: step.tokens,
                len: state.len(),
                state,
                reservations: step.reservations.pop().unwrap_or_default(),
                decodes: chunk.tokens <= cache.config.chunk_tokens.max(1),
            });
            if let Some(part) = step.parts.last_mut() {
                for table in &mut part.state.tables {
                    part.reservations.push(table.reserve(chunk.tokens).map_err(Error::from_table)?);
                }
            }
            // Reserved, hence no more than the cache holds: the sum cannot overflow.
            step.tokens += chunk.tokens;
        }
        step.house(turn)?;
        // New rows go to pages of open blocks, which the computing stream may have read: prefill, inspection.
        cache.join_main()?;
        Ok(step)
    }

    /// Frames for the originals of new blocks.
    fn house(&self, turn: &mut Turn<'_>) -> Result<(), Error> {
        if self.cache.spill.is_none() {
            return Ok(());
        }
        for index in 0..self.cache.groups.len() {
            let spans = self.parts.iter().filter_map(|part| part.reservations.get(index)).flat_map(|r| r.rows());
            let pages = spans.filter(|span| span.first_row == 0).map(|span| span.host);
            self.cache.house(turn, index, pages)?;
        }
        Ok(())
    }

    pub(crate) fn geometry(&self) -> &Geometry {
        self.cache.geometry()
    }

    pub(crate) fn policy(&self) -> Policy {
        self.policy
    }

    pub(crate) fn keep_tolerances(&mut self, tolerances: &[Tolerance]) {
        self.tolerances.clear();
        self.tolerances.extend_from_slice(tolerances);
    }

    /// New tokens of all chunks: the rows that `append` and `attend` expect, in the order of the chunks.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// Writes the new tokens' keys (after RoPE) and values of one layer, `[tokens][kv_heads * head_dim]` each. They are
    /// rounded to the cache's 16-bit type; what is certified is attention over the rounded originals. Blocks that become
    /// full are coded.
    ///
    /// # Errors
    /// A bad layer, shape, order, or a value that is not finite or too large: nothing was written. A device error: the
    /// layer counts as not appended and may be appended again.
    pub fn append(&mut self, layer: usize, keys: &[f32], values: &[f32]) -> Result<(), Error> {
        let expected = self.tokens * self.cache.geometry().kv_width();
        for (argument, given) in [("keys", keys.len()), ("values", values.len())] {
            if given != expected {
                return Err(Error::Shape { argument, expected, given });
            }
        }
        self.append_rows(layer, Rows::F32 { keys, values })
    }

    /// As [`Step::append`] for rows that already are 16-bit patterns of the cache's type.
    ///
    /// # Errors
    /// As [`Step::append`].
    pub fn append_bits(&mut self, layer: usize, keys: &[u16], values: &[u16]) -> Result<(), Error> {
        let expected = self.tokens * self.cache.geometry().kv_width();
        for (argument, given) in [("keys", keys.len()), ("values", values.len())] {
            if given != expected {
                return Err(Error::Shape { argument, expected, given });
            }
        }
        self.append_rows(layer, Rows::Bits { keys, values })
    }

    fn append_rows(&mut self, layer: usize, rows: Rows<'_>) -> Result<(), Error> {
        self.cache.group_of(layer, 0)?;
        if self.progress[layer] == Progress::Appended {
            return Err(Error::Order { layer, why: "appended twice in one step" });
        }
        let work = self.work.as_mut().ok_or(Error::Order { layer, why: "the step is over" })?;
        work.rows.load(rows, self.cache.geometry())?;
        let _turn = self.cache.turn.lock();
        self.progress[layer] = Progress::Failed;
        for part in &mut self.parts {
            let bytes = (part.tokens * 4 * self.cache.geometry().kv_width()) as u64;
            let _span = span!("store", layer = layer, tokens = (part.tokens), bytes = bytes);
            let mut groups = self.cache.groups_of(layer);
            let stored = groups.try_for_each(|(index, group)| append(self.cache, group, index, layer, part, work));
            self.cache.counters.moved(Kind::Store, stored.map(|()| bytes))?;
        }
        // The computing stream waits for the lane before it reads the host.
        self.cache.join_lane()?;
        self.progress[layer] = Progress::Appended;
        Ok(())
    }

    /// Attention of the new tokens' queries (after RoPE) over everything up to and including themselves, for one layer.
    /// `queries` and `out` are `[tokens][q_heads * head_dim]`, `certificates` is `[tokens][q_heads]` and may be empty.
    ///
    /// A chunk of one token is a decode step under the step's policy, and so is every token of a chunk of up to
    /// [`crate::Config::chunk_tokens`]. A longer chunk is causal attention over the originals, which is exact up to the kernel's
    /// arithmetic. `out` is written only if the call succeeds.
    ///
    /// # Errors
    /// A bad layer, shape or order, a query that is not finite, or a device error; [`Error::Uncertifiable`] if an output
    /// that should be bounded or exact is neither; [`Error::OutOfMemory`]. `certificates` then hold UNCERTIFIED.
    pub fn attend(
        &mut self,
        layer: usize,
        queries: &[f32],
        out: &mut [f32],
        certificates: &mut [Certificate],
    ) -> Result<(), Error> {
        certificates.fill(Certificate::UNCERTIFIED);
        let geometry = *self.cache.geometry();
        self.cache.group_of(layer, 0)?;
        if self.progress[layer] != Progress::Appended {
            return Err(Error::Order { layer, why: "attended before it was appended" });
        }
        let expected = self.tokens * geometry.q_width();
        for (argument, given) in [("queries", queries.len()), ("out", out.len())] {
            if given != expected {
                return Err(Error::Shape { argument, expected, given });
            }
        }
        let heads = self.tokens * geometry.q_heads;
        if !certificates.is_empty() && certificates.len() != heads {
            return Err(Error::Shape { argument: "certificates", expected: heads, given: certificates.len() });
        }
        if let Some(at) = nonfinite_at(queries) {
            let (token, element) = (at / geometry.q_width(), at % geometry.q_width());
            return Err(Error::NonFinite { argument: "queries", token, element });
        }
        let work = self.work.as_mut().ok_or(Error::Order { layer, why: "the step is over" })?;
        let mut turn = self.cache.turn.lock();
        work.out.clear();
        try_resize(&mut work.out, expected, f32::NAN)?;
        work.wanted.parts = self.parts.len();
        work.tolerances.clear();
        work.tolerances.extend_from_slice(&self.tolerances);
        let of_all = match (self.policy, &self.tolerances[..]) {
            (Policy::Certified(_), [one]) => *one,
            (Policy::Certified(policy), _) => Tolerance::relative(policy.tol_rel),
            _ => Tolerance::NONE,
        };
        work.tolerances.resize(geometry.q_heads, of_all);
        work.certificates.clear();
        try_resize(&mut work.certificates, heads, Certificate::UNCERTIFIED)?;
        for part in &mut self.parts {
            let done = attend(self.cache, &mut turn, layer, part, self.policy, queries, work);
            self.cache.counters.withheld(done, heads)?;
        }
        // Under every policy: what may not be used is not returned. A chunk's rows have no bound that would tell.
        let rows = work.certificates.iter().zip(work.out.chunks_exact(geometry.head_dim));
        let unusable = |(c, row): (&Certificate, &[f32])| match c.status {
            Status::Uncertified => false,
            Status::Failed => true,
            Status::Certified | Status::Exact => !row.iter().all(|x| x.is_finite()),
        };
        if rows.into_iter().any(unusable) {
            return self.cache.counters.withheld(Err(Error::Uncertifiable { layer }), heads);
        }
        for part in &self.parts {
            let outputs = part.tokens * geometry.q_heads;
            if part.decodes {
                let first = part.first_row * geometry.q_heads;
                self.cache.counters.decoded(&work.certificates[first..first + outputs], geometry.group());
            } else {
                self.cache.counters.prompted(outputs);
            }
        }
        out.copy_from_slice(&work.out);
        if !certificates.is_empty() {
            certificates.copy_from_slice(&work.certificates);
        }
        Ok(())
    }

    /// Nothing: on the CPU attention itself chooses what it reads exactly, from the masses that it has just measured. It is here for callers that run on both
    /// (`GpuStep::plan`).
    ///
    /// # Errors
    /// A bad layer, or one that was not appended.
    pub fn plan(&mut self, layer: usize) -> Result<(), Error> {
        self.cache.group_of(layer, 0)?;
        if self.progress[layer] != Progress::Appended {
            return Err(Error::Order { layer, why: "planned before it was appended" });
        }
        Ok(())
    }

    /// Makes the new tokens part of their sequences.
    ///
    /// # Errors
    /// A layer that was not appended. The step is rolled back then.
    pub fn finish(mut self) -> Result<(), Error> {
        if let Some(layer) = self.progress.iter().position(|p| *p != Progress::Appended) {
            return Err(Error::Order { layer, why: "the step was finished before the layer was appended" });
        }
        let _turn = self.cache.turn.lock();
        for part in &mut self.parts {
            let tables = part.state.tables.iter_mut().zip(&self.cache.groups);
            for ((table, group), reservation) in tables.zip(part.reservations.drain(..)) {
                let committed = table.commit(reservation).map_err(|e| Error::from_table(e.error))?;
                self.cache.forget_promoted(group, &committed.dropped);
                for entry in committed.filled.clone().filter_map(|block| table.get(block)) {
                    self.cache.close_originals(group, entry.host);
                }
                committed.dropped.retire(|| self.cache.stamp())?;
            }
        }
        self.cache.keep_room();
        self.cache.tend();
        Ok(())
    }
}

impl Drop for Step<'_> {
    fn drop(&mut self) {
        let Self { cache, tolerances, parts, progress, reservations, work, .. } = self;
        let _turn = cache.turn.lock();
        for mut part in parts.drain(..) {
            for reservation in part.reservations.drain(..) {
                reservation.abort(|| cache.stamp());
            }
            reservations.push(part.reservations);
            // Blocks that were coded in this step are gone; what was remembered of them goes too.
            let len = part.state.len();
            for group in &cache.groups {
                part.state.forget_from(group, len / group.layout.tokens());
            }
            cache.put_back(part.id, part.state);
        }
        if let Some(mut work) = work.take() {
            progress.clear();
            tolerances.clear();
            let (parts, progress, tolerances) =
                (core::mem::take(parts), core::mem::take(progress), core::mem::take(tolerances));
            work.lists = Lists { parts, progress, tolerances, reservations: core::mem::take(reservations) };
            cache.return_workspace(work);
        }
    }
}

impl Error {
    /// The engine's word for what a block table refused.
    pub(crate) fn from_table(error: TableError) -> Self {
        match error {
            TableError::Page { class, error: cause @ PageError::Exhausted { .. } } => {
                Self::CapacityExhausted { class: class.name(), cause }
            }
            TableError::Page { error, .. } => Self::Page(error),
            TableError::TooLong { len, tokens, limit } => Self::TooLong { tokens, len, limit },
            TableError::WindowPassed { asked, least, within } => Self::WindowPassed { asked, least, within },
            TableError::LongChunk { tokens, chunk } => Self::LongChunk { tokens, chunk },
            TableError::BeyondEnd { asked, len } => Self::Length { asked, len },
            TableError::SwappedOut => Self::SwappedOut,
            TableError::NotOut => Self::NotSwappedOut,
            other => Self::Table(other),
        }
    }
}
