//! After a certified step: what to have promoted in the next one.
use crate::Error;
use crate::attend::Decode;
use crate::attend::pages::Pages;
use crate::attend::terms;
use crate::attend::watch::{Hint, QUIET_SHARE, negligible_share, worthwhile_share};
use crate::sequence::HeadMemory;
use crate::work::HeadWork;
use certkv_control::Gains;
use certkv_control::guess::GuessRule;
use certkv_control::policy::Certified;
use certkv_core::ErrorSummary;
use certkv_kernel::TILE;

/// How far above the level that the last step would have cut off at a side must lie to be promoted inside the pass: what
/// this leaves out is left to the tolerance or a repair. On the reference model 2 reads the fewest bytes.
const WATCH_MARGIN: f32 = 2.0;

impl Decode<'_> {
    /// Keeps each head's last known bounds and guesses its next sets. Does nothing for a KV head whose heads were all
    /// within tolerance on codes alone.
    pub(crate) fn remember(
        &self,
        policy: &Certified,
        pages: &Pages,
        heads: &mut [HeadWork],
        memory: &mut [HeadMemory],
    ) -> Result<(), Error> {
        let rule = GuessRule { target: policy.guess_target, keep: policy.guess_keep, ..GuessRule::default() };
        let mut jobs: Vec<_> = heads.iter_mut().zip(memory).collect();
        self.cache.pool.run(
            &mut jobs,
            || (),
            |(), head, (w, m)| {
                if let Err(error) = self.remember_head(rule, policy.skip_share as f32, pages, head, w, m) {
                    w.failure = Some(error);
                }
            },
        );
        heads.iter_mut().find_map(|w| w.failure.take()).map_or(Ok(()), Err)
    }

    fn remember_head(
        &self,
        rule: GuessRule,
        skip_share: f32,
        pages: &Pages,
        head: usize,
        w: &mut HeadWork,
        m: &mut HeadMemory,
    ) -> Result<(), Error> {
        let uncoded = self.uncoded.len();
        let call = self.head(pages, head);
        m.hints.clear();
        for h in 0..w.certificates.len() {
            let scale = call.scale(w, h);
            // Logits of one head vary from token to token; an eighth of the last mass is a cautious guess.
            let mass = (f64::from(scale.exponent) + scale.total.log2()) as f32 - 3.0;
            w.gains.clear();
            terms::skips(&scale, &w.masses, h, self.blocks, &mut w.gains);
            let eps = scale.eps as f32;
            let skip = negligible_share(&w.gains, eps, skip_share, &mut w.sums);
            m.hints.push(Hint { eps, radius: scale.radius as f32, mass, share: QUIET_SHARE, skip });
        }
        m.skipped.copy_from(&w.skipped);
        if w.corrupt.is_some() || (w.keys.len() == uncoded && w.values.len() == uncoded && !w.dense.contains(&true)) {
            m.keys.clear();
            m.values.clear();
            return Ok(());
        }
        let blocks = self.blocks;
        let layout = &self.group.layout;
        w.gains.clear();
        w.tolerances.clear();
        for h in 0..w.certificates.len() {
            let scale = call.scale(w, h);
            let mut eps = scale.eps;
            let (delta, lambda) = (&mut m.delta[h], &mut m.lambda[h]);
            let start = w.gains.len();
            terms::gains(&scale, &w.masses, h, blocks, &mut w.gains);
            for (t, tile) in w.masses.block_tiles().iter().enumerate() {
                let (Some(r), first) = (w.masses.head_tile(h, t), t * TILE) else { continue };
                for i in 0..blocks.saturating_sub(first).min(TILE) {
                    if tile.exact_keys >> i & 1 == 0 {
                        (delta[first + i], lambda[first + i]) = (r.delta[i], r.lambda[i]);
                    }
                }
            }
            // Sides that were exact are judged by what is known of their codes.
            for b in w.keys.iter() {
                if let Some(mass) = w.masses.get(h, b) {
                    w.gains[start + b] = terms::key_gain(&scale, &mass, delta[b], lambda[b]);
                }
            }
            for b in w.values.iter().chain(w.skipped.iter()) {
                if let Some(mass) = w.masses.get(h, b) {
                    if mass.skipped_values {
                        // Skipped again, it will take up as much of the tolerance again.
                        eps -= f64::from(w.gains[start + blocks + b]);
                    }
                    let record = pages.record(self.group, b, head);
                    let summary = ErrorSummary::from_bytes(record.get(layout.summary.clone()).unwrap_or(&[]));
                    w.gains[start + blocks + b] = if mass.skipped_values {
                        0.0
                    } else {
                        terms::value_gain(&scale, &mass, summary.eta, summary.sop)
                    };
                }
            }
            w.tolerances.push(eps.max(0.0));
        }
        for ((hint, gains), eps) in m.hints.iter_mut().zip(w.gains.chunks_exact(2 * blocks.max(1))).zip(&w.tolerances) {
            let level = worthwhile_share(gains, *eps as f32, &mut w.sums) * *eps as f32;
            hint.share = level / hint.eps * WATCH_MARGIN;
        }
        call.costs(w, false);
        w.current.resize(0);
        w.current.resize(2 * blocks);
        for b in w.keys.iter() {
            w.current.insert(b);
        }
        for b in w.values.iter() {
            w.current.insert(blocks + b);
        }
        let gains = Gains::new(&w.gains, w.certificates.len(), 2 * blocks)?;
        w.guesser.next_set(rule, gains, &w.cost, &w.tolerances, &w.current, &mut w.next)?;
        m.keys.clear();
        m.values.clear();
        for i in w.next.iter() {
            if i < blocks {
                m.keys.insert(i)
            } else {
                m.values.insert(i - blocks)
            };
        }
        Ok(())
    }
}
