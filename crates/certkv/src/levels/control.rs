//! Who decides levels while decoding goes on, from what the last step said of each block.
use super::probes::Probes;
use super::site::OnHost;
use super::smart::SmartKv;
use super::{BoundBudget, LevelSizes, Retention, full_blocks, ladder_levels, planned, retained};
use crate::cache::Cache;
use crate::sequence::SequenceState;
use crate::work::Workspace;
use crate::{Config, Error, SequenceId};
use certkv_control::bound_budget::{Clock, Lacking, Terms};
use certkv_control::danger::Gate;
use certkv_control::retention;
use certkv_control::smartkv::{Apart, Controller, Decision, Drift, Ladder};
use certkv_page::{BlockTable, PageError};
use core::ops::Range;

/// Who decides on [`Config::levels`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Control {
    /// By what is attended to, layer by layer: math.md 9.2.
    SmartKv(SmartKv),
    /// By what each level loses in the certificate, for all layers within one budget: math.md 9.3.
    Retention(Retention),
    /// By the bounds that the certificates would have, for all layers within one budget: math.md 9.5.
    Budget(BoundBudget),
}

impl From<SmartKv> for Control {
    fn from(control: SmartKv) -> Self {
        Self::SmartKv(control)
    }
}

impl From<Retention> for Control {
    fn from(control: Retention) -> Self {
        Self::Retention(control)
    }
}

impl From<BoundBudget> for Control {
    fn from(control: BoundBudget) -> Self {
        Self::Budget(control)
    }
}

impl Control {
    /// It judges by what certificates know of blocks, and not by masses alone.
    pub(crate) fn wants_terms(&self) -> bool {
        match self {
            Self::SmartKv(smart) => smart.rule.gate.is_some(),
            Self::Retention(_) | Self::Budget(_) => true,
        }
    }
}

/// What [`Cache::control`] did, over all layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Controlled {
    /// Layers whose levels were decided anew.
    pub decided: usize,
    /// Of these, layers of which not even the lowest levels fit the budget: nothing was asked for there.
    pub below_floor: usize,
    /// Blocks that have another level now.
    pub changed: usize,
    /// Blocks that have the level that they had although another was decided: no page at that level, or no codes.
    pub refused: usize,
    /// The same because the device failed.
    pub failed: usize,
}

/// One layer's part of a [`Cache::control`], or that of one of its KV heads, for a log. What the controller was told is what it decides from: a [`Controller`] of the same
/// rule, or a [`retention::Controller`] or [`certkv_control::bound_budget::Planner`] that is told the same of all layers, decides the same.
#[derive(Debug, Clone, PartialEq)]
pub struct ControlEntry {
    /// The layer.
    pub layer: usize,
    /// Its KV heads: all of them, or the one whose levels these are ([`Config::levels_by_head`]).
    pub kv_heads: Range<usize>,
    /// Blocks that are still those they were at the call before.
    pub kept: usize,
    /// What SmartKV is told: [`certkv_control::smartkv::Told::attention`], `[query head][block]`.
    pub attention: Option<Vec<f64>>,
    /// What it is told on a GPU, where attention stays: [`certkv_control::smartkv::Controller::tell_apart`]. If neither is there it was told nothing.
    pub scored: Option<Scored>,
    /// What retention is told: [`retention::Told::loss`], `[block][level]`.
    pub loss: Option<Vec<f64>>,
    /// With a gate, the danger of each block: [`retention::Told::danger`].
    pub danger: Option<Vec<f64>>,
    /// What the bound's budget is told: [`certkv_control::bound_budget::Told::terms`].
    pub terms: Option<Terms>,
    /// Level of each block, of the ladder, which ascends; the first of [`Config::levels`] is the last of it.
    pub levels: Vec<u8>,
    /// What was decided.
    pub decision: Option<Decision>,
    /// What the bound's budget came to, all layers together.
    pub planned: Option<Planned>,
}

impl ControlEntry {
    /// Of blocks that nothing is told of yet, and nothing decided.
    pub(crate) fn of((layer, kv_heads): (usize, Range<usize>), kept: usize, levels: Vec<u8>) -> Self {
        Self {
            layer,
            kv_heads,
            kept,
            attention: None,
            scored: None,
            loss: None,
            danger: None,
            terms: None,
            levels,
            decision: None,
            planned: None,
        }
    }
}

/// What SmartKV is told of a step whose attention was made to scores on a GPU: of drift and scores what it asked for.
#[derive(Debug, Clone, PartialEq)]
pub struct Scored {
    /// [`Apart::items`].
    pub blocks: usize,
    /// [`Apart::drift`].
    pub drift: Option<Drift>,
    /// [`Apart::scores`].
    pub scores: Option<Vec<f64>>,
}

impl Scored {
    /// The same for a controller, of blocks that have `levels`, of which `kept` are those they were.
    pub fn told<'a>(&'a self, kept: usize, levels: &'a [u8]) -> Apart<'a> {
        let Self { blocks, drift, scores } = self;
        Apart { kept, items: *blocks, levels: Some(levels), drift: *drift, scores: scores.as_deref() }
    }
}

/// What a plan of all layers comes to.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Planned {
    /// The largest bound of a query head as a share of its output's norm, in the last step, from codes alone.
    pub bound: f64,
    /// What is lacking of the tolerance.
    pub lacking: Lacking,
}

/// What a sequence keeps of one layer, or of one of its KV heads.
#[derive(Debug, Clone)]
pub(crate) struct LayerControl {
    pub(crate) decides: Decides,
    /// Blocks that were not cut off since the controller was told last.
    pub(crate) kept: usize,
    /// A block has another level since then.
    pub(crate) moved: bool,
    /// Level of each full block, of the ladder, as far as somebody has asked for it: what the table says, in one place.
    levels: Vec<u8>,
    /// What each level would lose of each block.
    pub(crate) probes: Probes,
    heads: usize,
    /// SmartKV has a gate.
    gated: bool,
}

/// The state of whoever decides.
#[derive(Debug, Clone)]
pub(crate) enum Decides {
    Smart(Box<Controller>),
    Retained(retention::Layer),
    Planned(Clock),
}

impl LayerControl {
    /// One for each group; none where nobody decides.
    pub(crate) fn all(config: &Config) -> Result<Vec<Self>, Error> {
        let Some(control) = &config.control else { return Ok(Vec::new()) };
        let (apart, geometry) = (config.leveled_heads(), &config.geometry);
        let (heads, probes) = (geometry.q_heads / apart, Probes::new(geometry.kv_heads / apart, config.levels.len()));
        let gated = matches!(control, Control::SmartKv(smart) if smart.rule.gate.is_some());
        let of_layer = |layer| -> Result<Decides, Error> {
            Ok(match control {
                Control::SmartKv(smart) => Decides::Smart(Box::new(Controller::new(layer, heads, smart.rule)?)),
                Control::Retention(_) => Decides::Retained(retention::Layer::default()),
                Control::Budget(_) => Decides::Planned(Clock::default()),
            })
        };
        let all = (0..geometry.layers * apart).map(|group| {
            Ok(Self {
                decides: of_layer(group / apart)?,
                kept: usize::MAX,
                moved: false,
                levels: Vec::new(),
                probes: probes.clone(),
                heads,
                gated,
            })
        });
        all.collect()
    }

    /// The sequence was cut.
    pub(crate) fn cut(&mut self, blocks: usize) {
        self.kept = self.kept.min(blocks);
        self.levels.truncate(blocks);
        self.probes.truncate(blocks);
    }

    /// A block has another level of the ladder.
    pub(crate) fn moved_to(&mut self, block: usize, up: u8) {
        self.moved = true;
        self.levels.get_mut(block).into_iter().for_each(|level| *level = up);
    }

    /// Level of each full block of the layer's table, of the ladder of `count` levels. Goes to the table for blocks that are new.
    pub(crate) fn levels(&mut self, table: &BlockTable, count: u8) -> &[u8] {
        let new = self.levels.len()..full_blocks(table);
        let of = |block| table.get(block).filter(|entry| entry.is_full()).map_or(0, |entry| count - 1 - entry.level);
        self.levels.extend(new.map(of));
        debug_assert_eq!(self.levels, ladder_levels(table, count), "what the table says");
        &self.levels
    }

    /// Somebody was told which blocks are still those they were, and their levels.
    pub(crate) fn told(&mut self) {
        (self.kept, self.moved) = (usize::MAX, false);
    }

    /// Takes a step that is nothing to whoever decides but a tick.
    pub(crate) fn pass(&mut self) {
        match &mut self.decides {
            Decides::Smart(_) => {}
            Decides::Retained(layer) => layer.pass(),
            Decides::Planned(clock) => clock.pass(),
        }
        self.told();
    }

    pub(crate) fn bytes(&self) -> usize {
        let own = match &self.decides {
            Decides::Smart(controller) => {
                let gates = if self.gated { gate_bytes(controller.items()) } else { 0 };
                Controller::bytes(controller.items(), self.heads) + gates
            }
            Decides::Retained(layer) => retention::Layer::bytes(layer.items(), self.probes.levels()),
            Decides::Planned(_) => 0,
        };
        own + self.levels.capacity() + self.probes.bytes() + size_of::<Self>()
    }

    /// At so many blocks.
    pub(crate) fn most_bytes(config: &Config, control: &Control, blocks: usize) -> usize {
        let (geometry, levels, apart) = (&config.geometry, config.levels.len(), config.leveled_heads());
        let probes = Probes::most_bytes(blocks, geometry.kv_heads / apart, levels);
        let own = match control {
            Control::SmartKv(smart) => {
                let gates = if smart.rule.gate.is_some() { gate_bytes(blocks) + probes } else { 0 };
                Controller::bytes(blocks, geometry.q_heads / apart) + gates
            }
            Control::Retention(_) => retention::Layer::bytes(blocks, levels) + probes,
            Control::Budget(_) => probes,
        };
        own + 2 * blocks.max(8) + size_of::<Self>()
    }
}

/// Bytes of the gates of so many blocks: the list grows by doubling.
fn gate_bytes(blocks: usize) -> usize {
    2 * blocks.max(4) * size_of::<Gate>()
}

impl Config {
    /// Checks who decides.
    pub(crate) fn check_control(&self) -> Result<(), Error> {
        let Some(control) = &self.control else { return Ok(()) };
        let field = match control {
            Control::SmartKv(_) => "control",
            Control::Retention(_) => "control.retention",
            Control::Budget(_) => "control.budget",
        };
        let wrong = |why: String| Err(Error::Config { field, why });
        if self.levels.is_empty() {
            return wrong("there are no levels to decide on".to_owned());
        }
        let checked = match control {
            Control::SmartKv(smart) => smart.check(self),
            Control::Retention(retention) => retention.check(self),
            Control::Budget(budget) => budget.check(self),
        };
        checked.or_else(wrong)
    }
}

/// Bytes that a token may take: at least those of the lowest level.
pub(super) fn check_bytes(config: &Config, bytes_per_token: f64) -> Result<(), String> {
    let apart = config.leveled_heads();
    let heads = config.geometry.kv_heads / apart;
    let lowest = config.levels.last().map(|level| LevelSizes::new(config, level, heads)).transpose();
    let lowest = lowest.map_err(|error| error.to_string())?;
    let floor = lowest.map_or(0.0, |level| (apart * level.page_bytes) as f64 / level.layout.tokens() as f64);
    // `!(x >= floor)`: NaN is no budget.
    if !(bytes_per_token >= floor) || bytes_per_token.is_infinite() {
        return Err(format!("{bytes_per_token} bytes a token; the lowest level takes {floor}"));
    }
    Ok(())
}

impl Cache {
    /// Lets [`Config::control`] look at what the last step said of each block, and change levels where it decides to. To be called
    /// between steps, after each of them or fewer; steps in between are not seen. Without a controller nothing happens.
    ///
    /// A block that cannot have the level that was decided (its page class is full, no scales of that level hold it, the device failed)
    /// keeps the one that it has, and is counted. Each layer has its own clock; where a layer decides nothing, a call costs a few
    /// operations per query head and block, else some sorts of the blocks, and the coding of those that change. Where decisions are by
    /// what levels lose, a block that is new is coded once at every level but its own, to see that.
    ///
    /// # Errors
    /// Unknown or busy sequence: not while a step holds it. [`Error::SwappedOut`].
    pub fn control(&self, id: SequenceId) -> Result<Controlled, Error> {
        self.control_logged(id, None)
    }

    /// As [`Cache::control`], with an entry for each layer, or each of its heads with levels of its own, to `log`.
    ///
    /// # Errors
    /// As [`Cache::control`].
    pub fn control_logged(
        &self,
        id: SequenceId,
        mut log: Option<&mut dyn FnMut(ControlEntry)>,
    ) -> Result<Controlled, Error> {
        let mut all = Controlled::default();
        let Some(control) = self.config.control else { return Ok(all) };
        let _turn = self.turn.lock();
        self.with(id, |state| {
            if state.is_out() {
                return Err(Error::SwappedOut);
            }
            let mut work = self.workspace()?;
            let done = match &control {
                Control::SmartKv(smart) => {
                    let (bits, cost) = (self.ladder_bits(), self.ladder_cost());
                    let ladder = Ladder { bits: &bits, cost: &cost };
                    (0..self.groups.len()).try_for_each(|index| {
                        let entry =
                            self.control_smart((index, smart, &ladder), state, &mut work, log.is_some(), &mut all)?;
                        if let (Some(log), Some(entry)) = (&mut log, entry) {
                            log(entry);
                        }
                        Ok(())
                    })
                }
                Control::Retention(retention) => {
                    let mut site = OnHost { cache: self, state, work: &mut work };
                    retained::control(retention, &mut site, log.take(), &mut all)
                }
                Control::Budget(budget) => {
                    let mut site = OnHost { cache: self, state, work: &mut work };
                    planned::control(budget, &mut site, log.take(), &mut all)
                }
            };
            self.return_workspace(work);
            done.map(|()| all)
        })
    }

    /// Makes what was decided of one layer, whose blocks had `levels`; those that found no page once more, when the others have left theirs.
    /// Of those that rise the ones with the largest `scores` come first.
    #[allow(clippy::too_many_arguments, reason = "a decision, whose it is, and what it is made with")]
    pub(super) fn make(
        &self,
        index: usize,
        state: &mut SequenceState,
        work: &mut Workspace,
        levels: &[u8],
        decision: &Decision,
        scores: &[f64],
        all: &mut Controlled,
    ) -> Result<(), Error> {
        let group = &self.groups[index];
        all.carry_out(levels, decision, scores, group.level_count(), &mut |list, done| {
            let mut heard = |at, result| {
                done(at, result);
                Ok(())
            };
            self.change(group, index, group.first, state, work, list, &mut heard)
        })
    }
}

/// Hears what became of a change, by its place in the list.
pub(crate) type Done<'a> = &'a mut dyn FnMut(usize, Result<(), Error>);
/// Gives blocks of a list their levels, and tells what became of each.
pub(crate) type Change<'a> = dyn FnMut(&[(usize, u8)], Done<'_>) -> Result<(), Error> + 'a;

impl Controlled {
    /// Has `change` make what was decided of one layer, whose blocks had `levels` of `count`: it is given blocks and levels, and tells what became of each. Those that
    /// found no page are tried once more, when the others have left theirs.
    pub(crate) fn carry_out(
        &mut self,
        levels: &[u8],
        decision: &Decision,
        scores: &[f64],
        count: u8,
        change: &mut Change<'_>,
    ) -> Result<(), Error> {
        self.decided += 1;
        let Some(wanted) = &decision.levels else {
            self.below_floor += 1;
            return Ok(());
        };
        self.make(levels, wanted, scores, count, change)
    }

    /// The same of levels that are `wanted`.
    pub(crate) fn make(
        &mut self,
        levels: &[u8],
        wanted: &[u8],
        scores: &[f64],
        count: u8,
        change: &mut Change<'_>,
    ) -> Result<(), Error> {
        let changes = changes(levels, wanted, scores);
        let mut list: Vec<(usize, u8)> = changes.iter().map(|(block, up)| (*block, count - 1 - up)).collect();
        for last in [false, true] {
            let mut again = Vec::new();
            change(&list, &mut |at, result| match result {
                Ok(()) => self.changed += 1,
                Err(Error::CapacityExhausted { cause: PageError::Exhausted { .. }, .. }) if !last => {
                    again.push(list[at])
                }
                Err(Error::CapacityExhausted { .. } | Error::Level { .. }) => self.refused += 1,
                Err(_) => self.failed += 1,
            })?;
            if again.is_empty() {
                break;
            }
            list = again;
        }
        Ok(())
    }
}

/// Blocks whose level is to be another: those that fall first, as they leave pages, then those that rise, the best first.
fn changes(levels: &[u8], wanted: &[u8], scores: &[f64]) -> Vec<(usize, u8)> {
    let moved =
        || wanted.iter().enumerate().filter(|(block, to)| levels[*block] != **to).map(|(block, to)| (block, *to));
    let mut up: Vec<(usize, u8)> = moved().filter(|(block, to)| *to > levels[*block]).collect();
    let score = |block: usize| scores.get(block).copied().unwrap_or(0.0);
    up.sort_by(|a, b| score(b.0).total_cmp(&score(a.0)).then(a.0.cmp(&b.0)));
    let mut all: Vec<_> = moved().filter(|(block, to)| *to < levels[*block]).collect();
    all.append(&mut up);
    all
}

#[cfg(test)]
mod tests {
    use super::changes;

    #[test]
    fn what_falls_makes_room_for_what_rises() {
        let found = changes(&[0, 3, 3, 1, 2], &[3, 3, 0, 2, 1], &[0.1, 0.5, 0.2, 0.9, 0.3]);
        assert_eq!(found, [(2, 0), (4, 1), (3, 2), (0, 3)]);
    }
}
