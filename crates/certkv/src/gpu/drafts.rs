//! Attention of drafts: chunks of a few tokens, all of a step's at once, as a step of single tokens is attended (`kernels/attend/draft.cuh`).
//!
//! Every token is under the policy, with its rungs and a certificate of its own; a block is read once for as many tokens as a launch takes. A step
//! of drafts and single tokens alone, a *draft step*, is appended on the device, and waits for nothing; in others, drafts are appended as longer chunks are, what
//! [`prefill`](super::prefill) does.
//!
//! *Cost:* one launch for the new rows; then the launches of a step, of which the first reads the
//! records, once for every so many tokens of the longest draft. Rows of the host come over its link.
use super::cache::GpuCache;
use super::carry::narrow;
use super::core::{Core, Drafts};
use super::draft_sections::{Cut, DraftSections};
use super::ladder::{self, Call};
use super::policy::Rule;
use super::record::Shape;
use super::results::{self, Lowered, Results};
use super::step::Part;
use crate::{Certificate, Error, Side};
use certkv_kernel::cuda::args::{self, Draft, Element};
use certkv_kernel::cuda::tensor::Tensor;
use core::ops::Range;
use std::sync::Arc;

/// What travels, kept from step to step.
#[derive(Debug, Default)]
pub(super) struct Drafted {
    state: Vec<u32>,
    queries: Vec<f32>,
    bits: Vec<u16>,
    words: Vec<u32>,
    found: Results,
    /// Of drafts' tokens in the order of the step: `[token][q_heads]` and `[token][q_heads dim]`.
    pub(super) certificates: Vec<Certificate>,
    pub(super) outputs: Vec<f32>,
}

/// Whether a part is a draft where those have up to `most` tokens.
fn is_draft(part: &Part, most: usize) -> bool {
    part.place.is_none() && part.tokens <= most
}

/// Whether a step has a draft.
pub(super) fn any(parts: &[Part], most: usize) -> bool {
    parts.iter().any(|part| is_draft(part, most))
}

/// Makes a step of single tokens and drafts, some of these, a draft step: single tokens are drafts of one, and the batch is empty. Whether it is one.
pub(super) fn take(core: &Core, parts: &mut [Part]) -> bool {
    let most = core.sizes.drafts.tokens;
    let drafts = parts.iter().any(|part| part.tokens > 1) && parts.iter().all(|part| part.tokens <= most);
    if drafts && core.sizes.drafts_alone {
        parts.iter_mut().for_each(|part| part.place = None);
        return true;
    }
    false
}

/// Places drafts of up to `most` tokens from `place` on, the longest first: those that a launch over their later tokens is for come first. Returns the
/// place behind them.
pub(super) fn place(parts: &mut [Part], mut place: usize, most: usize) -> usize {
    let mut token = 0;
    for part in parts.iter_mut().filter(|part| is_draft(part, most)) {
        part.draft = token;
        token += part.tokens;
    }
    for tokens in (1..=most).rev() {
        for part in parts.iter_mut().filter(|part| part.place.is_none() && part.tokens == tokens) {
            part.guest = place;
            place += 1;
        }
    }
    place
}

/// Drafts of more than `done` tokens in the order of their places.
fn in_order(parts: &[Part], most: usize, done: usize) -> impl Iterator<Item = &Part> {
    (done + 1..=most)
        .rev()
        .flat_map(move |tokens| parts.iter().filter(move |part| part.place.is_none() && part.tokens == tokens))
}

/// Tokens of the longest draft.
pub(super) fn longest(parts: &[Part], most: usize) -> usize {
    parts.iter().filter(|part| is_draft(part, most)).map(|part| part.tokens).max().unwrap_or(0)
}

/// Launches of a layer, and the drafts of each.
fn launches<'p>(of: &DraftSections, parts: &'p [Part]) -> impl Iterator<Item = (Cut, usize)> + use<'p> {
    let most = of.tokens;
    of.cuts(longest(parts, most)).map(move |cut| (cut, in_order(parts, most, cut.done).count()))
}

/// Launches and their drafts where every sequence has as many tokens.
pub(super) fn of_each(core: &Core, shape: Shape) -> impl Iterator<Item = (Cut, usize)> + use<> {
    core.sizes.drafts.cuts(shape.tokens).map(move |cut| (cut, shape.seqs))
}

/// The launches of all drafts of a step, with the place of the first.
pub(super) fn of_step<'p>(core: &Core, parts: &'p [Part]) -> (usize, impl Iterator<Item = (Cut, usize)> + use<'p>) {
    let of = &core.sizes.drafts;
    let place = parts.iter().filter(|part| is_draft(part, of.tokens)).map(|part| part.guest).min();
    (place.unwrap_or(0), launches(of, parts))
}

/// 1 + the tail of the block that a draft fills before its last token's, which has one of its own; 0 for none.
fn filled_tail(part: &Part) -> u32 {
    let mut spans = part.reservations.first().into_iter().flat_map(|reservation| reservation.rows());
    let first = spans.next().filter(|_| spans.next().is_some());
    first.and_then(|span| span.tail).map_or(0, |tail| tail.index + 1)
}

/// Sends what launches are told of the step's drafts; in a draft step, of every token and of the blocks that these fill, too. Returns how many blocks.
pub(super) fn tell(cache: &mut GpuCache, parts: &[Part], alone: bool) -> Result<usize, Error> {
    let core = Arc::clone(&cache.core);
    let of = &core.sizes.drafts;
    if !parts.iter().any(|part| is_draft(part, of.tokens)) {
        return Ok(0);
    }
    let mut state = core::mem::take(&mut cache.drafted.state);
    state.clear();
    state.resize(of.state_bytes() / 4, 0);
    let mut put = |at: usize, words: &[u32]| state[at / 4..at / 4 + words.len()].copy_from_slice(words);
    for (Cut { launch, done, width }, _) in launches(of, parts) {
        let told = of.told(launch);
        for (place, part) in in_order(parts, of.tokens, done).enumerate() {
            let draft = Draft::new(part.len + done + 1, width.min(part.tokens - done), part.draft + done);
            let draft = Draft { tail: if alone { filled_tail(part) } else { 0 }, ..draft };
            put(told.start + place * size_of::<Draft>(), &draft.words());
        }
    }
    let (mut tokens, mut filled) = (0, 0);
    for part in parts.iter().filter(|_| alone) {
        // Layers of drafts all see everything: they are one group.
        for span in part.reservations.first().into_iter().flat_map(|reservation| reservation.rows()) {
            let Some(tail) = span.tail else { return Err(Error::Order { layer: 0, why: "an open block has no tail" }) };
            let start = span.block * core.sizes.block;
            let mut add = |sections: &[Range<usize>; 3], at: &mut usize, token: usize| {
                let words = [part.row as u32, token as u32, tail.index];
                sections.iter().zip(words).for_each(|(section, word)| put(section.start + 4 * *at, &[word]));
                *at += 1;
            };
            for row in span.first_row..span.first_row + span.rows {
                add(&of.new, &mut tokens, start + row);
            }
            if span.packed.is_some() {
                add(&of.filled, &mut filled, start + core.sizes.block);
            }
        }
    }
    put(of.counts.start, &[tokens as u32, filled as u32]);
    let sent = cache.ring.send(&core.queue, core.draft_buffer()?, 0, &state);
    cache.drafted.state = state;
    sent.map(|()| filled)
}

/// Enqueues the rows of a draft step in a layer, from those that the cache has rounded.
pub(super) fn append(cache: &mut GpuCache, layer: usize, tokens: usize) -> Result<(), Error> {
    let GpuCache { core, rows, ring, .. } = cache;
    for (side, at) in [Side::Key, Side::Value].into_iter().zip(core.draft_rows()) {
        ring.send(&core.queue, core.draft_buffer()?, at, rows.all(side))?;
    }
    core.append_drafts(layer, tokens, core.staged_drafts(tokens)?)
}

/// Attention of the step's drafts in a layer, and where it is no draft step their results: outputs go to `out`, certificates to those of all the step's
/// `tokens`; `queries` and `out` are the step's, `[token][q_heads dim]`. Returns of how many tokens the chunks are that were attended: 0 where the layer attends chunks
/// otherwise, or queries do not fit the kernels' type.
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
    let (most, heads) = (cache.core.sizes.drafts.tokens, cache.core.sizes.q_heads());
    let width = heads * cache.core.sizes.dim;
    let drafts = || parts.iter().filter(|part| is_draft(part, most));
    if !cache.core.drafts_in(layer) || drafts().next().is_none() {
        return Ok(0);
    }
    let mut own = core::mem::take(&mut cache.drafted.queries);
    own.clear();
    drafts().for_each(|part| own.extend_from_slice(&queries[part.first_row * width..][..part.tokens * width]));
    let ran = attend_host(cache, layer, parts, &own, (rule, false), false);
    cache.drafted.queries = own;
    match ran {
        // Chunks take what steps refuse.
        Err(Error::Overflow { .. }) => return Ok(0),
        ran => ran?,
    }
    let mut drafted = core::mem::take(&mut cache.drafted);
    let done = read(cache, layer, parts, rule, true, &mut drafted).map(|()| {
        certificates.resize(tokens * heads, Certificate::PREFILL);
        for part in drafts() {
            let (from, to, n) = (part.draft, part.first_row, part.tokens);
            certificates[to * heads..][..n * heads].copy_from_slice(&drafted.certificates[from * heads..][..n * heads]);
            out[to * width..][..n * width].copy_from_slice(&drafted.outputs[from * width..][..n * width]);
        }
        most
    });
    cache.drafted = drafted;
    done
}

/// Enqueues attention of all drafts in a layer from the host's queries, which are of drafts alone; outputs stay on the device. `alone`: in a draft step.
///
/// # Errors
/// [`Error::Overflow`] for a query that the kernels' type does not hold: nothing was enqueued. The driver's.
pub(super) fn attend_host(
    cache: &mut GpuCache,
    layer: usize,
    parts: &[Part],
    queries: &[f32],
    (rule, fresh): (Rule, bool),
    alone: bool,
) -> Result<(), Error> {
    let core = Arc::clone(&cache.core);
    let (of, buffer, width) = (&core.sizes.drafts, core.draft_buffer()?, core.sizes.q_heads() * core.sizes.dim);
    cache.ready(layer)?;
    let GpuCache { ring, drafted, config, .. } = cache;
    match narrow(config.queries) {
        Some(dtype) => {
            dtype.encode16_all(queries, &mut drafted.bits);
            if let Some(at) = dtype.nonfinite16_at(&drafted.bits) {
                return Err(Error::Overflow { argument: "queries", token: at / width, element: at % width });
            }
            ring.send(&core.queue, buffer, of.queries.start, &drafted.bits)?;
        }
        None => ring.send(&core.queue, buffer, of.queries.start, queries)?,
    }
    let query = Tensor::of(buffer, of.queries.start, config.queries, queries.len())?;
    let out = Tensor::of(buffer, of.outputs.start, Element::F32, queries.len())?;
    let (place, launches) = of_step(&core, parts);
    enqueue(&core, (layer, place, alone), launches, (query, out), (rule, fresh))
}

/// The same for queries and outputs in device memory, `[token][q_heads][dim]`; `alone`: in a draft step. `fresh`: as that of [`Call`]. Waits for nothing.
pub(super) fn enqueue(
    core: &Core,
    (layer, place, alone): (usize, usize, bool),
    launches: impl Iterator<Item = (Cut, usize)>,
    (query, out): (Tensor<'_>, Tensor<'_>),
    (rule, fresh): (Rule, bool),
) -> Result<(), Error> {
    for (cut, seqs) in launches {
        let drafts = Some(Drafts { cut, place, closing: alone });
        let fresh = fresh && cut.launch == 0;
        ladder::attend(core, &Call { layer, seqs, blocks: 0, query, out, rule, fresh, drafts })?;
    }
    Ok(())
}

/// Waits for the attention of all drafts in a layer, and brings their certificates, with `outputs` what lies in the cache's own buffer, and what was refused of
/// rows.
///
/// # Errors
/// The driver's.
pub(super) fn read(
    cache: &GpuCache,
    layer: usize,
    parts: &[Part],
    rule: Rule,
    outputs: bool,
    drafted: &mut Drafted,
) -> Result<(), Error> {
    let core = &cache.core;
    let (s, of, buffer) = (&core.sizes, &core.sizes.drafts, core.draft_buffer()?);
    let (heads, width) = (s.q_heads(), s.q_heads() * s.dim);
    let tokens: usize = parts.iter().filter(|part| is_draft(part, of.tokens)).map(|part| part.tokens).sum();
    let certified = |cut: Cut, seqs: usize| seqs * heads * cut.width * args::Certificate::WORDS;
    let listed = |seqs: usize| 1 + seqs * s.kv_heads;
    for (cut, seqs) in launches(of, parts) {
        let launch = cut.launch;
        let words = [certified(cut, seqs), certified(cut, seqs), listed(seqs), listed(seqs)];
        for (section, words) in of.certificates.iter().chain(&of.lists).zip(words) {
            let (from, to) = (of.at(layer, launch, section), of.result_at(launch, section));
            core.queue.download(buffer, from, &core.results, to, 4 * words)?;
        }
    }
    if outputs {
        core.queue.download(buffer, of.outputs.start, &core.results, of.outputs_at(), 4 * tokens * width)?;
    }
    core.queue.download(&core.counters, 4 * s.counters.errors.start, &core.results, of.errors_at(), 4 * s.rows)?;
    core.finish()?;
    let Drafted { words, found, certificates, outputs: out, .. } = drafted;
    out.resize(if outputs { tokens * width } else { 0 }, 0.0);
    core.results.read(of.outputs_at(), out)?;
    found.errors.resize(s.rows, 0);
    core.results.read(of.errors_at(), &mut found.errors)?;
    certificates.clear();
    certificates.resize(tokens * heads, Certificate::UNCERTIFIED);
    for (cut, seqs) in launches(of, parts) {
        let Cut { launch, done, width: each } = cut;
        for (section, to) in of.certificates.iter().zip([&mut found.first, &mut found.second]) {
            words.resize(certified(cut, seqs), 0);
            core.results.read(of.result_at(launch, section), words)?;
            to.clear();
            to.extend(results::certificates(words));
        }
        for (section, to) in of.lists.iter().zip([&mut found.repaired, &mut found.dense]) {
            to.resize(listed(seqs), 0);
            core.results.read(of.result_at(launch, section), to)?;
        }
        let shape = (s, &cache.layouts[layer], Lowered::default());
        for (place, part) in in_order(parts, of.tokens, done).enumerate() {
            for token in 0..each.min(part.tokens - done) {
                let later = done + token;
                let own = &mut certificates[(part.draft + later) * heads..][..heads];
                let sees = (part.len + later + 1, s.window(layer));
                found.of(rule, (place, token, each), sees, shape, core.kit(layer).exact, own);
            }
        }
    }
    Ok(())
}

impl Drafted {
    /// What the device refused, by row.
    pub(super) fn refused(&self) -> &[u32] {
        &self.found.errors
    }
}
