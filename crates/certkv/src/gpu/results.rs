//! Results as the host reads them: the device's certificates in the engine's words. Pure.
use super::policy::Rule;
use super::sizes::Sizes;
use super::window::blocks_seen;
use crate::{Certificate, Rung, Status};
use certkv_bound::{BytesRead, Cause};
use certkv_core::RecordLayout;
use certkv_kernel::cuda::args;
use certkv_page::Window;

/// One layer's results, copied from the device.
#[derive(Debug, Default)]
pub(super) struct Results {
    /// Per row, what was [refused](super::refused).
    pub(super) errors: Vec<u32>,
    /// Heads that were repaired: a count, then `place kv_heads + head`.
    pub(super) repaired: Vec<u32>,
    /// Heads that went to the dense rung; they were repaired before.
    pub(super) dense: Vec<u32>,
    /// `[place][query head]`, of the first launch.
    pub(super) first: Vec<args::Certificate>,
    /// The same of the last launch that computed a repaired head; others are not written.
    pub(super) second: Vec<args::Certificate>,
}

/// Certificates from their words.
pub(super) fn certificates(words: &[u32]) -> impl Iterator<Item = args::Certificate> {
    words.as_chunks().0.iter().map(args::Certificate::from_words)
}

/// Full blocks of a sequence below the first level, and bytes of a head's records of them.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Lowered {
    pub(super) blocks: usize,
    pub(super) bytes: usize,
}

/// A head's certificate.
struct Head<'a> {
    rule: Rule,
    /// Of the first launch.
    first: &'a args::Certificate,
    /// Of the last one, if the head was repaired.
    last: Option<&'a args::Certificate>,
    /// Whether that was the dense one.
    dense: bool,
}

/// The device's figures. The cap is what makes the total the device's own bound.
fn figures(c: &args::Certificate) -> Certificate {
    let (bound, e_arith) = (f64::from(c.bound), f64::from(c.e_arith));
    let cap = if bound.is_finite() { (bound - e_arith).max(0.0) } else { f64::INFINITY };
    Certificate {
        e_key: f64::from(c.e_key),
        e_val: f64::from(c.e_val),
        e_drop: 0.0,
        e_arith,
        cap,
        tol: f64::from(c.tolerance),
        out_norm: f64::from(c.norm),
        ..Certificate::UNCERTIFIED
    }
}

impl Head<'_> {
    fn certificate(&self) -> Certificate {
        let from = self.last.unwrap_or(self.first);
        let mut c = figures(from);
        let candidate = figures(self.first);
        (c.candidate_e_key, c.candidate_e_val, c.candidate_e_drop) = (candidate.e_key, candidate.e_val, 0.0);
        c.candidate_bound = candidate.bound();
        let sound = from.bound.is_finite() && c.bound().is_finite();
        c.status = match (self.rule, from.status) {
            (Rule::Packed, _) => Status::Uncertified,
            (Rule::Certified(_), 1) if sound => Status::Certified,
            (_, 2) if sound => Status::Exact,
            _ => Status::Failed,
        };
        match self.rule {
            Rule::Dense => (c.rung, c.cause) = (Rung::DenseLayer, Cause::Requested),
            Rule::Certified(_) if self.last.is_some() => {
                let keys = candidate.e_key >= candidate.e_val;
                let repaired = if keys { Rung::MoreKeys } else { Rung::ExactValues };
                c.rung = if self.dense { Rung::DenseHead } else { repaired };
                c.cause = if keys { Cause::KeyError } else { Cause::ValueError };
                c.repairs = 1;
            }
            Rule::Certified(_) | Rule::Packed => {}
        }
        c
    }
}

/// Of a query of a longer chunk, from the one pass that there is: what is not bounded, or not within tolerance under a policy that asks for it, has
/// failed.
pub(super) fn of_chunk(rule: Rule, from: &args::Certificate) -> Certificate {
    let mut c = figures(from);
    let sound = from.bound.is_finite() && c.bound().is_finite();
    c.status = match (rule, from.status) {
        (_, 2) if sound => Status::Exact,
        (Rule::Certified(_), 1) if sound => Status::Certified,
        (Rule::Packed, _) if sound => Status::Uncertified,
        _ => Status::Failed,
    };
    (c.candidate_e_key, c.candidate_e_val) = (c.e_key, c.e_val);
    c.candidate_bound = c.bound();
    c
}

/// Whether a list names the head.
fn is_listed(list: &[u32], head: usize) -> bool {
    let count = list.first().map_or(0, |n| *n as usize);
    list.iter().skip(1).take(count).any(|x| *x as usize == head)
}

impl Results {
    /// Of no batch.
    pub(super) fn clear(&mut self) {
        let Self { errors, repaired, dense, first, second } = self;
        [errors, repaired, dense].into_iter().for_each(Vec::clear);
        [first, second].into_iter().for_each(Vec::clear);
    }

    /// Certificates of token `token` of `of` tokens that the group of the sequence at `place` of the batch has, which sees `tokens` tokens but for what a
    /// `window` hides: a step of one token each has one.
    pub(super) fn of(
        &self,
        rule: Rule,
        (place, token, of): (usize, usize, usize),
        (tokens, window): (usize, Option<Window>),
        (sizes, layout, lowered): (&Sizes, &RecordLayout, Lowered),
        exact_format: bool,
        out: &mut [Certificate],
    ) {
        // Full ones that were read.
        let blocks = blocks_seen(window, sizes.block, tokens) - usize::from(!tokens.is_multiple_of(sizes.block));
        let residuals = layout.key_residuals.len() + layout.value_residuals.len();
        let records = (blocks - lowered.blocks) * (layout.net_bytes() - residuals) + lowered.bytes;
        let open = ((tokens % sizes.block) * sizes.dim * 4) as u64;
        for (h, c) in out.iter_mut().enumerate() {
            let head = place * sizes.kv_heads + h / sizes.group;
            let at = (head * of + token) * sizes.group + h % sizes.group;
            // Of exact records nothing is repaired.
            let certified = matches!(rule, Rule::Certified(_)) && !exact_format;
            let repaired = certified && is_listed(&self.repaired, head);
            let dense = repaired && is_listed(&self.dense, head);
            let Some(first) = self.first.get(at) else { continue };
            let last = self.second.get(at).filter(|_| repaired);
            *c = Head { rule, first, last, dense }.certificate();
            let dense_pass = dense || (rule == Rule::Dense && !exact_format);
            let passes = 1 + u64::from(repaired) + u64::from(dense);
            c.bytes = BytesRead {
                // Of a correction the residual planes, not the records that it read again; what the pass read of planes is counted by layer
                // (`GpuCache::selection`).
                packed: passes * records as u64
                    + u64::from(first.refined_keys) * layout.key_residuals.len() as u64
                    + u64::from(first.refined_values) * layout.value_residuals.len() as u64,
                scratch: passes * open,
                host: if dense_pass { (blocks * 2 * sizes.side_bytes) as u64 } else { 0 },
            };
            if dense_pass {
                (c.promoted_keys, c.promoted_values) = (blocks as u32, blocks as u32);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::policy::Limit;
    use super::*;

    fn device(status: u32, e_key: f32, e_val: f32, bound: f32) -> args::Certificate {
        args::Certificate {
            e_key,
            e_val,
            e_arith: 0.01,
            bound,
            tolerance: 0.5,
            norm: 10.0,
            status,
            ..Default::default()
        }
    }

    fn head(rule: Rule, first: &args::Certificate, dense: Option<&args::Certificate>) -> Certificate {
        Head { rule, first, last: dense, dense: true }.certificate()
    }

    const CERTIFIED: Rule = Rule::Certified(Limit { relative: 0.05, absolute: 0.0, each: false });

    #[test]
    fn the_bound_is_the_devices_own() {
        for (c, bound) in [(device(1, 0.2, 0.1, 0.31001), 0.31), (device(1, 2.0, 3.0, 0.4), 0.4)] {
            let got = head(CERTIFIED, &c, None);
            assert!((got.bound() - bound).abs() < 1e-6, "{got:?}");
            assert!(got.bound() <= f64::from(c.bound) * (1.0 + 1e-12));
            assert_eq!((got.status, got.rung), (Status::Certified, Rung::Packed));
        }
    }

    #[test]
    fn nothing_is_claimed_that_the_device_did_not_claim() {
        let good = device(1, 0.1, 0.1, 0.21);
        assert_eq!(head(Rule::Packed, &good, None).status, Status::Uncertified);
        assert_eq!(head(CERTIFIED, &device(0, 0.1, 0.1, 0.21), None).status, Status::Failed);
        assert_eq!(head(CERTIFIED, &device(1, 0.1, 0.1, f32::INFINITY), None).status, Status::Failed);
        assert_eq!(head(CERTIFIED, &device(1, f32::NAN, 0.1, f32::NAN), None).status, Status::Failed);
        assert_eq!(head(CERTIFIED, &device(7, 0.1, 0.1, 0.21), None).status, Status::Failed);
        assert_eq!(head(Rule::Dense, &good, None).status, Status::Failed, "dense is exact or nothing");
        assert_eq!(head(Rule::Dense, &device(2, 0.0, 0.0, 0.01), None).rung, Rung::DenseLayer);
    }

    #[test]
    fn a_chunk_is_exact_certified_or_not_kept() {
        let good = device(1, 0.1, 0.1, 0.21);
        assert_eq!(of_chunk(CERTIFIED, &good).status, Status::Certified);
        assert_eq!(of_chunk(Rule::Packed, &good).status, Status::Uncertified);
        assert_eq!(of_chunk(Rule::Dense, &good).status, Status::Failed);
        assert_eq!(of_chunk(CERTIFIED, &device(0, 0.4, 0.3, 0.71)).status, Status::Failed);
        for rule in [CERTIFIED, Rule::Packed, Rule::Dense] {
            assert_eq!(of_chunk(rule, &device(2, 0.0, 0.0, 0.01)).status, Status::Exact);
            assert_eq!(of_chunk(rule, &device(1, 0.1, 0.1, f32::INFINITY)).status, Status::Failed);
        }
    }

    #[test]
    fn a_head_that_went_dense_keeps_its_candidate() {
        let (first, dense) = (device(0, 0.7, 0.9, 1.62), device(2, 0.0, 0.0, 0.01));
        let got = head(CERTIFIED, &first, Some(&dense));
        assert_eq!((got.status, got.rung, got.cause), (Status::Exact, Rung::DenseHead, Cause::ValueError));
        assert!((got.candidate_bound - 1.61).abs() < 1e-6 && got.bound() <= 0.0100001, "{got:?}");
        assert_eq!(head(CERTIFIED, &first, Some(&first)).status, Status::Failed);
    }

    #[test]
    fn a_repaired_head_is_certified_on_its_rung() {
        let (first, last) = (device(0, 0.7, 0.9, 1.62), device(1, 0.1, 0.2, 0.32));
        let got = Head { rule: CERTIFIED, first: &first, last: Some(&last), dense: false }.certificate();
        assert_eq!((got.status, got.rung, got.repairs), (Status::Certified, Rung::ExactValues, 1));
    }

    #[test]
    fn lists_are_read_up_to_their_count() {
        let list = [2, 5, 0, 3];
        assert!(is_listed(&list, 5) && is_listed(&list, 0) && !is_listed(&list, 3) && !is_listed(&list, 1));
        assert!(!is_listed(&[], 0));
    }
}
