//! What a step brings back to the host: the calls that wait for the device.
use super::carry::narrow;
use super::drafts::{self, Drafted};
use super::refused::refusal;
use super::results::{self, Results};
use super::sizes::Sizes;
use super::step::{GpuStep, Progress};
use crate::{Certificate, Error, Status};
use certkv_core::{nonfinite_at, try_resize};
use certkv_kernel::cuda::args;
use core::ops::Range;

/// What results are read into, kept from call to call.
#[derive(Debug, Default)]
pub(super) struct Back {
    /// Words and halves on their way.
    words: Vec<u32>,
    bits: Vec<u16>,
    found: Results,
    /// Of the batch, `[seqs][q_heads * head_dim]`.
    outputs: Vec<f32>,
    /// Of all tokens, `[tokens][q_heads]`.
    judged: Vec<Certificate>,
    /// Of a step of drafts.
    drafted: Drafted,
}

impl GpuStep<'_> {
    fn sizes(&self) -> &Sizes {
        &self.cache.core.sizes
    }

    /// Outputs and certificates of the layer attended last, `[tokens][q_heads * head_dim]` and `[tokens][q_heads]` (or none).
    /// Waits for the device.
    ///
    /// # Errors
    /// Another layer than the last one, a bad shape, a device error; [`Error::Uncertifiable`] if an output that should be
    /// bounded or exact is neither: `out` was not written then, and `certificates` hold UNCERTIFIED.
    pub fn outputs(&mut self, layer: usize, out: &mut [f32], certificates: &mut [Certificate]) -> Result<(), Error> {
        certificates.fill(Certificate::UNCERTIFIED);
        self.check_layer(layer)?;
        if self.last != Some(layer) {
            return Err(Error::Order { layer, why: "outputs are those of the layer attended last, from host queries" });
        }
        let geometry = *self.cache.geometry();
        let expected = self.tokens * geometry.q_width();
        if out.len() != expected {
            return Err(Error::Shape { argument: "out", expected, given: out.len() });
        }
        let heads = self.tokens * geometry.q_heads;
        if !certificates.is_empty() && certificates.len() != heads {
            return Err(Error::Shape { argument: "certificates", expected: heads, given: certificates.len() });
        }
        self.back(|step, back| {
            step.read(layer, true, back)?;
            step.judge(layer, back)?;
            step.gather(layer, back, (out, certificates))
        })
    }

    /// Lends what results are read into. What chunks longer than drafts had is a prompt's, and goes.
    fn back<T>(&mut self, call: impl FnOnce(&Self, &mut Back) -> Result<T, Error>) -> Result<T, Error> {
        let mut back = core::mem::take(&mut self.cache.back);
        let done = call(self, &mut back);
        if self.is_of_drafts() {
            self.cache.back = back;
        }
        done
    }

    /// Puts outputs of the batch among those of longer chunks, and gives them out if all of them may be used.
    fn gather(
        &self,
        layer: usize,
        back: &mut Back,
        (out, certificates): (&mut [f32], &mut [Certificate]),
    ) -> Result<(), Error> {
        let (g, Back { outputs, judged, drafted, .. }) = (self.cache.geometry(), back);
        let (all, batch) = match self.drafting {
            Some(_) => (&drafted.outputs[..], &[][..]),
            None => (&self.chunks[..], &outputs[..]),
        };
        let usable = self.rows_of(all, batch).all(|(tokens, rows)| {
            let judged = &judged[tokens.start * g.q_heads..tokens.end * g.q_heads];
            let mut heads = judged.iter().zip(rows.chunks_exact(g.head_dim));
            rows.len() == tokens.len() * g.q_width()
                && heads.all(|(c, row)| match c.status {
                    Status::Uncertified => true,
                    Status::Failed => false,
                    Status::Certified | Status::Exact => nonfinite_at(row).is_none(),
                })
        });
        if !usable {
            return Err(Error::Uncertifiable { layer });
        }
        for (tokens, rows) in self.rows_of(all, batch) {
            out[tokens.start * g.q_width()..][..rows.len()].copy_from_slice(rows);
        }
        if !certificates.is_empty() {
            certificates.copy_from_slice(judged);
        }
        Ok(())
    }

    /// Tokens of each sequence, and where their outputs are: among those of `all` tokens, or of the batch.
    fn rows_of<'r>(
        &'r self,
        all: &'r [f32],
        batch: &'r [f32],
    ) -> impl Iterator<Item = (Range<usize>, &'r [f32])> + use<'r> {
        let width = self.cache.geometry().q_width();
        let mut batch = batch.chunks_exact(width);
        self.parts.iter().map(move |part| {
            let own = part.first_row..part.first_row + part.tokens;
            let of_batch = part.place.and_then(|_| batch.next());
            let rows = of_batch.or_else(|| all.get(own.start * width..own.end * width));
            (own, rows.unwrap_or(&[]))
        })
    }

    /// Certificates of a layer, `[tokens][q_heads]`. Waits for the device.
    ///
    /// # Errors
    /// A layer that was not attended, a bad shape, rows that the device refused, a device error.
    pub fn certificates(&mut self, layer: usize, certificates: &mut [Certificate]) -> Result<(), Error> {
        certificates.fill(Certificate::UNCERTIFIED);
        if self.check_layer(layer)? != Progress::Attended {
            return Err(Error::Order { layer, why: "the layer was not attended" });
        }
        let heads = self.tokens * self.cache.geometry().q_heads;
        if certificates.len() != heads {
            return Err(Error::Shape { argument: "certificates", expected: heads, given: certificates.len() });
        }
        self.back(|step, back| {
            step.read(layer, false, back)?;
            step.judge(layer, back)?;
            certificates.copy_from_slice(&back.judged);
            Ok(())
        })
    }

    /// Copies a layer's results from the device and waits for them.
    fn read(&self, layer: usize, outputs: bool, back: &mut Back) -> Result<(), Error> {
        let core = &self.cache.core;
        let (s, r, seqs) = (self.sizes(), self.sizes().result_sections(), self.seqs);
        if self.drafting.is_some() {
            return drafts::read(self.cache, layer, &self.parts, self.rule, outputs, &mut back.drafted);
        }
        let Back { words, bits, found, outputs: out, .. } = back;
        out.clear();
        let (heads, width) = (seqs * s.q_heads(), s.q_heads() * s.dim);
        let bytes = size_of::<args::Certificate>() * heads;
        let from_results = |from, offset, to: &core::ops::Range<usize>, bytes| {
            core.queue.download(from, offset, &core.results, to.start, bytes)
        };
        from_results(&core.counters, 4 * s.counters.errors.start, &r.errors, 4 * s.rows)?;
        if seqs == 0 {
            found.clear();
            core.finish()?;
            found.errors.resize(s.rows, 0);
            return Ok(core.results.read(r.errors.start, &mut found.errors)?);
        }
        let list_bytes = 4 * (1 + seqs * s.kv_heads);
        from_results(&core.failures, core.list_at(layer, 0), &r.repaired, list_bytes)?;
        from_results(&core.failures, core.list_at(layer, 1), &r.dense, list_bytes)?;
        from_results(&core.certificates, 2 * layer * s.certificate_bytes(), &r.first, bytes)?;
        from_results(&core.certificates, (2 * layer + 1) * s.certificate_bytes(), &r.second, bytes)?;
        if outputs {
            from_results(&core.outputs, 0, &r.outputs, 4 * seqs * width)?;
        }
        core.finish()?;
        out.resize(if outputs { seqs * width } else { 0 }, 0.0);
        match narrow(self.answers) {
            None => core.results.read(r.outputs.start, out)?,
            Some(dtype) => {
                bits.resize(out.len(), 0);
                core.results.read(r.outputs.start, bits)?;
                out.iter_mut().zip(bits).for_each(|(x, bits)| *x = dtype.decode16(*bits));
            }
        }
        for (section, list, n) in [
            (&r.errors, &mut found.errors, s.rows),
            (&r.repaired, &mut found.repaired, list_bytes / 4),
            (&r.dense, &mut found.dense, list_bytes / 4),
        ] {
            list.resize(n, 0);
            core.results.read(section.start, list)?;
        }
        for (section, certificates) in [(&r.first, &mut found.first), (&r.second, &mut found.second)] {
            words.resize(bytes / 4, 0);
            core.results.read(section.start, words)?;
            certificates.clear();
            certificates.extend(results::certificates(words));
        }
        Ok(())
    }

    /// Certificates of all tokens.
    fn judge(&self, layer: usize, back: &mut Back) -> Result<(), Error> {
        let (s, core) = (self.sizes(), &self.cache.core);
        let heads = s.q_heads();
        let Back { found, judged: all, drafted, .. } = back;
        all.clear();
        try_resize(all, self.tokens * heads, Certificate::UNCERTIFIED)?;
        for part in &self.parts {
            let own = &mut all[part.first_row * heads..(part.first_row + part.tokens) * heads];
            let refused = if self.drafting.is_some() { drafted.refused() } else { &found.errors };
            if let Some(error) = refusal(refused, part) {
                return Err(error);
            }
            if self.drafting.is_some() {
                own.copy_from_slice(&drafted.certificates[part.draft * heads..][..own.len()]);
            } else if let Some(place) = part.place {
                let lowered = self.cache.mirror.lowered_in(s, layer, part.row);
                let (shape, window) = ((s, &self.cache.layouts[layer], lowered), s.window(layer));
                found.of(self.rule, (place, 0, 1), (part.len + 1, window), shape, core.kit(layer).exact, own);
            } else {
                self.extended[layer].judge(self.rule, part.first_row * heads, own);
            }
        }
        if all.iter().any(|c| c.status == Status::Failed) {
            return Err(Error::Uncertifiable { layer });
        }
        all.iter_mut().zip(&self.lost[layer]).for_each(|(c, lost)| c.e_arith += lost);
        Ok(())
    }
}
