//! Dense attention over the originals: the baseline policy and the terminal rungs of the ladder call this one function,
//! so a fallback has the bits of the baseline.
use crate::Error;
use crate::attend::certified::{HeadCall, distances};
use crate::attend::pages::View;
use crate::work::{Exact, HeadWork};
use certkv_bound::{Rung, Status};

impl HeadCall<'_> {
    /// Recomputes every query head marked in `work.dense`. The originals of all blocks must be held. The certificate
    /// keeps the candidate's numbers and holds the dense kernel's arithmetic.
    pub(crate) fn dense(&self, rung: Rung, work: &mut HeadWork) -> Result<(), Error> {
        let dim = self.group.layout.dim;
        let view = View::exact(self.pages, self.group, self.head);
        let Exact { queries, state, split, masses } = &mut work.exact;
        queries.clear();
        let marked = (0..work.dense.len()).filter(|h| work.dense[*h]);
        for h in marked.clone() {
            queries.extend_from_slice(&self.queries[h * dim..(h + 1) * dim]);
        }
        let heads = queries.len() / dim;
        if heads == 0 {
            return Ok(());
        }
        // All marked heads share each load; a head's bits do not depend on which others are with it.
        let kernel = self.group.kernel.with_heads(heads)?;
        kernel.empty(state);
        kernel.empty(split);
        masses.reshape(heads, self.blocks + 1);
        self.one_pass(heads, queries, &view, &mut work.kernel, masses, [&mut *state, split])?;
        for (i, h) in marked.enumerate() {
            let out = &mut work.out[h * dim..(h + 1) * dim];
            state.finish(i, out)?;
            let (radius, norm) = distances(out, self.centre);
            let found = kernel.certify(masses, state, i, radius)?;
            let c = &mut work.certificates[h];
            // The logits' rounding is all that is left of the key term; it counts as arithmetic.
            (c.e_key, c.e_val, c.e_drop, c.cap) = (0.0, 0.0, 0.0, f64::INFINITY);
            c.e_arith = f64::from(found.bound);
            (c.out_norm, c.rung) = (norm, rung);
            c.status = if c.e_arith.is_finite() { Status::Exact } else { Status::Failed };
        }
        let bytes =
            (self.blocks * self.group.layout.original_side_bytes() * 2 + self.pages.tail_tokens() * dim * 4) as u64;
        work.certificates.iter_mut().for_each(|c| c.bytes.host += bytes);
        Ok(())
    }
}
