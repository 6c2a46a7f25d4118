//! Attention of drafts: chunks of a few tokens, all of a step's at once, as a step of single tokens is attended (`kernels/attend/draft.cuh`).
//!
//! Every token is under the policy, with its rungs and a certificate of its own; a block is read once for as many tokens as a launch takes. *Cost:* the
//! launches of a step, of which the first reads the records, once for every so many tokens of the longest draft; queries and outputs over the host's
//! link; one wait a layer. What is written of a draft when it is appended, [`prefill`](super::prefill) says.
use super::cache::GpuCache;
use super::carry::narrow;
use super::core::Drafts;
use super::ladder::{self, Call};
use super::policy::Rule;
use super::results::{self, Results};
use super::sizes::Sizes;
use super::step::Part;
use crate::{Certificate, Error};
use certkv_kernel::cuda::args::{self, Element};
use certkv_kernel::cuda::tensor::Tensor;
use std::sync::Arc;

/// What travels, kept from layer to layer.
#[derive(Debug, Default)]
pub(super) struct Drafted {
    told: Vec<u32>,
    queries: Vec<f32>,
    bits: Vec<u16>,
    words: Vec<u32>,
    outputs: Vec<f32>,
    found: Results,
}

/// Whether a part is a draft where those have up to `most` tokens.
fn is_draft(part: &Part, most: usize) -> bool {
    part.place.is_none() && part.tokens <= most
}

/// Places drafts of up to `most` tokens from `place` on, the longest first: those that a launch over their later tokens is for come first. Returns the
/// place behind them.
pub(super) fn place(parts: &mut [Part], mut place: usize, most: usize) -> usize {
    for tokens in (2..=most).rev() {
        for part in parts.iter_mut().filter(|part| part.place.is_none() && part.tokens == tokens) {
            part.guest = place;
            place += 1;
        }
    }
    place
}

/// Launches of so many tokens each that the longest draft takes.
fn launches(parts: &[Part], most: usize, each: usize) -> core::ops::Range<usize> {
    let longest = parts.iter().filter(|part| is_draft(part, most)).map(|part| part.tokens).max();
    0..longest.unwrap_or(0).div_ceil(each)
}

/// Drafts of more than `done` tokens in the order of their places.
fn in_order(parts: &[Part], most: usize, done: usize) -> impl Iterator<Item = &Part> {
    (done.max(1) + 1..=most)
        .rev()
        .flat_map(move |tokens| parts.iter().filter(move |part| part.place.is_none() && part.tokens == tokens))
}

/// Attention of the step's drafts in a layer: outputs are written to `out`, certificates to those of all the step's `tokens`; `queries` and `out` are the
/// step's, `[token][q_heads dim]`. Returns of how many tokens the chunks are that were attended: 0 where the layer attends chunks otherwise, or queries do
/// not fit the kernels' type.
///
/// # Errors
/// The driver's: the layer is to be attended again.
pub(super) fn attend(
    cache: &mut GpuCache,
    layer: usize,
    parts: &[Part],
    (queries, out): (&[f32], &mut [f32]),
    rule: Rule,
    (certificates, tokens): (&mut Vec<Certificate>, usize),
) -> Result<usize, Error> {
    let core = Arc::clone(&cache.core);
    let most = core.sizes.drafts.tokens;
    let Some(each) = core.drafts_in(layer) else { return Ok(0) };
    let Some(first) = parts.iter().filter(|part| is_draft(part, most)).map(|part| part.guest).min() else {
        return Ok(0);
    };
    cache.ready(layer)?;
    let mut drafted = core::mem::take(&mut cache.drafted);
    let done = cache.run_drafts((layer, first, each), parts, queries, rule, &mut drafted).and_then(|ran| {
        if !ran {
            return Ok(0);
        }
        certificates.resize(tokens * core.sizes.q_heads(), Certificate::PREFILL);
        cache.read_drafts((layer, each), parts, out, rule, certificates, &mut drafted)?;
        Ok(most)
    });
    cache.drafted = drafted;
    done
}

impl GpuCache {
    /// Enqueues all launches of a layer. `false`: a query does not fit, and nothing was enqueued.
    fn run_drafts(
        &mut self,
        (layer, first, each): (usize, usize, usize),
        parts: &[Part],
        queries: &[f32],
        rule: Rule,
        drafted: &mut Drafted,
    ) -> Result<bool, Error> {
        let core = Arc::clone(&self.core);
        let (s, of, buffer) = (&core.sizes, &core.sizes.drafts, core.draft_buffer()?);
        let element = self.config.queries;
        let narrow = narrow(element);
        if let Some(dtype) = narrow {
            let fits = |x: &f32| !dtype.is_nonfinite16(dtype.encode16(*x));
            let own = |part: &&Part| is_draft(part, of.tokens);
            let width = s.q_heads() * s.dim;
            let rows = |part: &Part| part.first_row * width..(part.first_row + part.tokens) * width;
            if !parts.iter().filter(own).all(|part| queries[rows(part)].iter().all(fits)) {
                return Ok(false);
            }
        }
        for launch in launches(parts, of.tokens, each) {
            let seqs = gather_queries(s, (launch, each), parts, queries, drafted);
            self.ring.send(&core.queue, buffer, of.at(launch, &of.told), &drafted.told)?;
            let at = of.at(launch, &of.queries);
            match narrow {
                Some(dtype) => {
                    drafted.bits.clear();
                    drafted.bits.extend(drafted.queries.iter().map(|x| dtype.encode16(*x)));
                    self.ring.send(&core.queue, buffer, at, &drafted.bits)?;
                }
                None => self.ring.send(&core.queue, buffer, at, &drafted.queries)?,
            }
            let query = Tensor::of(buffer, at, element, drafted.queries.len())?;
            let out = Tensor::of(buffer, of.at(launch, &of.outputs), Element::F32, drafted.queries.len())?;
            let drafts = Some(Drafts { launch, place: first });
            ladder::attend(&core, &Call { layer, seqs, blocks: 0, query, out, rule, fresh: false, drafts })?;
        }
        Ok(true)
    }

    /// Waits for them, and puts their outputs and certificates where the step has them.
    fn read_drafts(
        &self,
        (layer, each): (usize, usize),
        parts: &[Part],
        out: &mut [f32],
        rule: Rule,
        certificates: &mut [Certificate],
        drafted: &mut Drafted,
    ) -> Result<(), Error> {
        let core = &self.core;
        let (s, of, buffer) = (&core.sizes, &core.sizes.drafts, core.draft_buffer()?);
        let launches = || {
            let drafts = |launch: usize| in_order(parts, of.tokens, launch * each).count();
            launches(parts, of.tokens, each).map(move |launch| (launch, drafts(launch)))
        };
        let columns = |seqs: usize| seqs * s.q_heads() * each;
        for (launch, seqs) in launches() {
            let words = columns(seqs) * args::Certificate::WORDS;
            let list = 1 + seqs * s.kv_heads;
            let [first, last] = &of.certificates;
            let [over, left] = &of.lists;
            let all = [(&of.outputs, columns(seqs) * s.dim), (first, words), (last, words), (over, list), (left, list)];
            for (section, words) in all {
                let at = of.at(launch, section);
                core.queue.download(buffer, at, &core.results, at, 4 * words)?;
            }
        }
        core.finish()?;
        for (launch, seqs) in launches() {
            let Drafted { words, outputs, found, .. } = drafted;
            outputs.resize(columns(seqs) * s.dim, 0.0);
            core.results.read(of.at(launch, &of.outputs), outputs)?;
            for (section, to) in of.certificates.iter().zip([&mut found.first, &mut found.second]) {
                words.resize(columns(seqs) * args::Certificate::WORDS, 0);
                core.results.read(of.at(launch, section), words)?;
                to.clear();
                to.extend(results::certificates(words));
            }
            for (section, to) in of.lists.iter().zip([&mut found.repaired, &mut found.dense]) {
                to.resize(1 + seqs * s.kv_heads, 0);
                core.results.read(of.at(launch, section), to)?;
            }
            let shape = (s, &self.layouts[layer]);
            let exact = core.kit(layer).exact;
            for (place, part) in in_order(parts, of.tokens, launch * each).enumerate() {
                for token in 0..each.min(part.tokens - launch * each) {
                    let row = part.first_row + launch * each + token;
                    let own = &mut certificates[row * s.q_heads()..(row + 1) * s.q_heads()];
                    let sees = (part.len + launch * each + token + 1, s.window(layer));
                    found.of(rule, (place, token, each), sees, shape, exact, own);
                    let (width, group) = (s.q_heads() * s.dim, s.group * s.dim);
                    for (kv, to) in out[row * width..(row + 1) * width].chunks_exact_mut(group).enumerate() {
                        let at = ((place * s.kv_heads + kv) * each + token) * group;
                        to.copy_from_slice(&outputs[at..at + group]);
                    }
                }
            }
        }
        Ok(())
    }
}

/// Queries of a launch, `[place][kv_head][token][query head][dim]`, the last of a draft in place of those that it lacks, and what the launch is told of
/// the drafts. Returns how many they are.
fn gather_queries(
    s: &Sizes,
    (launch, each): (usize, usize),
    parts: &[Part],
    queries: &[f32],
    drafted: &mut Drafted,
) -> usize {
    let (width, group) = (s.q_heads() * s.dim, s.group * s.dim);
    let Drafted { told, queries: to, .. } = drafted;
    told.clear();
    to.clear();
    for part in in_order(parts, s.drafts.tokens, launch * each) {
        let (done, left) = (launch * each, part.tokens - launch * each);
        told.extend([(part.len + done + 1) as u32, each.min(left) as u32]);
        for kv in 0..s.kv_heads {
            for token in 0..each {
                let row = part.first_row + done + token.min(left - 1);
                to.extend_from_slice(&queries[row * width + kv * group..][..group]);
            }
        }
    }
    told.len() / 2
}
