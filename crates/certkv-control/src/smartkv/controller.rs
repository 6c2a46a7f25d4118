//! SmartKV for the items of one layer, step by step: what it was told, when it decides, and what. It decides from what it is told and
//! nothing else, so that a log of the [`Told`] is enough to make every decision again ([`Controller::tell`]).
use super::{Hysteresis, Importance, ImportanceRule, Items, Ladder, WidthAllocator, interval, kl, moved};
use crate::danger::{Gate, Gating};
use crate::error::{finite, length};
use crate::spent::spent;
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

/// How far scores are from those of the last decision, math.md (9.15).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Drift {
    /// [`kl`].
    pub divergence: f64,
    /// [`moved`], in percent.
    pub moved: f64,
}

/// What a controller is told of a step whose attention is made to scores elsewhere, by the same equations ([`Controller::tell_apart`]). What is not asked for by
/// [`Controller::needs`] and [`Controller::trigger`] may be left out.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Apart<'a> {
    /// As [`Told::kept`].
    pub kept: usize,
    /// Items that the step attended to: those that were seen, and new ones.
    pub items: usize,
    /// As [`Told::levels`].
    pub levels: Option<&'a [u8]>,
    /// How far the scores are, of the items that had one in the last decision, from what they were then.
    pub drift: Option<Drift>,
    /// Scores of all items.
    pub scores: Option<&'a [f64]>,
}

/// What a controller wants to be told of a step; all of it, where it decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Needs {
    /// Levels.
    pub levels: bool,
    /// How far scores are from those of the last decision.
    pub drift: bool,
    /// Scores.
    pub scores: bool,
}

/// What a step brings, as far as clocks know.
enum Due {
    Nothing,
    Surely(Trigger),
    /// If there are more bytes than the budget, and if scores have drifted: each where it is to be looked at.
    Perhaps {
        budget: bool,
        drift: bool,
    },
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
    /// Items seen by attention that is told of elsewhere.
    apart: usize,
    /// Steps seen, and those of the last decision and of the last look at the drift.
    steps: u64,
    decided: u64,
    looked: u64,
}

/// Bytes of one item in all lists together: two scores, what importance and hysteresis remember, ranks, a level, and two bits.
const ITEM_BYTES: usize = 8 + 8 + 24 + 24 + 12 + 1 + 1;

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
            apart: 0,
            steps: 0,
            decided: 0,
            looked: 0,
        })
    }

    /// At least the bytes of a controller of so many items and heads: its lists grow by doubling.
    pub const fn bytes(items: usize, heads: usize) -> usize {
        let (items, rows) = (if items < 4 { 4 } else { items }, if heads < 4 { 4 } else { heads });
        size_of::<Self>() + rows * 16 + items.saturating_mul(2 * ITEM_BYTES)
    }

    /// Items seen.
    pub fn items(&self) -> usize {
        self.importance.len().max(self.apart)
    }

    /// Steps whose attention was seen.
    pub fn steps(&self) -> u64 {
        self.steps
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
        self.forget(told.kept);
        self.take(told.levels);
        let seen = self.importance.len();
        if let Some(attention) = told.attention {
            self.importance.update(attention, self.steps)?;
            self.steps += 1;
        }
        let n = self.importance.len();
        let levels = all(told.levels, n)?;
        if let (Some(gate), Some(danger)) = (self.rule.gate, told.danger) {
            length("danger", danger.len(), n)?;
            self.gates.resize_with(n, || gate.gate().unwrap_or_default());
            self.gates.iter_mut().zip(danger).for_each(|(gate, danger)| _ = gate.step(*danger));
        }
        let trigger = match self.due(self.steps, (seen, n), self.last.len()) {
            Due::Nothing => None,
            Due::Surely(trigger) => Some(trigger),
            Due::Perhaps { budget: true, .. } if !within(levels, ladder, budget) => Some(Trigger::Budget),
            Due::Perhaps { drift: false, .. } => None,
            Due::Perhaps { .. } => {
                self.looked = self.steps;
                self.importance.scores(self.steps - 1, &mut self.scores);
                let divergence = kl(&self.scores, &self.last)?;
                let moved = moved(&self.scores, &self.last, self.rule.points)?;
                self.has_drifted(&Drift { divergence, moved }).then_some(Trigger::Drift)
            }
        };
        let Some(trigger) = trigger else { return Ok(None) };
        self.importance.scores(self.steps - 1, &mut self.scores);
        self.decide(trigger, allocator, ladder, levels, budget).map(Some)
    }

    /// What [`Controller::tell_apart`] has to be told of a step that attends to `items` items, of which `kept` are those they were.
    pub fn needs(&self, kept: usize, items: usize) -> Needs {
        match self.due_apart(kept, items) {
            Due::Nothing => Needs::default(),
            Due::Surely(_) => Needs { levels: true, drift: false, scores: true },
            Due::Perhaps { budget, drift } => Needs { levels: budget, drift, scores: false },
        }
    }

    /// Whether this step brings a decision, for which levels and scores are wanted; and what does.
    ///
    /// # Errors
    /// [`ControlError::Length`] if what [`Controller::needs`] asks for is not there.
    pub fn trigger(&self, ladder: &Ladder<'_>, told: &Apart<'_>, budget: f64) -> Result<Option<Trigger>, ControlError> {
        let missing = |what, need| ControlError::Length { what, got: 0, need };
        Ok(match self.due_apart(told.kept, told.items) {
            Due::Nothing => None,
            Due::Surely(trigger) => Some(trigger),
            Due::Perhaps { budget: looks, drift } => {
                let over = match told.levels.filter(|_| looks) {
                    Some(levels) => !within(all(levels, told.items)?, ladder, budget),
                    None if looks => return Err(missing("levels", told.items)),
                    None => false,
                };
                let drifted = match told.drift {
                    _ if over || !drift => false,
                    Some(drift) => self.has_drifted(&drift),
                    None => return Err(missing("drift", 1)),
                };
                if over { Some(Trigger::Budget) } else { drifted.then_some(Trigger::Drift) }
            }
        })
    }

    /// As [`Controller::tell`] of a step whose scores are made elsewhere, which the controller asks for when it wants them: [`Controller::needs`] says so, and when
    /// [`Controller::trigger`] says why. A controller is told all of its steps in this way, or none, and has no gate: it is not told what is in danger.
    ///
    /// Costs nothing where no decision is made.
    ///
    /// # Errors
    /// [`ControlError`] for what is missing or cannot be: nothing changed. For a ladder that no decision can be made of, the step has been seen.
    pub fn tell_apart(
        &mut self,
        allocator: &mut WidthAllocator,
        ladder: &Ladder<'_>,
        told: &Apart<'_>,
        budget: f64,
    ) -> Result<Option<Decision>, ControlError> {
        let n = told.items;
        if n < self.apart.min(told.kept) {
            return Err(ControlError::Length { what: "items", got: n, need: self.apart.min(told.kept) });
        }
        let trigger = self.trigger(ladder, told, budget)?;
        if trigger.is_some() {
            all(told.levels.unwrap_or_default(), n)?;
            length("scores", told.scores.map_or(0, <[f64]>::len), n)?;
            finite("scores", told.scores.unwrap_or_default())?;
        }
        if let (None, Due::Perhaps { drift: true, .. }) = (trigger, self.due_apart(told.kept, n)) {
            self.looked = self.steps + 1;
        }
        self.forget(told.kept);
        (self.apart, self.steps) = (n, self.steps + 1);
        let Some(trigger) = trigger else { return Ok(None) };
        let levels = all(told.levels.unwrap_or_default(), n)?;
        self.take(levels);
        self.scores.clear();
        self.scores.extend_from_slice(told.scores.unwrap_or_default());
        self.decide(trigger, allocator, ladder, levels, budget).map(Some)
    }

    /// The sequence was cut: items are still those they were up to `kept`.
    fn forget(&mut self, kept: usize) {
        self.importance.truncate(kept);
        self.hysteresis.truncate(kept);
        self.last.truncate(kept);
        self.levels.truncate(kept);
        self.gates.truncate(kept);
        (self.given, self.apart) = (self.given.min(kept), self.apart.min(kept));
    }

    /// Remembers levels, and starts anew with items that have others than they had.
    fn take(&mut self, levels: &[u8]) {
        for (item, (now, before)) in levels.iter().zip(&self.levels).enumerate() {
            if now != before {
                self.hysteresis.changed(item);
            }
        }
        self.levels.clear();
        self.levels.extend_from_slice(levels);
    }

    /// By `self.scores`.
    fn decide(
        &mut self,
        trigger: Trigger,
        allocator: &mut WidthAllocator,
        ladder: &Ladder<'_>,
        levels: &[u8],
        budget: f64,
    ) -> Result<Decision, ControlError> {
        let n = levels.len();
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
        Ok(decision)
    }

    /// At `steps` steps, with `n` items of which `seen` were seen before, and `compared` had scores at the last decision.
    fn due(&self, steps: u64, (seen, n): (usize, usize), compared: usize) -> Due {
        let since = steps - self.decided;
        if n == 0 || since == 0 {
            return Due::Nothing;
        }
        if self.decided == 0 {
            return Due::Surely(Trigger::First);
        }
        if since >= interval(self.layer, n, self.rule.base) as u64 {
            return Due::Surely(Trigger::Interval);
        }
        let (budget, drift) = (n > seen && n > compared, steps - self.looked >= self.rule.drift_every as u64);
        if budget || drift { Due::Perhaps { budget, drift } } else { Due::Nothing }
    }

    fn due_apart(&self, kept: usize, items: usize) -> Due {
        self.due(self.steps + 1, (self.apart.min(kept), items), self.last.len().min(kept))
    }

    fn has_drifted(&self, drift: &Drift) -> bool {
        drift.divergence > self.rule.drift || drift.moved > self.rule.drift_moved
    }
}

/// Levels of all of `n` items.
fn all(levels: &[u8], n: usize) -> Result<&[u8], ControlError> {
    levels.get(..n).ok_or(ControlError::Length { what: "levels", got: levels.len(), need: n })
}

/// Whether levels are within `budget` bytes an item.
fn within(levels: &[u8], ladder: &Ladder<'_>, budget: f64) -> bool {
    spent(levels, ladder.cost) <= budget * levels.len() as f64
}

#[cfg(test)]
mod tests;
