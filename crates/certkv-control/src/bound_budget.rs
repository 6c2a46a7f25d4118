//! Levels for the blocks of all layers within so many bytes, so that the certificates' own terms are least, and what is lacking where a
//! tolerance is not met: math.md (9.25) to (9.27).
//!
//! Every byte has one price, whichever layer spends it: a layer's share is what its blocks take at that price.
use crate::ControlError;
use crate::allocate::{Allocator, Choices};
use crate::error::{finite, length};
use crate::smartkv::Trigger;
use crate::spent::{in_ladder, spent};
use crate::standing::{Rest, Standing};
use core::cell::OnceCell;

/// What each level of each block counts for in the bounds of one layer's query heads, as shares of the norm of the head's output. Levels are
/// those of a ladder, which ascends.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Terms {
    /// Query heads.
    pub heads: usize,
    /// `g_b D_b` and the value term (5.10), `[head][block][level]`.
    pub loss: Vec<f64>,
    /// `h_b` (5.9), in the same order.
    pub shrink: Vec<f64>,
    /// What no bound of the head exceeds (5.14).
    pub cap: Vec<f64>,
}

/// Parameters.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BoundRule {
    /// Bound of every head that is asked for, as a share of the norm of its output.
    pub epsilon: f64,
    /// Steps between plans: times that the planner is told.
    pub every: usize,
    /// Share of the terms that a plan has to save to be made, where nothing exceeds the bytes.
    pub gain: f64,
}

impl Default for BoundRule {
    fn default() -> Self {
        Self { epsilon: 0.05, every: 16, gain: 0.05 }
    }
}

impl BoundRule {
    /// Checks every parameter.
    ///
    /// # Errors
    /// [`ControlError::Invalid`] for one that it may not have.
    pub fn validated(self) -> Result<Self, ControlError> {
        let right = self.epsilon > 0.0 && self.epsilon.is_finite() && (0.0..1.0).contains(&self.gain) && self.every > 0;
        if right { Ok(self) } else { Err(ControlError::Invalid { what: "rule", index: 0 }) }
    }
}

/// What a plan lacks.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Lacking {
    /// Every head's bound is within the tolerance.
    Nothing,
    /// So many bytes more, and every bound would be.
    Bytes(f64),
    /// No bytes help: at the best levels of all blocks the largest bound is this.
    Bound(f64),
    /// Not even the lowest levels fit: so many bytes more they take.
    Floor(f64),
}

/// Levels, and what they come to.
#[derive(Debug, Clone, PartialEq)]
pub struct BoundPlan {
    /// Level of each block, by layer. Where even the lowest do not fit they are the lowest.
    pub levels: Vec<Vec<u8>>,
    /// Bytes of them.
    pub bytes: f64,
    /// Sum of the terms of all heads.
    pub loss: f64,
    /// The largest bound of a head, as a share of its output's norm.
    pub bound: f64,
    /// What is lacking of the tolerance.
    pub lacking: Lacking,
}

/// What one layer says at once.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Told<'a> {
    /// Blocks that are still those they were when it was told last; blocks behind them are new.
    pub kept: usize,
    /// Its terms in a step since then; `None` if there was none, or where [no plan is due](Planner::is_due).
    pub terms: Option<&'a Terms>,
    /// Level of every block.
    pub levels: &'a [u8],
}

/// One layer's clock: how often its planner was told, and when it planned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Clock {
    steps: u64,
    decided: u64,
    asked: usize,
    rest: Rest,
}

impl Clock {
    /// Whether the next step, behind which the layer's blocks stand so, is nothing but a tick. If it is to all layers, [`Clock::pass`] is what [`Planner::tell`] would come to,
    /// without a look at any block.
    pub fn is_quiet(&self, now: &Standing, rule: &BoundRule) -> bool {
        self.rest.lasts(now) && self.by_itself(rule).is_none()
    }

    /// Takes such a step.
    pub fn pass(&mut self) {
        self.steps += 1;
    }

    /// What brings a plan of the next step's terms whatever there is of blocks.
    fn by_itself(&self, rule: &BoundRule) -> Option<Trigger> {
        match () {
            () if self.decided == 0 => Some(Trigger::First),
            () if self.steps + 1 - self.decided >= rule.every as u64 => Some(Trigger::Interval),
            () => None,
        }
    }
}

/// Makes plans; holds work buffers and nothing else.
#[derive(Debug, Clone, Default)]
pub struct Planner {
    allocator: Allocator,
    cost: Vec<f64>,
    loss: Vec<f64>,
}

/// Halvings of a range of bytes.
const HALVINGS: usize = 24;

impl Planner {
    /// Empty buffers.
    pub fn new() -> Self {
        Self::default()
    }

    /// The fewest bytes, at most `bytes`, at which every head's bound is at most `epsilon`; where those are too few, what loses least within
    /// them, and what is lacking. `cost` is by level. Terms are of the step that they were taken from: what a later step certifies is its own.
    ///
    /// Costs up to 48 sorts of the blocks.
    ///
    /// # Errors
    /// [`ControlError::Length`], or [`ControlError::Invalid`] for numbers that cannot be.
    pub fn plan(
        &mut self,
        layers: &[&Terms],
        cost: &[f64],
        epsilon: f64,
        bytes: f64,
    ) -> Result<BoundPlan, ControlError> {
        for (what, x) in [("epsilon", epsilon), ("bytes", bytes)] {
            if x.is_nan() {
                return Err(ControlError::Invalid { what, index: 0 });
            }
        }
        let all = self.sum(layers, cost)?;
        let (lowest, top) =
            (cost.iter().copied().fold(f64::INFINITY, f64::min), cost.iter().copied().fold(0.0, f64::max));
        let [floor, ceiling] = [lowest, top].map(|each| if all == 0 { 0.0 } else { each * all as f64 });
        if !(floor <= bytes) {
            let mut plan = self.at(layers, cost.len(), floor)?;
            plan.lacking = Lacking::Floor(floor - bytes);
            return Ok(plan);
        }
        let plan = self.at(layers, cost.len(), bytes)?;
        if plan.bound <= epsilon {
            return self.fewest(layers, cost.len(), epsilon, floor, plan);
        }
        let best = self.at(layers, cost.len(), ceiling)?;
        let lacking = if best.bound <= epsilon {
            Lacking::Bytes(self.fewest(layers, cost.len(), epsilon, bytes, best)?.bytes - bytes)
        } else {
            Lacking::Bound(best.bound)
        };
        Ok(BoundPlan { lacking, ..plan })
    }

    /// The cheapest plan that keeps to `epsilon`, from `within`, which does, down to `least` bytes.
    fn fewest(
        &mut self,
        layers: &[&Terms],
        levels: usize,
        epsilon: f64,
        least: f64,
        mut within: BoundPlan,
    ) -> Result<BoundPlan, ControlError> {
        let mut low = least;
        for halving in 0..HALVINGS {
            let middle = if halving == 0 { low } else { 0.5 * (low + within.bytes) };
            let plan = self.at(layers, levels, middle)?;
            if plan.bound <= epsilon {
                within = plan;
            } else {
                low = middle;
            }
            if !(within.bytes - low >= 1.0) {
                break;
            }
        }
        within.lacking = Lacking::Nothing;
        Ok(within)
    }

    /// Costs and the terms of all heads together, of every block; how many those are.
    fn sum(&mut self, layers: &[&Terms], cost: &[f64]) -> Result<usize, ControlError> {
        let levels = cost.len();
        self.cost.clear();
        self.loss.clear();
        let mut all = 0;
        for terms in layers {
            let blocks = terms.loss.len().checked_div(terms.heads * levels).unwrap_or(0);
            length("loss", terms.loss.len(), terms.heads * levels * blocks)?;
            length("shrink", terms.shrink.len(), terms.loss.len())?;
            length("cap", terms.cap.len(), terms.heads)?;
            finite("loss", &terms.loss)?;
            finite("shrink", &terms.shrink)?;
            finite("cap", &terms.cap)?;
            let start = self.loss.len();
            self.loss.resize(start + blocks * levels, 0.0);
            for head in terms.loss.chunks_exact((blocks * levels).max(1)) {
                self.loss[start..].iter_mut().zip(head).for_each(|(sum, loss)| *sum += loss);
            }
            (0..blocks).for_each(|_| self.cost.extend_from_slice(cost));
            all += blocks;
        }
        Ok(all)
    }

    /// What loses least within `bytes`.
    fn at(&mut self, layers: &[&Terms], levels: usize, bytes: f64) -> Result<BoundPlan, ControlError> {
        let found = self.allocator.solve(&Choices { levels, cost: &self.cost, loss: &self.loss }, bytes)?;
        let (mut plan, mut rest) = (Vec::with_capacity(layers.len()), found.level);
        for terms in layers {
            let (own, others) = rest.split_at(terms.loss.len().checked_div(terms.heads * levels).unwrap_or(0));
            plan.push(own.iter().map(|level| *level as u8).collect::<Vec<_>>());
            rest = others;
        }
        let bounds = layers.iter().zip(&plan).map(|(terms, own)| bound(terms, own, levels));
        let bound = bounds.fold(0.0, f64::max);
        Ok(BoundPlan { bytes: found.used, loss: found.loss, bound, lacking: Lacking::Nothing, levels: plan })
    }

    /// Whether a plan is made of what is told next, so that the terms of a step are worth taking. `told` needs none.
    pub fn is_due(rule: &BoundRule, clocks: &[&mut Clock], told: &[Told<'_>], cost: &[f64], block: f64) -> bool {
        let over = OnceCell::new();
        let over = || *over.get_or_init(|| is_over(told, cost, block));
        trigger(rule, clocks.iter().map(|clock| **clock), told, over).is_some()
    }

    /// Takes a step of all layers, and plans if it is time: `block` bytes a block and layer on average. What became of it is told with the
    /// next call. Nothing is planned without terms of every layer that has blocks; then a plan stays due.
    ///
    /// # Errors
    /// As [`Planner::plan`].
    pub fn tell(
        &mut self,
        rule: &BoundRule,
        clocks: &mut [&mut Clock],
        told: &[Told<'_>],
        cost: &[f64],
        block: f64,
    ) -> Result<Option<(Trigger, BoundPlan)>, ControlError> {
        length("told", told.len(), clocks.len())?;
        let terms: Option<Vec<&Terms>> = told.iter().map(|told| told.terms).collect();
        for (clock, told) in clocks.iter_mut().zip(told) {
            clock.asked = if told.kept < clock.asked { 0 } else { clock.asked };
        }
        let Some(terms) = terms.filter(|terms| !terms.is_empty()) else {
            let due = Self::is_due(rule, clocks, told, cost, block);
            for (clock, told) in clocks.iter_mut().zip(told) {
                (clock.steps, clock.rest) = (clock.steps + 1, Rest::of(told.levels.len(), due));
            }
            return Ok(None);
        };
        for (terms, told) in terms.iter().zip(told) {
            length("loss", terms.loss.len(), terms.heads * cost.len() * told.levels.len())?;
            in_ladder(told.levels, cost.len())?;
        }
        let over = is_over(told, cost, block);
        let due = trigger(rule, clocks.iter().map(|clock| **clock), told, || over);
        let blocks: usize = told.iter().map(|told| told.levels.len()).sum();
        let plan = due.map(|_| self.plan(&terms, cost, rule.epsilon, block * blocks as f64)).transpose()?;
        for (clock, told) in clocks.iter_mut().zip(told) {
            (clock.steps, clock.rest) = (clock.steps + 1, Rest::of(told.levels.len(), due.is_some()));
            if due.is_some() {
                (clock.decided, clock.asked) = (clock.steps, told.levels.len());
            }
        }
        let (Some(trigger), Some(plan)) = (due, plan) else { return Ok(None) };
        let now: f64 = told.iter().zip(&terms).map(|(told, terms)| lost(terms, told.levels, cost.len())).sum();
        let fewer = plan.lacking == Lacking::Nothing && plan.bytes < used(told, cost) * (1.0 - rule.gain);
        let worth = over || fewer || plan.loss <= now * (1.0 - rule.gain);
        Ok(worth.then_some((trigger, plan)))
    }
}

/// Bytes of all blocks at their levels.
fn used(told: &[Told<'_>], cost: &[f64]) -> f64 {
    told.iter().map(|told| spent(told.levels, cost)).sum()
}

/// Whether they are more than there are, or no number.
fn is_over(told: &[Told<'_>], cost: &[f64], block: f64) -> bool {
    let blocks: usize = told.iter().map(|told| told.levels.len()).sum();
    !(used(told, cost) <= block * blocks as f64)
}

/// What makes a plan of the next step's terms, if anything does.
fn trigger(
    rule: &BoundRule,
    clocks: impl Iterator<Item = Clock>,
    told: &[Told<'_>],
    over: impl Fn() -> bool,
) -> Option<Trigger> {
    let of_layer = |(clock, told): (Clock, &Told<'_>)| {
        // A cut counts.
        let asked = if told.kept < clock.asked { 0 } else { clock.asked };
        let grown = || (told.levels.len() > asked && over()).then_some(Trigger::Budget);
        clock.by_itself(rule).or_else(grown)
    };
    clocks.zip(told).find_map(of_layer)
}

/// The largest bound of a layer's heads at these levels (5.15).
fn bound(terms: &Terms, at: &[u8], levels: usize) -> f64 {
    let of_head = |(head, cap): (usize, &f64)| {
        let cell = |block: usize, level: u8| (head * at.len() + block) * levels + usize::from(level);
        let (mut loss, mut shrink) = (0.0, 0.0);
        for (block, level) in at.iter().enumerate() {
            (loss, shrink) = (loss + terms.loss[cell(block, *level)], shrink + terms.shrink[cell(block, *level)]);
        }
        if shrink < 1.0 { (loss / (1.0 - shrink)).min(*cap) } else { *cap }
    };
    terms.cap.iter().enumerate().map(of_head).fold(0.0, f64::max)
}

/// Terms of all heads of a layer at these levels.
fn lost(terms: &Terms, at: &[u8], levels: usize) -> f64 {
    let head = |of_head: &[f64]| -> f64 {
        of_head.chunks_exact(levels).zip(at).map(|(block, level)| block[usize::from(*level)]).sum()
    };
    terms.loss.chunks_exact((at.len() * levels).max(1)).map(head).sum()
}

#[cfg(test)]
mod tests;
