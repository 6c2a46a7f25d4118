//! The two-phase step of "Runtime-Certified Bounded-Error Quantized Attention", whole: coverage selection from code
//! masses, rung 1 expansion, value promotion, the mixed pass, ranking and boundary checks, Eq. 15 as its certificate.
//!
//! It never compares its bound with a tolerance: as in the paper, thresholds decide, and the bound is reported. So a
//! returned record is UNCERTIFIED with its Eq. 15 figures unless a fallback made the head exact.
use crate::Error;
use crate::attend::Decode;
use crate::attend::certified::HeadCall;
use crate::attend::log_mass::{at_least, least_known, log_mass};
use crate::attend::pages::Pages;
use crate::attend::terms::HeadScale;
use crate::spill::Turn;
use crate::work::HeadWork;
use certkv_bound::checks::Ranking;
use certkv_bound::published::{PublishedBound, published_value_term};
use certkv_bound::{BytesRead, Cause, Rung};
use certkv_control::BitSet;
use certkv_control::policy::Seed000;
use certkv_control::seed000::{promote_keys, promote_values};
use certkv_core::{ErrorSummary, OutOfMemory, reserve_total};

/// First-phase numbers of one query head.
#[derive(Debug, Clone, Default)]
struct Phase1 {
    /// Normalised block masses from codes.
    masses: Vec<f64>,
    /// Block log-masses from codes.
    logs: Vec<f64>,
    /// `Delta_b`.
    deltas: Vec<f64>,
    /// Keys promoted for this head (the pass promotes the union over the group).
    keys: Vec<u32>,
    delta_max: f64,
}

/// What a step under this policy works in, kept from step to step.
#[derive(Debug, Default)]
pub(crate) struct Published {
    /// Per query head.
    phase1: Vec<Phase1>,
    /// Bytes of the first pass, and why heads promoted what they did.
    first: Vec<(BytesRead, Rung, Cause)>,
    /// Sides that were exact before the first phase, then those that are promoted.
    exact: BitSet,
    keys: BitSet,
    values: BitSet,
    wanted: Vec<u32>,
    summaries: Vec<ErrorSummary>,
    /// By block: `eta_b` of what is read from codes, and normalised masses of the second pass.
    etas: Vec<f64>,
    achieved: Vec<f64>,
    /// Promoted blocks and those that are not, with their log-masses from originals, codes, and at most.
    promoted: Vec<usize>,
    rest: Vec<usize>,
    exact_logs: Vec<f64>,
    code_logs: Vec<f64>,
    upper: Vec<f64>,
    widths: Vec<f64>,
    ranking: Ranking,
}

impl Published {
    /// Asks for the memory of a step over so many blocks.
    pub(crate) fn reserve(&mut self, heads: usize, blocks: usize) -> Result<(), OutOfMemory> {
        reserve_total(&mut self.phase1, heads)?;
        self.phase1.resize_with(heads, Phase1::default);
        reserve_total(&mut self.first, heads)?;
        for p in &mut self.phase1 {
            for list in [&mut p.masses, &mut p.logs, &mut p.deltas] {
                reserve_total(list, blocks)?;
            }
            reserve_total(&mut p.keys, blocks)?;
        }
        for set in [&mut self.exact, &mut self.keys, &mut self.values] {
            set.reserve(blocks)?;
        }
        reserve_total(&mut self.wanted, blocks)?;
        reserve_total(&mut self.summaries, blocks)?;
        for list in [&mut self.promoted, &mut self.rest] {
            reserve_total(list, blocks)?;
        }
        let Self { etas, achieved, exact_logs, code_logs, upper, widths, .. } = self;
        for list in [etas, achieved, exact_logs, code_logs, upper, widths] {
            reserve_total(list, blocks)?;
        }
        self.ranking.reserve(blocks)
    }
}

/// Fills a list anew.
fn fill<T>(list: &mut Vec<T>, with: impl IntoIterator<Item = T>) {
    list.clear();
    list.extend(with);
}

impl Decode<'_> {
    /// Runs the two phases and the paper's ladder.
    pub(crate) fn published(
        &self,
        policy: &Seed000,
        turn: &mut Turn<'_>,
        pages: &mut Pages,
        heads: &mut [HeadWork],
    ) -> Result<(), Error> {
        let draw = if policy.explore_rate > 0.0 { self.cache.next_draw() } else { 0 };
        self.run(pages, heads, |head, w| {
            head.count_pass(w);
            head.pass(w)?;
            head.select(policy, w)?;
            head.explore(policy.explore_rate, draw, w);
            Ok(())
        })?;
        let most = heads.iter().map(|w| w.sets.keys.len() + w.sets.values.len()).sum();
        self.need(turn, pages, heads, most, |wanted, heads| {
            heads.iter().for_each(|w| wanted.extend(w.sets.keys.iter().chain(w.sets.values.iter())));
        })?;
        self.run(pages, heads, |head, w| head.attend_mixed(policy, w))?;
        self.fall_back(turn, pages, heads)
    }
}

impl HeadCall<'_> {
    /// After phase 1: the promoted sets, by the paper's thresholds.
    fn select(&self, policy: &Seed000, w: &mut HeadWork) -> Result<(), Error> {
        let mut work = core::mem::take(&mut w.published);
        let selected = self.select_in(policy, w, &mut work);
        w.published = work;
        selected
    }

    fn select_in(&self, policy: &Seed000, w: &mut HeadWork, work: &mut Published) -> Result<(), Error> {
        let Published { phase1, exact, keys, values, etas, wanted, .. } = work;
        exact.copy_from(&w.sets.keys);
        keys.copy_from(&w.sets.keys);
        values.copy_from(&w.sets.values);
        fill(etas, (0..self.blocks).map(|b| f64::from(self.summary(b).eta)));
        for (h, p) in phase1.iter_mut().enumerate() {
            let scale = HeadScale::of(&w.partial, h, 0.0, 0.0);
            let mass = |b| w.masses.get(h, b);
            let blocks = 0..self.blocks;
            fill(&mut p.masses, blocks.clone().map(|b| mass(b).map_or(0.0, |m| scale.masses(&m).0)));
            fill(&mut p.deltas, blocks.clone().map(|b| mass(b).map_or(0.0, |m| f64::from(m.delta + m.zeta))));
            fill(&mut p.logs, blocks.map(|b| log_mass(w, h, b)));
            p.delta_max = p.deltas.iter().copied().fold(0.0, f64::max);
            let expanded = promote_keys(policy, &p.masses, p.delta_max, exact, &mut p.keys)?;
            promote_values(policy, &p.masses, etas, values, wanted);
            for &b in &p.keys {
                keys.insert(b as usize);
            }
            let c = &mut w.certificates[h];
            if expanded {
                (c.rung, c.cause) = (Rung::MoreKeys, Cause::KeyError);
            }
            if !wanted.is_empty() {
                (c.rung, c.cause) = (Rung::ExactValues, Cause::ValueError);
            }
            wanted.iter().for_each(|&b| {
                values.insert(b as usize);
            });
        }
        w.sets.keys.copy_from(keys);
        w.sets.values.copy_from(values);
        Ok(())
    }

    fn summary(&self, block: usize) -> ErrorSummary {
        let record = self.pages.record(self.group, block, self.head);
        let layout = self.group.layout_at(self.pages.level(block));
        ErrorSummary::from_bytes(record.get(layout.summary.clone()).unwrap_or(&[]))
    }

    /// Phase 2 with the chosen sets, Eq. 15, and the checks that send a head to rung 3.
    fn attend_mixed(&self, policy: &Seed000, w: &mut HeadWork) -> Result<(), Error> {
        let mut work = core::mem::take(&mut w.published);
        let attended = self.attend_in(policy, w, &mut work);
        w.published = work;
        attended
    }

    fn attend_in(&self, policy: &Seed000, w: &mut HeadWork, work: &mut Published) -> Result<(), Error> {
        let Published { phase1, first, summaries, etas, achieved, promoted, rest, .. } = work;
        let Published { exact_logs: exact, code_logs: coded, upper, widths, ranking, .. } = work;
        fill(first, w.certificates.iter().map(|c| (c.bytes, c.rung, c.cause)));
        self.pass(w)?;
        self.certify(w)?;
        self.count_pass(w);
        fill(summaries, (0..self.blocks).map(|b| self.summary(b)));
        let eta = |b: usize| if w.sets.values.contains(b) { 0.0 } else { f64::from(summaries[b].eta) };
        fill(etas, (0..self.blocks).map(eta));
        let value_max = summaries.iter().map(|s| f64::from(s.value_norm)).fold(0.0, f64::max);
        fill(promoted, w.sets.keys.iter());
        fill(rest, (0..self.blocks).filter(|b| !w.sets.keys.contains(*b)));
        for (h, p) in phase1.iter().enumerate() {
            let scale = HeadScale::of(&w.partial, h, 0.0, 0.0);
            fill(achieved, (0..self.blocks).map(|b| w.masses.get(h, b).map_or(0.0, |m| scale.masses(&m).0)));
            let e_val = published_value_term(achieved, etas);
            let bound = PublishedBound {
                tail_mass: rest.iter().map(|&b| p.masses[b]).sum(),
                delta_max: p.delta_max,
                value_max,
                e_val,
                inflation: policy.inflation,
            };
            fill(exact, promoted.iter().map(|&b| log_mass(w, h, b)));
            fill(coded, promoted.iter().map(|&b| p.logs[b]));
            // Of masses so far below the largest no more is said than that.
            let tails = rest.iter().map(|&b| p.logs[b]);
            let least = least_known(exact.iter().chain(coded.iter()).copied().chain(tails.clone()));
            fill(upper, tails.map(|log| at_least(log, least)));
            fill(widths, rest.iter().map(|&b| p.deltas[b]));
            let r = policy.rank.min(promoted.len());
            let ranked = policy.rank == 0
                || (ranking.is_consistent(exact, coded, r)
                    && ranking.is_bounded(exact, upper, widths, r, policy.eps_guard));
            let corrupt = promoted.iter().zip(exact.iter().zip(coded.iter())).find(|(b, (e, c))| {
                let beyond = !((at_least(**e, least) - at_least(**c, least)).abs() <= p.deltas[**b] + policy.eps_guard);
                beyond && p.deltas[**b] > 0.0
            });
            let found = corrupt.map(|(b, _)| *b);
            let c = &mut w.certificates[h];
            let (bytes, rung, cause) = &first[h];
            (c.rung, c.cause) = (*rung, *cause);
            (c.e_key, c.e_val, c.cap) = (bound.e_key(), e_val, f64::INFINITY);
            c.bytes.packed += bytes.packed;
            c.bytes.host += bytes.host;
            c.keep_candidate();
            if !ranked {
                c.cause = Cause::Ranking;
                w.dense[h] = true;
            }
            if found.is_some() {
                w.corrupt = found;
            }
        }
        Ok(())
    }
}
