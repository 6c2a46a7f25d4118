//! Attention of one layer: which way each chunk goes.
pub(crate) mod certified;
pub(crate) mod decide;
mod dense;
pub(crate) mod log_mass;
pub(crate) mod pages;
mod prefill;
pub(crate) mod promoted;
pub(crate) mod published;
mod refine;
pub(crate) mod rows;
pub(crate) mod seen;
pub(crate) mod sets;
mod terms;
#[cfg(test)]
mod tests;

use crate::group::{Group, Side};
use crate::sequence::SequenceState;
use crate::spill::Turn;
use crate::step::Part;
use crate::work::{HeadWork, Workspace};
use crate::{Cache, Error, Policy, SequenceId, Tolerance};
use certified::HeadCall;
use certkv_bound::{Cause, Certificate, Rung, Status};
use certkv_control::BitSet;
use certkv_control::policy::Certified;
use pages::Pages;
use sets::Items;

/// Attention of `part` in one layer, into the workspace.
///
/// # Errors
/// As [`crate::Step::attend`]; the workspace then holds what came before.
pub(crate) fn attend(
    cache: &Cache,
    turn: &mut Turn<'_>,
    layer: usize,
    part: &mut Part,
    policy: Policy,
    queries: &[f32],
    work: &mut Workspace,
) -> Result<(), Error> {
    cache
        .groups_of(layer)
        .try_for_each(|(index, group)| attend_group(cache, turn, group, index, layer, part, policy, queries, work))?;
    let geometry = cache.geometry();
    let rows = part.first_row * geometry.q_heads..(part.first_row + part.tokens) * geometry.q_heads;
    let failed = |c: &Certificate| c.cause == Cause::Integrity;
    if !work.certificates[rows.clone()].iter().any(failed) {
        return Ok(());
    }
    // A canary failed: no certificate of the layer may stand (math.md 7.4), of heads in other groups neither.
    for (index, group) in cache.groups_of(layer) {
        let heads = group.q_heads(geometry);
        // Of a chunk's tokens those that failed are dense already, and the others, which have read the same codes, are not.
        if work.certificates[rows.clone()].chunks(geometry.q_heads).all(|row| row[heads.clone()].iter().any(failed)) {
            continue;
        }
        attend_group(cache, turn, group, index, layer, part, Policy::Dense, queries, work)?;
        let of_rows = work.certificates[rows.clone()].chunks_mut(geometry.q_heads);
        of_rows.flat_map(|row| &mut row[heads.clone()]).for_each(|c| c.cause = Cause::Integrity);
    }
    Ok(())
}

/// The same of the KV heads that one group has.
#[allow(clippy::too_many_arguments, reason = "the values have nothing else in common")]
fn attend_group(
    cache: &Cache,
    turn: &mut Turn<'_>,
    group: &Group,
    index: usize,
    layer: usize,
    part: &mut Part,
    policy: Policy,
    queries: &[f32],
    work: &mut Workspace,
) -> Result<(), Error> {
    work.wanted.clear();
    let result = if part.decodes {
        (0..part.tokens).try_for_each(|row| {
            // Of the token before.
            work.heads.iter_mut().for_each(|w| w.resident.clear());
            decode(cache, turn, group, index, layer, part, row, policy, queries, work)
        })
    } else {
        prefill::prefill(cache, turn, group, index, layer, part, queries, work)
    };
    if result.is_ok() && part.decodes && matches!(policy, Policy::Certified(_)) {
        work.wanted.collect(group, layer, part, &work.heads[..group.kv_heads], &work.pages, &work.uncoded);
    }
    // A fence stands for finished reads: the guards go before one is recorded.
    work.pages.close();
    work.heads.iter_mut().for_each(|w| w.resident.clear());
    work.wanted.offer(cache, group);
    result
}

/// Token `row` of a chunk, over what precedes it and itself, under `policy`.
#[allow(clippy::too_many_arguments, reason = "one call site; the values have nothing else in common")]
fn decode(
    cache: &Cache,
    turn: &mut Turn<'_>,
    group: &Group,
    index: usize,
    layer: usize,
    part: &mut Part,
    row: usize,
    policy: Policy,
    queries: &[f32],
    work: &mut Workspace,
) -> Result<(), Error> {
    let geometry = cache.geometry();
    let group_width = geometry.group() * geometry.head_dim;
    work.pages.open(cache, group, index, layer, part, Some(row))?;
    let first_row = part.first_row + row;
    let SequenceState { centres, heads: memory, uncoded: known, .. } = &mut *part.state;
    // What later tokens of the chunk fill is known, and not read yet.
    let strand = group.strand(layer);
    let whole = (part.len + part.tokens) / group.layout.tokens();
    known[strand].reserve(whole)?;
    known[strand].resize(whole);
    let memory = &mut memory[group.memories(layer)];
    let Workspace { pages, heads, out, certificates, uncoded, tolerances, .. } = work;
    let heads = &mut heads[..group.kv_heads];
    uncoded.reserve(whole.max(pages.blocks()))?;
    let protected = cache.config.protection.blocks(group.layout.tokens(), part.len + row + 1);
    pages.uncoded(&known[strand], &protected, uncoded);
    let (blocks, seen) = (pages.blocks(), pages.seen());
    let q_heads = group.q_heads(geometry);
    let start = first_row * geometry.q_width() + q_heads.start * geometry.head_dim;
    let row = &queries[start..start + group.kv_heads * group_width];
    let tolerances = &tolerances[q_heads.clone()];
    // All that this token may need is there before a head begins with it.
    for (w, m) in heads.iter_mut().zip(memory.iter_mut()) {
        if let Some(seen) = seen {
            m.slide(seen.fixed, seen.from);
        }
        m.resize(blocks, geometry.group())?;
        w.reserve(&group.kernel, blocks)?;
        if let Policy::Certified(p) = policy {
            w.reserve_certified(&group.kernel, &group.layout, blocks, p.row_share)?;
            (1..group.level_count()).try_for_each(|level| w.scores.reserve(group.kernel_at(level), blocks))?;
            if p.rank.is_some() {
                w.leaders.reserve(blocks)?;
            }
        }
        if let Policy::Seed000(_) = policy {
            w.reserve_published(blocks)?;
        }
    }
    for (w, m) in heads.iter_mut().zip(memory.iter_mut()) {
        w.begin(blocks, uncoded);
        m.mass.clear();
        m.terms.clear();
        if let Policy::Certified(p) = policy {
            // A guess made under a wider cap is no guess under this one.
            if w.sets.keys.len() + m.keys.len() > p.k_cap {
                m.keys.clear();
            }
            w.sets.keys.union_with(&m.keys);
        }
        core::mem::swap(&mut w.memory, m);
    }
    let (sequence, centre) = (part.id, &centres[strand][..]);
    let call = Decode { cache, group, index, layer, sequence, row, group_width, centre, uncoded, tolerances, blocks };
    let mut done = call.step(policy, turn, pages, heads);
    if let (Ok(()), Some(control), true) = (&done, &cache.config.control, policy != Policy::Dense) {
        done = call.run(pages, heads, |head, w| Ok(head.note(control.wants_terms(), w)?));
    }
    for (w, m) in heads.iter_mut().zip(memory) {
        core::mem::swap(&mut w.memory, m);
        if let Some(seen) = seen {
            // What was gathered for this query is no block of the next.
            m.truncate(seen.blocks);
        }
    }
    done?;
    for (head, w) in heads.iter().enumerate() {
        let start = start + head * group_width;
        out[start..start + group_width].copy_from_slice(&w.out);
        let start = first_row * geometry.q_heads + q_heads.start + head * geometry.group();
        certificates[start..start + geometry.group()].copy_from_slice(&w.certificates);
    }
    Ok(())
}

/// What a decision about `blocks` blocks chooses from.
fn items(group: &Group, blocks: usize) -> Items {
    Items { blocks, fine: group.is_refinable() }
}

/// One decode call: what all KV heads of a group share.
pub(crate) struct Decode<'a> {
    pub(crate) cache: &'a Cache,
    pub(crate) group: &'a Group,
    /// Number of the group.
    pub(crate) index: usize,
    pub(crate) layer: usize,
    pub(crate) sequence: SequenceId,
    /// The token's queries of these heads, `[query head][dim]`.
    pub(crate) row: &'a [f32],
    pub(crate) group_width: usize,
    pub(crate) centre: &'a [f32],
    pub(crate) uncoded: &'a BitSet,
    /// `[query head]`.
    pub(crate) tolerances: &'a [Tolerance],
    pub(crate) blocks: usize,
}

impl Decode<'_> {
    /// Outputs and certificates of every head under `policy`.
    fn step(
        &self,
        policy: Policy,
        turn: &mut Turn<'_>,
        pages: &mut Pages,
        heads: &mut [HeadWork],
    ) -> Result<(), Error> {
        self.need(turn, pages, heads, self.blocks, |wanted, _| wanted.extend(self.uncoded.iter()))?;
        match policy {
            Policy::Dense => self.all_dense(Cause::Requested, Rung::DenseLayer, turn, pages, heads),
            Policy::Packed => {
                self.run(pages, heads, |head, w| {
                    head.count_pass(w);
                    head.pass(w)?;
                    head.certify(w)
                })?;
                heads.iter_mut().flat_map(|w| &mut w.certificates).for_each(Certificate::keep_candidate);
                Ok(())
            }
            Policy::Certified(p) => {
                // Any block may turn out to be worth reading exactly, except where codes served for everything so far. Where
                // originals are spilled, only those are asked for that are read.
                if !self.spills() && !heads.iter().all(|w| w.memory.is_plain() && !(p.explore_rate > 0.0)) {
                    self.fetch_all(turn, pages, heads)?;
                }
                self.certified(&p, turn, pages, heads)
            }
            Policy::Seed000(p) => self.published(&p, turn, pages, heads),
        }
    }

    /// The call as one KV head sees it.
    pub(crate) fn head<'p>(&'p self, pages: &'p Pages, head: usize) -> HeadCall<'p> {
        let dim = self.group.layout.dim;
        HeadCall {
            group: self.group,
            pages,
            layer: self.layer,
            stream: &self.cache.main,
            head,
            queries: &self.row[head * self.group_width..(head + 1) * self.group_width],
            centre: self.centre.get(head * dim..(head + 1) * dim).unwrap_or(&[]),
            tolerances: &self.tolerances[head * self.group_width / dim..(head + 1) * self.group_width / dim],
            blocks: self.blocks,
        }
    }

    /// Runs `work` for every KV head, on the pool's threads.
    pub(crate) fn run(
        &self,
        pages: &Pages,
        heads: &mut [HeadWork],
        work: impl Fn(&HeadCall<'_>, &mut HeadWork) -> Result<(), Error> + Sync + Send,
    ) -> Result<(), Error> {
        self.cache.pool.run(
            heads,
            || (),
            |(), head, w| {
                let call = self.head(pages, head);
                if let Err(error) = work(&call, w) {
                    w.failure = Some(error);
                }
            },
        );
        heads.iter_mut().find_map(|w| w.failure.take()).map_or(Ok(()), Err)
    }

    /// Every head densely, over all originals.
    pub(crate) fn all_dense(
        &self,
        cause: Cause,
        rung: Rung,
        turn: &mut Turn<'_>,
        pages: &mut Pages,
        heads: &mut [HeadWork],
    ) -> Result<(), Error> {
        for w in heads.iter_mut() {
            w.dense.fill(true);
            w.certificates.iter_mut().for_each(|c| c.cause = cause);
        }
        self.fetch_all(turn, pages, heads)?;
        self.run(pages, heads, |head, w| head.dense(rung, w))
    }

    fn fetch_all(&self, turn: &mut Turn<'_>, pages: &mut Pages, heads: &mut [HeadWork]) -> Result<(), Error> {
        self.need(turn, pages, heads, self.blocks, |wanted, _| wanted.extend(0..self.blocks))
    }

    /// Originals can be elsewhere than in host memory.
    fn spills(&self) -> bool {
        self.cache.spill.is_some()
    }

    /// Holds the originals of the blocks that `wants` lists, `most` of them at most, one as often as it is listed. Those that were spilled are read first, all at once; for that time no
    /// page is held, and no side in scratch.
    pub(crate) fn need(
        &self,
        turn: &mut Turn<'_>,
        pages: &mut Pages,
        heads: &mut [HeadWork],
        most: usize,
        wants: impl FnOnce(&mut Vec<usize>, &[HeadWork]),
    ) -> Result<(), Error> {
        let Self { cache, group, layer, .. } = *self;
        pages.want(most, |wanted| wants(wanted, heads))?;
        if pages.lacks(group, layer) {
            heads.iter_mut().for_each(|w| w.resident.clear());
            pages.bring(cache, self.index, layer, self.sequence, turn)?;
            for (number, w) in heads.iter_mut().enumerate() {
                let head = self.head(pages, number);
                let HeadWork { sets, resident, .. } = w;
                head.hold(Side::Key, sets.keys.iter(), resident)?;
                head.hold(Side::Value, sets.values.iter(), resident)?;
            }
        }
        pages.hold_wanted(cache, group, layer)
    }

    /// As [`Decode::need`] for what is read exactly by the sets in force and the picks; nothing where all is held anyway.
    fn need_sets(&self, turn: &mut Turn<'_>, pages: &mut Pages, heads: &mut [HeadWork]) -> Result<(), Error> {
        if !self.spills() {
            return Ok(());
        }
        // Both sets of each head, and its picks.
        let most = heads.iter().map(|w| w.sets.keys.len() + w.sets.values.len() + w.picks.len()).sum();
        self.need(turn, pages, heads, most, |wanted, heads| {
            let items = items(self.group, self.blocks);
            for w in heads {
                let picks = w.picks.iter().map(|i| items.get(*i as usize)).filter(|item| item.exact);
                let picks = picks.map(|item| item.block);
                wanted.extend(w.sets.keys.iter().chain(w.sets.values.iter()).chain(picks));
            }
        })
    }

    /// Heads marked for rung 3, and all on a failed canary (rung 4), to which [`attend`] adds those of other groups.
    pub(crate) fn fall_back(
        &self,
        turn: &mut Turn<'_>,
        pages: &mut Pages,
        heads: &mut [HeadWork],
    ) -> Result<(), Error> {
        if heads.iter().any(|w| w.corrupt.is_some()) {
            return self.all_dense(Cause::Integrity, Rung::DenseLayer, turn, pages, heads);
        }
        if heads.iter().any(|w| w.dense.contains(&true)) {
            self.fetch_all(turn, pages, heads)?;
            self.run(pages, heads, |head, w| head.dense(Rung::DenseHead, w))?;
        }
        Ok(())
    }

    /// The certified step: math.md 6.6 and 8.
    fn certified(
        &self,
        policy: &Certified,
        turn: &mut Turn<'_>,
        pages: &mut Pages,
        heads: &mut [HeadWork],
    ) -> Result<(), Error> {
        let draw = if policy.explore_rate > 0.0 { self.cache.next_draw() } else { 0 };
        let first = |head: &HeadCall<'_>, w: &mut HeadWork| {
            // The guess, and blocks without codes.
            head.hold(Side::Key, w.sets.keys.iter(), &mut w.resident)?;
            head.hold(Side::Value, w.sets.values.iter(), &mut w.resident)?;
            head.look(policy, draw, w)
        };
        let again = |head: &HeadCall<'_>, w: &mut HeadWork| head.look_again(policy, draw, w);
        let second = |head: &HeadCall<'_>, w: &mut HeadWork| {
            head.sum(w)?;
            head.count_rescored(w);
            head.count_pass(w);
            head.certify(w)?;
            w.certificates.iter_mut().for_each(Certificate::keep_candidate);
            Ok(())
        };
        if self.spills() {
            self.need_sets(turn, pages, heads)?;
            self.run(pages, heads, first)?;
            self.need_sets(turn, pages, heads)?;
            if self.group.is_refinable() {
                self.run(pages, heads, again)?;
                self.need_sets(turn, pages, heads)?;
            }
            self.run(pages, heads, second)?;
        } else {
            self.run(pages, heads, |head, w| {
                first(head, w)?;
                again(head, w)?;
                second(head, w)
            })?;
        }
        loop {
            self.run(pages, heads, |head, w| head.choose(policy, w))?;
            if heads.iter().any(|w| w.corrupt.is_some()) || heads.iter().all(|w| w.picks.is_empty()) {
                break;
            }
            if self.spills() {
                self.need_sets(turn, pages, heads)?;
            } else {
                self.fetch_all(turn, pages, heads)?;
            }
            self.promote(pages, heads)?;
        }
        self.fall_back(turn, pages, heads)?;
        for c in heads.iter_mut().flat_map(|w| &mut w.certificates) {
            if c.status == Status::Uncertified {
                // The last word: what compression costs is within the tolerance, or the call fails.
                c.status = if !(c.quantisation() <= c.tol) || !c.bound().is_finite() {
                    Status::Failed
                } else {
                    Status::Certified
                };
            }
            if c.status == Status::Failed {
                return Err(Error::Uncertifiable { layer: self.layer });
            }
        }
        self.cache.counters.rows(heads.iter().map(|w| w.rows.len()).sum());
        self.run(pages, heads, |head, w| {
            head.remember(w);
            Ok(())
        })
    }

    /// Repairs what `picks` name, and certifies again.
    fn promote(&self, pages: &Pages, heads: &mut [HeadWork]) -> Result<(), Error> {
        self.run(pages, heads, |head, w| {
            if w.picks.is_empty() {
                return Ok(());
            }
            head.repair(w)?;
            head.certify(w)
        })
    }
}

impl HeadWork {
    /// Nothing known, nothing promoted but what has no codes.
    fn begin(&mut self, blocks: usize, uncoded: &BitSet) {
        self.sets.begin(blocks, uncoded);
        self.rows.clear();
        self.scores.clear();
        self.weighed.resize(0);
        self.picks.clear();
        self.out.fill(f32::NAN);
        self.certificates.fill(Certificate::UNCERTIFIED);
        self.dense.fill(false);
        self.touched.clear();
        self.rescored = 0;
        self.uncoded = uncoded.len();
        self.corrupt = None;
        self.failure = None;
    }
}
