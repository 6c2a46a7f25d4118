//! SmartKV for the items of one layer, step by step: what it was told, when it decides, and what. It decides from what it is told and
//! nothing else, so that a log of the [`Told`] is enough to make every decision again ([`Controller::tell`]).
use super::{Hysteresis, Importance, ImportanceRule, Items, Ladder, WidthAllocator, interval, kl, moved};
use crate::danger::{Gate, Gating};
use crate::error::length;
use crate::{BitSet, ControlError};

/// Parameters, math.md (9.6) to (9.15).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rule {
    /// Attention to scores.
    pub importance: ImportanceRule,
    /// An item may change once its rank has been so many percentile points away from where it was,
    pub points: f64,
    /// for so many checks,
    pub checks: u32,
    /// of a rank that keeps this share from check to check.
    pub keep_rank: f64,
    /// Exponent of a width's worth.
    pub alpha: f64,
    /// So many first and so many last items have the top level, always.
    pub protected: [usize; 2],
    /// Steps between decisions of the first layers (9.14).
    pub base: usize,
    /// Divergence of scores from those of the last decision that brings the next one forward,
    pub drift: f64,
    /// and percent of items whose rank moved by `points` (9.15).
    pub drift_moved: f64,
    /// Steps between looks at the drift; a look sorts the scores.
    pub drift_every: usize,
    /// The gate over items whose rank is in danger (9.24): they do not fall, unless the budget cannot do without; `None` for no gate.
    pub gate: Option<Gating>,
}

impl Default for Rule {
    /// The source's, with drift looked at every 8 steps and one item protected at either end.
    fn default() -> Self {
        Self {
            importance: ImportanceRule::default(),
            points: 5.0,
            checks: 2,
            keep_rank: 0.5,
            alpha: 0.6,
            protected: [1, 1],
            base: 16,
            drift: 0.02,
            drift_moved: 10.0,
            drift_every: 8,
            gate: None,
        }
    }
}

/// Why a decision was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trigger {
    /// The first.
    First,
    /// The layer's interval is over (9.14).
    Interval,
    /// Scores are no longer what they were (9.15).
    Drift,
    /// There are new items, and with them more bytes than the budget.
    Budget,
}

/// What a controller is told at once.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Told<'a> {
    /// Items that are still those they were when it was told last; items behind them are new.
    pub kept: usize,
    /// Attention of a step since then, `[head][item]`; `None` if there was none.
    pub attention: Option<&'a [f64]>,
    /// Level of every item: which of the ladder's.
    pub levels: &'a [u8],
    /// Danger of every item that attention is told of (9.23); `None` without a gate, or if there was no step.
    pub danger: Option<&'a [f64]>,
}

/// What is to be, and why.
#[derive(Debug, Clone, PartialEq)]
pub struct Decision {
    /// What made it.
    pub trigger: Trigger,
    /// Level of each item that attention was seen of. `None` if not even the lowest levels fit the budget: everything stays.
    pub levels: Option<Vec<u8>>,
    /// Bytes of them; without levels, what the budget would have to be.
    pub bytes: f64,
    /// The budget was too small for what may not fall: it fell.
    pub forced: bool,
}

/// One layer's state.
#[derive(Debug, Clone)]
pub struct Controller {
    rule: Rule,
    layer: usize,
    importance: Importance,
    hysteresis: Hysteresis,
    scores: Vec<f64>,
    /// Scores of the last decision.
    last: Vec<f64>,
    /// Levels that were told last.
    levels: Vec<u8>,
    gates: Vec<Gate>,
    /// Items that were given levels; the others take any.
    given: usize,
    /// Steps seen, and those of the last decision and of the last look at the drift.
    steps: u64,
    decided: u64,
    looked: u64,
}

/// Bytes of one item in all lists together: two scores, what importance and hysteresis remember, ranks, a level, and two bits.
const ITEM_BYTES: usize = 8 + 8 + 32 + 24 + 12 + 1 + 1;

impl Controller {
    /// Nothing seen, for attention of `heads` heads.
    ///
    /// # Errors
    /// [`ControlError::Invalid`] for a rule with a parameter that it may not have.
    pub fn new(layer: usize, heads: usize, rule: Rule) -> Result<Self, ControlError> {
        let positive = [rule.drift, rule.drift_moved, rule.alpha].iter().all(|x| *x >= 0.0);
        let gate = rule.gate.is_none_or(|gate| gate.gate().is_ok());
        if !(positive && gate) || rule.base == 0 || rule.drift_every == 0 {
            return Err(ControlError::Invalid { what: "rule", index: 0 });
        }
        Ok(Self {
            rule,
            layer,
            importance: Importance::new(heads, rule.importance)?,
            hysteresis: Hysteresis::new(rule.points, rule.checks, rule.keep_rank)?,
            scores: Vec::new(),
            last: Vec::new(),
            levels: Vec::new(),
            gates: Vec::new(),
            given: 0,
            steps: 0,
            decided: 0,
            looked: 0,
        })
    }

    /// At least the bytes of a controller of so many items and heads: its lists grow by doubling.
    pub const fn bytes(items: usize, heads: usize) -> usize {
        let items = if items < 4 { 4 } else { items };
        size_of::<Self>() + heads * 8 + items.saturating_mul(2 * ITEM_BYTES)
    }

    /// Items seen.
    pub fn items(&self) -> usize {
        self.importance.len()
    }

    /// Scores of all items at the last decision or look at the drift.
    pub fn scores(&self) -> &[f64] {
        &self.scores
    }

    /// Takes a step's attention, and decides if it is time: levels of all items within `budget` bytes an item. What became of them is
    /// told with the next call: items whose level is another then have changed, others may still.
    ///
    /// Costs a few operations per head and item; a decision, and a look at the drift, a few sorts of the items.
    ///
    /// # Errors
    /// [`ControlError`] for attention or levels that cannot be: nothing changed but what was forgotten.
    pub fn tell(
        &mut self,
        allocator: &mut WidthAllocator,
        ladder: &Ladder<'_>,
        told: &Told<'_>,
        budget: f64,
    ) -> Result<Option<Decision>, ControlError> {
        self.importance.truncate(told.kept);
        self.hysteresis.truncate(told.kept);
        self.last.truncate(told.kept);
        self.levels.truncate(told.kept);
        self.gates.truncate(told.kept);
        self.given = self.given.min(told.kept);
        for (item, (now, before)) in told.levels.iter().zip(&self.levels).enumerate() {
            if now != before {
                self.hysteresis.changed(item);
            }
        }
        self.levels.clear();
        self.levels.extend_from_slice(told.levels);
        if let Some(attention) = told.attention {
            self.importance.update(attention, self.steps)?;
            self.steps += 1;
        }
        let n = self.importance.len();
        let levels =
            told.levels.get(..n).ok_or(ControlError::Length { what: "levels", got: told.levels.len(), need: n })?;
        if let (Some(gate), Some(danger)) = (self.rule.gate, told.danger) {
            length("danger", danger.len(), n)?;
            self.gates.resize_with(n, || gate.gate().unwrap_or_default());
            self.gates.iter_mut().zip(danger).for_each(|(gate, danger)| _ = gate.step(*danger));
        }
        let cost = |level: &u8| ladder.cost.get(usize::from(*level)).copied().unwrap_or(f64::NAN);
        let within = levels.iter().map(cost).sum::<f64>() <= budget * n as f64;
        let Some(trigger) = self.trigger(within)? else { return Ok(None) };
        self.importance.scores(self.steps - 1, &mut self.scores);
        self.hysteresis.check(&self.scores)?;
        let mut held = BitSet::new(n);
        for item in (0..self.gates.len()).filter(|item| self.gates[*item].is_on()) {
            held.insert(item);
        }
        let items = Items {
            score: &self.scores,
            previous: &levels[..self.given],
            may_rise: self.hysteresis.may_rise(),
            may_fall: self.hysteresis.may_fall(),
            protected: self.rule.protected,
            held: (!held.is_empty()).then_some((&held, levels)),
        };
        let decision = match allocator.solve_closely(ladder, &items, self.rule.alpha, budget * n as f64) {
            Ok(found) => {
                self.given = n;
                let levels = Some(found.level.to_vec());
                Decision { trigger, levels, bytes: found.used, forced: found.forced }
            }
            Err(ControlError::BelowFloor { floor, .. }) => {
                Decision { trigger, levels: None, bytes: floor, forced: false }
            }
            Err(error) => return Err(error),
        };
        (self.decided, self.looked) = (self.steps, self.steps);
        self.last.clone_from(&self.scores);
        Ok(Some(decision))
    }

    /// What brings a decision, if anything does. Scores are made where the drift is looked at.
    fn trigger(&mut self, within: bool) -> Result<Option<Trigger>, ControlError> {
        let (n, since) = (self.importance.len(), self.steps - self.decided);
        if n == 0 || since == 0 {
            return Ok(None);
        }
        if self.decided == 0 {
            return Ok(Some(Trigger::First));
        }
        if since >= interval(self.layer, n, self.rule.base) as u64 {
            return Ok(Some(Trigger::Interval));
        }
        if !within && n > self.last.len() {
            return Ok(Some(Trigger::Budget));
        }
        if self.steps - self.looked >= self.rule.drift_every as u64 {
            self.looked = self.steps;
            self.importance.scores(self.steps - 1, &mut self.scores);
            let far = kl(&self.scores, &self.last)? > self.rule.drift
                || moved(&self.scores, &self.last, self.rule.points)? > self.rule.drift_moved;
            return Ok(far.then_some(Trigger::Drift));
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use certkv_core::hash::splitmix64;

    const LADDER: Ladder<'static> = Ladder { bits: &[4, 6, 8, 16], cost: &[36.0, 52.0, 68.0, 132.0] };

    /// Attention of two heads over `n` items: most of it on `hot`, of the others more on later ones.
    fn attention(n: usize, hot: usize, step: u64) -> Vec<f64> {
        let weigh = |i: usize| {
            let noise = (splitmix64(step << 16 | i as u64) % 1000) as f64 / 1000.0;
            if i % n == hot { 8.0 } else { 0.2 + 0.05 * (i % n) as f64 + 0.02 * noise }
        };
        let rows: Vec<f64> = (0..2 * n).map(weigh).collect();
        let sums: Vec<f64> = rows.chunks_exact(n).map(|row| row.iter().sum()).collect();
        rows.iter().enumerate().map(|(i, x)| x / sums[i / n]).collect()
    }

    /// A run with growing items and a cut; what was told, and what was decided.
    fn run(steps: u64, mut also: impl FnMut(&Told<'_>, &Option<Decision>)) -> Vec<u8> {
        let mut controller = Controller::new(0, 2, Rule::default()).unwrap();
        let (mut allocator, mut levels) = (WidthAllocator::new(), vec![3u8; 20]);
        for step in 0..steps {
            let kept = if step == 70 { 15 } else { levels.len() };
            levels.truncate(kept);
            levels.resize(20 + step.min(200) as usize / 16, 3);
            let rows = attention(levels.len(), if step < 100 { 5 } else { 9 }, step);
            let told = Told { kept, attention: (step % 7 != 6).then_some(&rows[..]), levels: &levels, danger: None };
            // Nothing was seen of items that are new in a step without attention.
            let decided = controller.tell(&mut allocator, &LADDER, &told, 60.0).unwrap();
            also(&told, &decided);
            if let Some(Decision { levels: Some(to), .. }) = decided {
                // A move fails now and then: its item stays.
                for (item, level) in
                    to.into_iter().enumerate().filter(|(item, _)| !(*item as u64 + step).is_multiple_of(5))
                {
                    levels[item] = level;
                }
            }
        }
        levels
    }

    #[test]
    fn attention_brings_levels_within_the_budget() {
        let (mut triggers, mut most) = (Vec::new(), 0.0f64);
        let levels = run(400, |told, decided| {
            if let Some(decision) = decided {
                triggers.push(decision.trigger);
                let n = decision.levels.as_ref().unwrap().len();
                assert!(decision.bytes <= 60.0 * n as f64 && n <= told.levels.len());
                most = most.max(decision.bytes / n as f64);
            }
        });
        assert!(most > 55.0, "the budget is used: {most}");
        assert_eq!(triggers[0], Trigger::First);
        for wanted in [Trigger::Interval, Trigger::Drift, Trigger::Budget] {
            assert!(triggers.contains(&wanted), "{wanted:?} never came");
        }
        assert!(triggers.len() < 100, "{}", triggers.len());
        // What is attended to, and what is protected.
        assert_eq!((levels[9], levels[0]), (3, 3));
        assert!(levels[1..5].iter().all(|level| *level < 2), "{levels:?}");
    }

    /// A log of what a controller was told is enough to make its decisions again; another log makes others.
    #[test]
    fn a_log_replays_to_the_same_decisions() {
        type Entry = (usize, Option<Vec<f64>>, Vec<u8>, Option<Decision>);
        let mut log: Vec<Entry> = Vec::new();
        run(300, |told, decided| {
            log.push((told.kept, told.attention.map(<[f64]>::to_vec), told.levels.to_vec(), decided.clone()));
        });
        let replay = |log: &[Entry]| {
            let mut controller = Controller::new(0, 2, Rule::default()).unwrap();
            let mut allocator = WidthAllocator::new();
            log.iter().all(|(kept, attention, levels, decided)| {
                let told = Told { kept: *kept, attention: attention.as_deref(), levels, danger: None };
                controller.tell(&mut allocator, &LADDER, &told, 60.0).unwrap() == *decided
            })
        };
        assert!(replay(&log));
        let mut other = log.clone();
        for attention in other.iter_mut().skip(120).filter_map(|entry| entry.1.as_mut()) {
            attention.fill(0.01);
        }
        assert!(!replay(&other), "the log matters");
    }

    /// An item in danger keeps its level, also if nobody attends to it, unless the budget cannot do without it.
    #[test]
    fn a_gate_holds_an_item_up() {
        let run = |gate: Option<Gating>, budget: f64, on: usize| {
            let rule = Rule { gate, ..Rule::default() };
            let (mut controller, mut allocator) = (Controller::new(0, 2, rule).unwrap(), WidthAllocator::new());
            let (mut levels, mut forced) = (vec![3u8; 20], false);
            for step in 0..80 {
                let (rows, danger) = (attention(20, 5, step), [0.1; 20].map(|d: f64| d));
                let danger: Vec<f64> =
                    danger.iter().enumerate().map(|(i, d)| if i > 0 && i <= on { 1.1 } else { *d }).collect();
                let told = Told { kept: 20, attention: Some(&rows), levels: &levels, danger: Some(&danger) };
                if let Some(decision) = controller.tell(&mut allocator, &LADDER, &told, budget).unwrap() {
                    forced |= decision.forced;
                    levels = decision.levels.unwrap();
                }
            }
            (levels[1], levels[2], forced)
        };
        let gate = Some(Gating::default());
        assert!(run(None, 60.0, 1).0 < 2);
        assert_eq!(run(gate, 60.0, 1), (3, run(gate, 60.0, 1).1, false));
        assert!(run(gate, 60.0, 1).1 < 2, "the others are not held");
        assert!(run(gate, 60.0, 18).2, "what is held is above the budget");
        let rule = Rule { gate: Some(Gating { protect: 0.5, release: 0.5 }), ..Rule::default() };
        assert!(Controller::new(0, 1, rule).is_err());
        let mut controller = Controller::new(0, 1, Rule { gate, ..Rule::default() }).unwrap();
        let told = Told { kept: 2, attention: Some(&[0.5, 0.5]), levels: &[3, 3], danger: Some(&[0.1]) };
        let refused = controller.tell(&mut WidthAllocator::new(), &LADDER, &told, 60.0);
        assert!(matches!(refused, Err(ControlError::Length { what: "danger", .. })));
    }

    #[test]
    fn what_cannot_be_is_refused_and_a_small_budget_said() {
        for rule in [
            Rule { base: 0, ..Rule::default() },
            Rule { drift_every: 0, ..Rule::default() },
            Rule { alpha: -1.0, ..Rule::default() },
            Rule { drift: f64::NAN, ..Rule::default() },
            Rule { keep_rank: 1.0, ..Rule::default() },
        ] {
            assert!(Controller::new(0, 1, rule).is_err(), "{rule:?}");
        }
        let mut controller = Controller::new(0, 1, Rule::default()).unwrap();
        let mut allocator = WidthAllocator::new();
        let mut tell = |attention: &[f64], levels: &[u8], budget: f64| {
            let told = Told { kept: 3, attention: Some(attention), levels, danger: None };
            controller.tell(&mut allocator, &LADDER, &told, budget)
        };
        assert!(tell(&[0.5, 0.2, f64::NAN], &[3; 3], 60.0).is_err());
        assert!(matches!(tell(&[0.5, 0.2, 0.3], &[3; 2], 60.0), Err(ControlError::Length { need: 3, .. })));
        // Two protected items at the top and one at the bottom are 300 bytes.
        let small = tell(&[0.5, 0.2, 0.3], &[3; 3], 99.0).unwrap().unwrap();
        assert_eq!((small.levels, small.bytes), (None, 300.0));
        assert!(Controller::bytes(100, 4) > 100 * ITEM_BYTES);
    }
}
