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
use certkv_bound::checks::{boundary_ok, rank_consistent};
use certkv_bound::published::{PublishedBound, published_value_term};
use certkv_bound::{BytesRead, Cause, Rung};
use certkv_control::BitSet;
use certkv_control::policy::Seed000;
use certkv_control::seed000::{promote_keys, promote_values};
use certkv_core::ErrorSummary;

/// First-phase numbers of one query head.
#[derive(Debug, Clone, Default)]
pub(crate) struct Phase1 {
    /// Normalised block masses from codes.
    masses: Vec<f64>,
    /// Block log-masses from codes.
    logs: Vec<f64>,
    /// `Delta_b`.
    deltas: Vec<f64>,
    /// Keys promoted for this head (the pass promotes the union over the group).
    keys: Vec<u32>,
    delta_max: f64,
    expanded: bool,
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
        let heads = w.certificates.len();
        w.phase1.resize_with(heads, Phase1::default);
        let exact = w.sets.keys.clone();
        let mut keys = exact.clone();
        let mut values = w.sets.values.clone();
        let etas: Vec<f64> = (0..self.blocks).map(|b| f64::from(self.summary(b).eta)).collect();
        for h in 0..heads {
            let scale = HeadScale::of(&w.partial, h, 0.0, 0.0);
            let mut p = core::mem::take(&mut w.phase1[h]);
            p.masses.clear();
            p.logs.clear();
            p.deltas.clear();
            for b in 0..self.blocks {
                let mass = w.masses.get(h, b);
                p.masses.push(mass.map_or(0.0, |m| scale.masses(&m).0));
                p.deltas.push(mass.map_or(0.0, |m| f64::from(m.delta + m.zeta)));
                p.logs.push(log_mass(w, h, b));
            }
            p.delta_max = p.deltas.iter().copied().fold(0.0, f64::max);
            p.expanded = promote_keys(policy, &p.masses, p.delta_max, &exact, &mut p.keys)?;
            let mut wanted = Vec::new();
            promote_values(policy, &p.masses, &etas, &values, &mut wanted);
            for &b in &p.keys {
                keys.insert(b as usize);
            }
            let c = &mut w.certificates[h];
            if p.expanded {
                (c.rung, c.cause) = (Rung::MoreKeys, Cause::KeyError);
            }
            if !wanted.is_empty() {
                (c.rung, c.cause) = (Rung::ExactValues, Cause::ValueError);
            }
            wanted.iter().for_each(|&b| {
                values.insert(b as usize);
            });
            w.phase1[h] = p;
        }
        (w.sets.keys, w.sets.values) = (keys, values);
        Ok(())
    }

    fn summary(&self, block: usize) -> ErrorSummary {
        let record = self.pages.record(self.group, block, self.head);
        let layout = self.group.layout_at(self.pages.level(block));
        ErrorSummary::from_bytes(record.get(layout.summary.clone()).unwrap_or(&[]))
    }

    /// Phase 2 with the chosen sets, Eq. 15, and the checks that send a head to rung 3.
    fn attend_mixed(&self, policy: &Seed000, w: &mut HeadWork) -> Result<(), Error> {
        let first: Vec<BytesRead> = w.certificates.iter().map(|c| c.bytes).collect();
        self.pass(w)?;
        let rungs: Vec<_> = w.certificates.iter().map(|c| (c.rung, c.cause)).collect();
        self.certify(w)?;
        self.count_pass(w);
        let summaries: Vec<ErrorSummary> = (0..self.blocks).map(|b| self.summary(b)).collect();
        let etas = |values: &BitSet| -> Vec<f64> {
            let eta = |b: usize| if values.contains(b) { 0.0 } else { f64::from(summaries[b].eta) };
            (0..self.blocks).map(eta).collect()
        };
        let etas = etas(&w.sets.values);
        let value_max = summaries.iter().map(|s| f64::from(s.value_norm)).fold(0.0, f64::max);
        for h in 0..w.certificates.len() {
            let scale = HeadScale::of(&w.partial, h, 0.0, 0.0);
            let p = &w.phase1[h];
            let achieved: Vec<f64> =
                (0..self.blocks).map(|b| w.masses.get(h, b).map_or(0.0, |m| scale.masses(&m).0)).collect();
            let tail = |b: &usize| !w.sets.keys.contains(*b);
            let e_val = published_value_term(&achieved, &etas);
            let bound = PublishedBound {
                tail_mass: (0..self.blocks).filter(tail).map(|b| p.masses[b]).sum(),
                delta_max: p.delta_max,
                value_max,
                e_val,
                inflation: policy.inflation,
            };
            let promoted: Vec<usize> = w.sets.keys.iter().collect();
            let exact: Vec<f64> = promoted.iter().map(|&b| log_mass(w, h, b)).collect();
            let coded: Vec<f64> = promoted.iter().map(|&b| p.logs[b]).collect();
            let rest: Vec<usize> = (0..self.blocks).filter(tail).collect();
            // Of masses so far below the largest no more is said than that.
            let tails = rest.iter().map(|&b| p.logs[b]);
            let least = least_known(exact.iter().chain(&coded).copied().chain(tails.clone()));
            let upper: Vec<f64> = tails.map(|log| at_least(log, least)).collect();
            let widths: Vec<f64> = rest.iter().map(|&b| p.deltas[b]).collect();
            let r = policy.rank.min(promoted.len());
            let ranked = policy.rank == 0
                || (rank_consistent(&exact, &coded, r) && boundary_ok(&exact, &upper, &widths, r, policy.eps_guard));
            let corrupt = promoted.iter().zip(exact.iter().zip(&coded)).find(|(b, (e, c))| {
                let beyond = !((at_least(**e, least) - at_least(**c, least)).abs() <= p.deltas[**b] + policy.eps_guard);
                beyond && p.deltas[**b] > 0.0
            });
            let found = corrupt.map(|(b, _)| *b);
            let c = &mut w.certificates[h];
            (c.rung, c.cause) = rungs[h];
            (c.e_key, c.e_val, c.cap) = (bound.e_key(), e_val, f64::INFINITY);
            c.bytes.packed += first[h].packed;
            c.bytes.host += first[h].host;
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
