//! What is known of the outputs of a layer's chunks, until the step is over: as kernels have it, a third of what certificates of the host take, which are made where they are asked for.
use super::policy::Rule;
use super::results;
use crate::Certificate;
use certkv_core::{OutOfMemory, try_resize};
use certkv_kernel::cuda::args;

/// Of all heads of the step's tokens, `[tokens][q_heads]`; empty where there are none.
#[derive(Debug, Default)]
pub(super) struct Extended {
    /// Of drafts beside longer chunks.
    pub(super) drafts: Vec<Certificate>,
    /// Words of longer ones.
    words: Vec<u32>,
}

/// Words of heads that no kernel attended.
const NONE: u32 = u32::MAX;

impl Extended {
    pub(super) fn clear(&mut self) {
        self.drafts.clear();
        self.words.clear();
    }

    /// Room for the words of `heads` heads, of which some are written. Until then no kernel has attended them.
    pub(super) fn words(&mut self, heads: usize) -> Result<&mut [u32], OutOfMemory> {
        try_resize(&mut self.words, heads * args::Certificate::WORDS, NONE)?;
        Ok(&mut self.words)
    }

    /// Nor did one attend these.
    pub(super) fn forget(words: &mut [u32]) {
        words.fill(NONE);
    }

    /// Certificates of heads from `first` on.
    pub(super) fn judge(&self, rule: Rule, first: usize, own: &mut [Certificate]) {
        own.fill(Certificate::PREFILL);
        let drafts = self.drafts.get(first..).unwrap_or(&[]);
        own.iter_mut().zip(drafts).for_each(|(to, c)| *to = *c);
        let words = self.words.get(first * args::Certificate::WORDS..).unwrap_or(&[]);
        let known = own.iter_mut().zip(results::certificates(words)).filter(|(_, c)| c.status != NONE);
        known.for_each(|(to, c)| *to = results::of_chunk(rule, &c));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Status;

    #[test]
    fn heads_have_what_attended_them() {
        let mut of = Extended::default();
        let mut own = [Certificate::UNCERTIFIED; 2];
        of.judge(Rule::Packed, 3, &mut own);
        assert_eq!(own.map(|c| c.status), [Certificate::PREFILL.status; 2]);
        of.drafts.resize(4, Certificate::PREFILL);
        of.drafts[3].status = Status::Certified;
        let half = 0.5f32.to_bits();
        let (n, exact) = (args::Certificate::WORDS, [0, 0, half, half, 0, 0, 0, 0, 2, 0, 0, 0]);
        of.words(4).expect("memory")[2 * n..3 * n].copy_from_slice(&exact);
        of.judge(Rule::Packed, 2, &mut own);
        assert_eq!(own.map(|c| c.status), [Status::Exact, Status::Certified]);
        assert!(own[0].e_arith == 0.5);
        Extended::forget(&mut of.words(4).expect("memory")[2 * n..3 * n]);
        of.judge(Rule::Packed, 2, &mut own);
        assert_eq!(own[0].status, Certificate::PREFILL.status);
        of.clear();
        of.judge(Rule::Packed, 3, &mut own);
        assert_eq!(own.map(|c| c.status), [Certificate::PREFILL.status; 2]);
    }
}
