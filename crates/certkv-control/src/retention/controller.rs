//! Retention for the blocks of a sequence, step by step: what it was told of each layer, which layers are decided on, and what. It decides from
//! what it is told and nothing else, so that a log of the [`Told`] is enough to make every decision again.
//!
//! Layers share one budget and each has a clock. Those that are due are decided on together, within what the others leave. Thresholds are
//! shares of the price at which the budget is spent, so that they have no unit: what is worth less than `down` times it goes down, what is
//! worth `up` times it comes up, and where that needs room, what is worth no more than the price makes it.
use super::{Limits, Retention, RetentionRule, mass};
use crate::ControlError;
use crate::allocate::{Allocator, Choices};
use crate::bitset::BitSet;
use crate::danger::{Gate, Gating};
use crate::error::{finite, length};
use crate::smartkv::{Decision, Trigger};
use crate::spent::{in_ladder, spent};
use crate::standing::{Rest, Standing};

/// Parameters, math.md (9.16) to (9.24).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rule {
    /// Steps between decisions of the first layers; of layer `l` `1 + floor(l/4)` times as many, as in (9.14). Steps are times that the
    /// controller is told.
    pub every: usize,
    /// Of these, steps whose losses are looked at, the last among them ([`Controller::wants`]).
    pub looks: usize,
    /// Share of a loss that stays from decision to decision; the rest is the largest since the last one (9.16).
    pub keep: f64,
    /// A block goes down by itself if it loses at most this share of the price per byte (9.20),
    pub down: f64,
    /// and goes up if it saves at least so many times the price (9.21); above `down`, and above 1 if others are to make room.
    pub up: f64,
    /// Decisions that a block rests after a change (9.22).
    pub cooldown: u32,
    /// What any change of a block counts for beside its loss: a share of what the bytes of its best level are worth at the price.
    pub stick: f64,
    /// The gate over blocks whose rank is in danger; `None` for no gate.
    pub gate: Option<Gating>,
    /// So many first and so many last blocks are protected, always.
    pub ends: [usize; 2],
}

impl Default for Rule {
    fn default() -> Self {
        Self { every: 16, looks: 2, keep: 0.5, down: 0.7, up: 1.4, cooldown: 1, stick: 0.0, gate: None, ends: [1, 1] }
    }
}

impl Rule {
    /// Checks every parameter.
    ///
    /// # Errors
    /// [`ControlError::Invalid`] for one that it may not have.
    pub fn validated(self) -> Result<Self, ControlError> {
        let share = (0.0..1.0).contains(&self.keep) && self.stick >= 0.0 && self.stick.is_finite();
        let band = self.down >= 0.0 && self.up > self.down && self.up.is_finite();
        let gate = self.gate.is_none_or(|gate| gate.gate().is_ok());
        if share && band && gate && self.every > 0 && self.looks > 0 {
            Ok(self)
        } else {
            Err(ControlError::Invalid { what: "rule", index: 0 })
        }
    }
}

/// What one layer says at once, or one of its key heads. Levels are those of a ladder, which ascends.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Told<'a> {
    /// Blocks that are still those they were when it was told last; blocks behind them are new.
    pub kept: usize,
    /// What each block loses at each level by a step since then, `[block][level]`, or by several, the largest; `None` if there was none, or where [nobody
    /// looks](Controller::wants).
    pub loss: Option<&'a [f64]>,
    /// Danger of each block in that step (9.23), the largest of the heads; `None` without a gate, or if there was no step.
    pub danger: Option<&'a [f64]>,
    /// Level of every block.
    pub levels: &'a [u8],
}

/// What a layer wants of the losses of the next step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wants {
    /// They do not count.
    Nothing,
    /// They are one of an interval's looks: of these and those of later steps up to the next decision the largest count, so that they may be told together.
    Look,
    /// A decision waits for them.
    Decision,
}

/// Bytes that there are.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Budgets {
    /// Of a block in one layer, or in one of its heads, on average over all.
    pub block: f64,
    /// Of a block, on average over its layer; infinite for no such limit.
    pub layer: f64,
    /// Of a block, on average over its head; infinite for no such limit.
    pub head: f64,
    /// Heads of a layer that are told apart, one behind the other; 1 where layers are told as a whole.
    pub heads: usize,
}

impl Budgets {
    /// So many bytes of a block in one layer, and no other limit.
    pub const fn new(block: f64) -> Self {
        Self { block, layer: f64::INFINITY, head: f64::INFINITY, heads: 1 }
    }

    /// Layer and head of what is told as number `at`.
    fn place(&self, at: usize) -> (usize, usize) {
        let heads = self.heads.max(1);
        (at / heads, at % heads)
    }
}

/// One layer's state, or that of one of its heads.
#[derive(Debug, Clone, Default)]
pub struct Layer {
    /// Smoothed losses and the largest since the last decision, `[block][level]`.
    loss: Vec<f64>,
    peak: Vec<f64>,
    /// Blocks whose losses were smoothed before.
    known: usize,
    gates: Vec<Gate>,
    rests: Vec<u32>,
    /// Steps seen, and those of the last decision.
    steps: u64,
    decided: u64,
    /// Blocks that there were at the last decision; 0 after a cut.
    asked: usize,
    /// There was a step since the last decision.
    fresh: bool,
    rest: Rest,
}

impl Layer {
    /// At least the bytes of a layer of so many blocks and levels: its lists grow by doubling.
    pub const fn bytes(blocks: usize, levels: usize) -> usize {
        let blocks = if blocks < 4 { 4 } else { blocks };
        size_of::<Self>() + 2 * blocks.saturating_mul(16 * levels + size_of::<Gate>() + 4)
    }

    /// Blocks seen.
    pub fn items(&self) -> usize {
        self.rests.len()
    }

    /// Whether the gate of a block is on.
    pub fn is_protected(&self, block: usize) -> bool {
        self.gates.get(block).is_some_and(Gate::is_on)
    }

    fn hear(&mut self, told: &Told<'_>, levels: usize, rule: &Rule) {
        if told.kept < self.items() {
            for list in [&mut self.loss, &mut self.peak] {
                list.truncate(told.kept * levels);
            }
            self.gates.truncate(told.kept);
            self.rests.truncate(told.kept);
            self.known = self.known.min(told.kept);
            self.asked = 0;
        }
        if let Some(loss) = told.loss {
            self.peak.resize(loss.len(), 0.0);
            self.loss.resize(loss.len(), 0.0);
            self.peak.iter_mut().zip(loss).for_each(|(most, now)| *most = most.max(*now));
            let n = loss.len() / levels;
            self.rests.resize(n, 0);
            self.fresh = true;
        }
        self.steps += 1;
        if let (Some(gate), Some(danger)) = (rule.gate, told.danger) {
            self.gates.resize_with(danger.len(), || gate.gate().unwrap_or_default());
            for (gate, danger) in self.gates.iter_mut().zip(danger) {
                gate.step(*danger);
            }
        }
    }

    /// What brings a decision once `steps` steps are over, if anything does; `asked` as the field.
    fn due(&self, layer: usize, steps: u64, over: bool, blocks: usize, asked: usize, rule: &Rule) -> Option<Trigger> {
        match () {
            () if self.decided == 0 => Some(Trigger::First),
            () if steps - self.decided >= interval(layer, rule) => Some(Trigger::Interval),
            () if over && blocks > asked => Some(Trigger::Budget),
            () => None,
        }
    }

    /// Blocks that there were at the last decision, if those that are told are still there.
    fn asked(&self, told: &Told<'_>) -> usize {
        if told.kept < self.items() { 0 } else { self.asked }
    }

    /// Losses of the next step are looked at in `looks` steps of an interval, and where a decision waits for them.
    fn wants(&self, layer: usize, over: bool, told: &Told<'_>, rule: &Rule) -> Wants {
        match self.due(layer, self.steps + 1, over, told.levels.len(), self.asked(told), rule) {
            Some(_) => Wants::Decision,
            None if self.looks(layer, rule) => Wants::Look,
            None => Wants::Nothing,
        }
    }

    /// Whether the next step is one of an interval's `looks`.
    fn looks(&self, layer: usize, rule: &Rule) -> bool {
        let (every, looks) = (interval(layer, rule), rule.looks as u64);
        let looked = |since: u64| since.saturating_mul(looks) / every;
        let since = self.steps + 1 - self.decided;
        looked(since) > looked(since - 1)
    }

    /// Whether the next step, behind which its blocks stand so, is nothing to `layer` but a tick of its clock. If it is to all that share a budget,
    /// [`Layer::pass`] is what [`Controller::tell`] would come to, without a look at any block.
    pub fn is_quiet(&self, layer: usize, now: &Standing, rule: &Rule) -> bool {
        let due = || self.due(layer, self.steps + 1, false, now.blocks, self.asked, rule);
        self.rest.lasts(now) && !self.looks(layer, rule) && due().is_none()
    }

    /// Takes such a step.
    pub fn pass(&mut self) {
        self.steps += 1;
    }

    fn trigger(&self, layer: usize, over: bool, blocks: usize, rule: &Rule) -> Option<Trigger> {
        if self.items() == 0 || !self.fresh {
            return None;
        }
        self.due(layer, self.steps, over, blocks, self.asked, rule)
    }

    /// Smooths what was heard since the last decision (9.16).
    fn smooth(&mut self, levels: usize, keep: f64) {
        for (at, (loss, peak)) in self.loss.iter_mut().zip(&mut self.peak).enumerate() {
            let keep = if at / levels < self.known { keep } else { 0.0 };
            *loss = mass(*loss, core::slice::from_ref(peak), keep);
            *peak = 0.0;
        }
        self.known = self.items();
    }
}

/// Steps between decisions of a layer, (9.14).
fn interval(layer: usize, rule: &Rule) -> u64 {
    rule.every as u64 * (1 + layer as u64 / 4)
}

/// Whether what is told takes more than all may, or than it or its layer may.
struct Over {
    all: bool,
    own: Vec<bool>,
}

impl Over {
    fn new(told: &[Told<'_>], cost: &[f64], budgets: Budgets) -> Self {
        let used: Vec<f64> = told.iter().map(|told| spent(told.levels, cost)).collect();
        let blocks = |told: &[Told<'_>]| told.iter().map(|told| told.levels.len()).sum::<usize>() as f64;
        let fits = |used: f64, limit: f64, blocks: f64| used <= limit * blocks || limit == f64::INFINITY;
        let mut own = Vec::with_capacity(told.len());
        for (told, used) in told.chunks(budgets.heads.max(1)).zip(used.chunks(budgets.heads.max(1))) {
            let layer = fits(used.iter().sum(), budgets.layer, blocks(told));
            let heads = told.iter().zip(used);
            own.extend(heads.map(|(told, used)| !(layer && fits(*used, budgets.head, told.levels.len() as f64))));
        }
        Self { all: !(used.iter().sum::<f64>() <= budgets.block * blocks(told)), own }
    }

    /// The same where it counts: where some layer has blocks that are new since its last decision.
    fn grown(grown: bool, told: &[Told<'_>], cost: &[f64], budgets: Budgets) -> Self {
        if grown { Self::new(told, cost, budgets) } else { Self { all: false, own: Vec::new() } }
    }

    fn is(&self, at: usize) -> bool {
        self.all || self.own.get(at) == Some(&true)
    }
}

/// Decides for the layers of a sequence; holds work buffers and nothing else.
#[derive(Debug, Clone, Default)]
pub struct Controller {
    allocator: Allocator,
    cost: Vec<f64>,
    loss: Vec<f64>,
}

/// What is decided on together, from the best level (0) to the worst.
struct Joint {
    keys: Vec<(u32, u32)>,
    level: Vec<u32>,
    rests: Vec<u32>,
    protected: Vec<bool>,
    layers: Vec<(u32, f64)>,
    heads: Vec<((u32, u32), f64)>,
    /// Bytes that there are.
    limit: f64,
    /// Bytes at the lowest levels.
    floor: f64,
}

impl Controller {
    /// Empty buffers.
    pub fn new() -> Self {
        Self::default()
    }

    /// Of which layers the losses of the next step count; those of others may be left out of what [`Controller::tell`] takes. `told` needs none.
    pub fn wants(rule: &Rule, layers: &[&mut Layer], told: &[Told<'_>], cost: &[f64], budgets: Budgets) -> Vec<Wants> {
        let grown = layers.iter().zip(told).any(|(layer, told)| told.levels.len() > layer.asked(told));
        let over = Over::grown(grown, told, cost, budgets);
        layers
            .iter()
            .zip(told)
            .enumerate()
            .map(|(at, (layer, told))| layer.wants(budgets.place(at).0, over.is(at), told, rule))
            .collect()
    }

    /// Takes a step of all layers, and decides for those whose time it is: levels of all their blocks that losses were told of, within the
    /// budgets. What became of it is told with the next call. `cost` is by level of the ladder.
    ///
    /// Costs a few operations per block and level; a decision a sort of the blocks and a logarithm per change.
    ///
    /// # Errors
    /// [`ControlError`] for numbers that cannot be: nothing changed.
    pub fn tell(
        &mut self,
        rule: &Rule,
        layers: &mut [&mut Layer],
        told: &[Told<'_>],
        cost: &[f64],
        budgets: Budgets,
    ) -> Result<Vec<Option<Decision>>, ControlError> {
        length("told", told.len(), layers.len())?;
        finite("cost", cost)?;
        for (layer, told) in layers.iter().zip(told) {
            check(layer, told, cost.len())?;
        }
        for (layer, told) in layers.iter_mut().zip(told) {
            layer.hear(told, cost.len(), rule);
        }
        let grown = layers.iter().zip(told).any(|(layer, told)| told.levels.len() > layer.asked);
        let over = Over::grown(grown, told, cost, budgets);
        let trigger = |(at, layer): (usize, &&mut Layer)| {
            layer.trigger(budgets.place(at).0, over.is(at), told[at].levels.len(), rule)
        };
        let mut triggers: Vec<_> = layers.iter().enumerate().map(trigger).collect();
        for (at, (layer, told)) in layers.iter_mut().zip(told).enumerate() {
            let blocks = told.levels.len();
            let due = layer.due(budgets.place(at).0, layer.steps, over.is(at), blocks, layer.asked, rule);
            layer.rest = Rest::of(blocks, due.is_some());
        }
        if triggers.iter().all(Option::is_none) {
            return Ok(vec![None; told.len()]);
        }
        let used: Vec<f64> = told.iter().map(|told| spent(told.levels, cost)).collect();
        if budgets.layer < f64::INFINITY {
            // Heads that share a limit are decided on together.
            let each = budgets.heads.max(1);
            for (triggers, layers) in triggers.chunks_mut(each).zip(layers.chunks(each)) {
                if triggers.iter().any(Option::is_some) {
                    give(triggers, layers);
                }
            }
        }
        let mut joint = self.join(rule, layers, told, cost, &triggers, &used, budgets);
        if joint.floor > joint.limit {
            // The others have too much: everybody gives.
            give(&mut triggers, layers);
            joint = self.join(rule, layers, told, cost, &triggers, &used, budgets);
        }
        for (layer, told) in layers.iter_mut().zip(told).zip(&triggers).filter(|(_, due)| due.is_some()).map(|(x, _)| x)
        {
            layer.smooth(cost.len(), rule.keep);
            (layer.decided, layer.asked, layer.fresh) = (layer.steps, told.levels.len(), false);
        }
        self.decide(rule, layers, told, cost, &triggers, joint)
    }

    /// Everything about the blocks of the layers that are due but their losses.
    #[allow(clippy::too_many_arguments, reason = "one decision; the values have nothing else in common")]
    fn join(
        &mut self,
        rule: &Rule,
        layers: &[&mut Layer],
        told: &[Told<'_>],
        cost: &[f64],
        due: &[Option<Trigger>],
        used: &[f64],
        budgets: Budgets,
    ) -> Joint {
        let (mut keys, mut level, mut rests, mut protected) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let (mut of_layers, mut of_heads): (Vec<(u32, f64)>, Vec<_>) = (Vec::new(), Vec::new());
        let (mut others, mut floor) = (0.0, 0.0);
        let lowest = cost.iter().copied().fold(f64::INFINITY, f64::min);
        let top = cost.len().saturating_sub(1);
        self.cost.clear();
        for (at, (layer, told)) in layers.iter().zip(told).enumerate() {
            let (n, blocks) = (layer.items(), told.levels.len());
            let (of, head) = budgets.place(at);
            let (of, head) = (of as u32, head as u32);
            if budgets.layer < f64::INFINITY {
                // What its heads that are not due take is theirs.
                let taken = if due[at].is_none() { used[at] } else { spent(&told.levels[n..], cost) };
                let more = budgets.layer * blocks as f64 - taken;
                match of_layers.last_mut() {
                    Some((layer, limit)) if *layer == of => *limit += more,
                    _ => of_layers.push((of, more)),
                }
            }
            if due[at].is_none() {
                others += used[at];
                continue;
            }
            // Blocks that nothing was heard of stay as they are.
            let unheard = spent(&told.levels[n..], cost);
            others += unheard;
            floor += lowest * n as f64;
            if budgets.head < f64::INFINITY {
                of_heads.push(((of, head), budgets.head * blocks as f64 - unheard));
            }
            for block in 0..n {
                keys.push((of, head));
                level.push((top - usize::from(told.levels[block])) as u32);
                rests.push(layer.rests[block]);
                let end = block < rule.ends[0] || block + rule.ends[1] >= blocks;
                protected.push(end || layer.is_protected(block));
                self.cost.extend(cost.iter().rev());
            }
        }
        let blocks: usize = told.iter().map(|told| told.levels.len()).sum();
        let limit = budgets.block * blocks as f64 - others;
        // Of a layer of which nothing is decided nothing can be asked.
        of_layers.retain(|(layer, _)| keys.binary_search_by_key(layer, |(of, _): &(u32, u32)| *of).is_ok());
        Joint { keys, level, rests, protected, layers: of_layers, heads: of_heads, limit, floor }
    }

    fn decide(
        &mut self,
        rule: &Rule,
        layers: &mut [&mut Layer],
        told: &[Told<'_>],
        cost: &[f64],
        due: &[Option<Trigger>],
        joint: Joint,
    ) -> Result<Vec<Option<Decision>>, ControlError> {
        let (levels, mut decisions) = (cost.len(), vec![None; told.len()]);
        self.loss.clear();
        for (layer, _) in layers.iter().zip(due).filter(|(_, due)| due.is_some()) {
            layer.loss.chunks_exact(levels).for_each(|block| self.loss.extend(block.iter().rev()));
        }
        let price = match self.allocator.solve(&Choices { levels, cost: &self.cost, loss: &self.loss }, joint.limit) {
            Ok(found) => found.price,
            Err(ControlError::BelowFloor { .. }) => 0.0,
            Err(error) => return Err(error),
        };
        let stick = rule.stick * price * cost.last().copied().unwrap_or(0.0);
        for (item, level) in joint.level.iter().enumerate() {
            let of_item = &mut self.loss[item * levels..(item + 1) * levels];
            of_item
                .iter_mut()
                .enumerate()
                .filter(|(to, _)| *to != *level as usize)
                .for_each(|(_, loss)| *loss += stick);
        }
        let up = (rule.up * price).max(f64::MIN_POSITIVE);
        let thresholds = RetentionRule { up, down: rule.down * price, cooldown: rule.cooldown };
        let before = joint.rests.clone();
        let mut retention = Retention::new(joint.keys, levels, thresholds)?.at(joint.level, joint.rests)?;
        retention.protect(BitSet::from_bools(&joint.protected));
        retention.give(price);
        let limits = Limits { budget: joint.limit, layers: &joint.layers, heads: &joint.heads };
        let done = match retention.update(&self.cost, &self.loss, &limits, None) {
            Ok(done) => Some(done),
            Err(ControlError::BelowFloor { .. }) => None,
            Err(error) => return Err(error),
        };
        let mut forced = BitSet::new(before.len());
        for change in done.iter().flat_map(|done| &done.down) {
            let item = change.item as usize;
            if joint.protected[item] || before[item] > 0 {
                forced.insert(item);
            }
        }
        let mut first = 0;
        for (at, (layer, told)) in layers.iter_mut().zip(told).enumerate() {
            let Some(trigger) = due[at] else { continue };
            let n = layer.items();
            let items = first..first + n;
            first = items.end;
            let rest = spent(&told.levels[n..], cost);
            decisions[at] = Some(if done.is_some() {
                layer.rests.copy_from_slice(&retention.rests()[items.clone()]);
                let found = &retention.levels()[items.clone()];
                let found: Vec<u8> = found.iter().map(|level| (levels - 1 - *level as usize) as u8).collect();
                let bytes = spent(&found, cost) + rest;
                Decision { trigger, levels: Some(found), bytes, forced: forced.count_in(items) > 0 }
            } else {
                let floor = cost.iter().copied().fold(f64::INFINITY, f64::min) * n as f64 + rest;
                Decision { trigger, levels: None, bytes: floor, forced: false }
            });
        }
        Ok(decisions)
    }
}

/// Those that were heard of are decided on, too.
fn give(triggers: &mut [Option<Trigger>], layers: &[&mut Layer]) {
    for (trigger, layer) in triggers.iter_mut().zip(layers).filter(|(_, layer)| layer.items() > 0) {
        *trigger = trigger.or(layer.fresh.then_some(Trigger::Budget));
    }
}

fn check(layer: &Layer, told: &Told<'_>, levels: usize) -> Result<(), ControlError> {
    in_ladder(told.levels, levels)?;
    let kept = layer.items().min(told.kept);
    let n = match told.loss {
        Some(loss) => {
            finite("loss", loss)?;
            let n = loss.len().checked_div(levels).unwrap_or(0);
            length("loss", loss.len(), n.max(kept) * levels)?;
            n
        }
        None => kept,
    };
    if told.levels.len() < n {
        return Err(ControlError::Length { what: "levels", got: told.levels.len(), need: n });
    }
    match told.danger {
        Some(danger) if danger.len() != n => Err(ControlError::Length { what: "danger", got: danger.len(), need: n }),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
