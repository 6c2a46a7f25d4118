//! Who decides levels while decoding goes on: SmartKV, from the masses of the last step.
use super::order;
use crate::cache::Cache;
use crate::group::Group;
use crate::sequence::SequenceState;
use crate::work::Workspace;
use crate::{Config, Error, SequenceId};
use certkv_control::smartkv::{Controller, Decision, Ladder, Rule, Told};
use certkv_page::PageError;

/// SmartKV over [`Config::levels`], one controller for each layer of each sequence: math.md 9.2 with blocks for items.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SmartKv {
    /// Bytes that a token of a full block may take in one layer on average, all KV heads together: codes, scales, summaries and seals.
    pub bytes_per_token: f64,
    /// Parameters.
    pub rule: Rule,
}

impl SmartKv {
    /// The default rule within so many bytes.
    pub fn new(bytes_per_token: f64) -> Self {
        Self { bytes_per_token, rule: Rule::default() }
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

/// One layer's part of a [`Cache::control`], for a log. What the controller was told is what it decides from: a
/// [`Controller`] of the same rule that is told the same decides the same.
#[derive(Debug, Clone, PartialEq)]
pub struct ControlEntry {
    /// The layer.
    pub layer: usize,
    /// [`Told::kept`].
    pub kept: usize,
    /// [`Told::attention`], `[query head][block]`.
    pub attention: Option<Vec<f64>>,
    /// [`Told::levels`]: of the ladder, which ascends; the first of [`Config::levels`] is the last of it.
    pub levels: Vec<u8>,
    /// What was decided.
    pub decision: Option<Decision>,
}

/// What a sequence keeps of one layer.
#[derive(Debug, Clone)]
pub(crate) struct LayerControl {
    controller: Controller,
    /// Blocks that were not cut off since the controller was told last.
    kept: usize,
    heads: usize,
}

impl LayerControl {
    /// One for each layer; none without a rule.
    pub(crate) fn all(config: &Config) -> Result<Vec<Self>, Error> {
        let Some(control) = &config.control else { return Ok(Vec::new()) };
        let of_layer = |layer| Controller::new(layer, config.geometry.q_heads, control.rule);
        let heads = config.geometry.q_heads;
        let all =
            (0..config.geometry.layers).map(|layer| Ok(Self { controller: of_layer(layer)?, kept: usize::MAX, heads }));
        all.collect()
    }

    /// The sequence was cut.
    pub(crate) fn cut(&mut self, blocks: usize) {
        self.kept = self.kept.min(blocks);
    }

    pub(crate) fn bytes(&self) -> usize {
        Self::most_bytes(self.controller.items(), self.heads)
    }

    /// At so many blocks and query heads.
    pub(crate) fn most_bytes(blocks: usize, heads: usize) -> usize {
        Controller::bytes(blocks, heads) + size_of::<Self>()
    }
}

impl Config {
    /// Checks who decides.
    pub(crate) fn check_control(&self) -> Result<(), Error> {
        let Some(control) = &self.control else { return Ok(()) };
        let wrong = |why: String| Err(Error::Config { field: "control", why });
        if self.levels.is_empty() {
            return wrong("there are no levels to decide on".to_owned());
        }
        if let Err(error) = Controller::new(0, self.geometry.q_heads, control.rule) {
            return wrong(error.to_string());
        }
        let lowest = self.levels.last().map(|level| super::LevelSizes::new(self, level)).transpose()?;
        let floor = lowest.map_or(0.0, |level| level.page_bytes as f64 / level.layout.tokens() as f64);
        // `!(x >= floor)`: NaN is no budget.
        if !(control.bytes_per_token >= floor) || control.bytes_per_token.is_infinite() {
            return wrong(format!("{} bytes a token; the lowest level takes {floor}", control.bytes_per_token));
        }
        Ok(())
    }
}

impl Cache {
    /// Lets [`Config::control`] look at what the last step said of each block, and change levels where it decides to. To be called
    /// between steps, after each of them or fewer; steps in between are not seen. Without a controller nothing happens.
    ///
    /// A block that cannot have the level that was decided (its page class is full, no scales of that level hold it, the device failed)
    /// keeps the one that it has, and is counted. Each layer has its own clock; where a layer decides nothing, a call costs a few
    /// operations per query head and block, else some sorts of the blocks, and the coding of those that change.
    ///
    /// # Errors
    /// Unknown or busy sequence: not while a step holds it. [`Error::SwappedOut`].
    pub fn control(&self, id: SequenceId) -> Result<Controlled, Error> {
        self.control_logged(id, None)
    }

    /// As [`Cache::control`], with an entry for each layer to `log`.
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
            let done = (0..self.groups.len()).try_for_each(|index| {
                let entry = self.control_layer(index, &control, state, &mut work, log.is_some(), &mut all)?;
                if let (Some(log), Some(entry)) = (&mut log, entry) {
                    log(entry);
                }
                Ok(())
            });
            self.return_workspace(work);
            done.map(|()| all)
        })
    }

    fn control_layer(
        &self,
        index: usize,
        control: &SmartKv,
        state: &mut SequenceState,
        work: &mut Workspace,
        logged: bool,
        all: &mut Controlled,
    ) -> Result<Option<ControlEntry>, Error> {
        let group = &self.groups[index];
        let (layer, count, table) = (group.first, group.level_count(), &state.tables[index]);
        let mut levels = vec![0; table.len() / table.block_size()];
        for (level, block) in order(table, count) {
            // Of the ladder, which ascends.
            levels[block] = count - 1 - level;
        }
        let attention = take_attention(group, state, levels.len());
        let Some(layer_control) = state.control.get_mut(layer) else { return Ok(None) };
        let kept = core::mem::replace(&mut layer_control.kept, usize::MAX);
        let up = (0..count).rev();
        let bits: Vec<u8> = up.clone().map(|level| width(group, level)).collect();
        let cost: Vec<f64> = up.map(|level| group.bytes_at(level) as f64).collect();
        let ladder = Ladder { bits: &bits, cost: &cost };
        let told = Told { kept, attention: attention.as_deref(), levels: &levels };
        let budget = control.bytes_per_token * group.layout.tokens() as f64;
        let decision = layer_control.controller.tell(&mut work.widths, &ladder, &told, budget)?;
        if let Some(decision) = &decision {
            all.decided += 1;
            match &decision.levels {
                None => all.below_floor += 1,
                Some(wanted) => {
                    let scores = layer_control.controller.scores();
                    let changes = changes(&levels, wanted, scores);
                    self.change_all(index, state, work, &changes, count, all)?;
                }
            }
        }
        Ok(logged.then_some(ControlEntry { layer, kept, attention, levels, decision }))
    }

    /// Makes the changes; those that found no page once more, when the others have left theirs.
    fn change_all(
        &self,
        index: usize,
        state: &mut SequenceState,
        work: &mut Workspace,
        changes: &[(usize, u8)],
        count: u8,
        all: &mut Controlled,
    ) -> Result<(), Error> {
        let group = &self.groups[index];
        let mut list: Vec<(usize, u8)> = changes.iter().map(|(block, up)| (*block, count - 1 - up)).collect();
        for last in [false, true] {
            let mut again = Vec::new();
            let done = &mut |at: usize, result: Result<(), Error>| {
                match result {
                    Ok(()) => all.changed += 1,
                    Err(Error::CapacityExhausted { cause: PageError::Exhausted { .. }, .. }) if !last => {
                        again.push(list[at])
                    }
                    Err(Error::CapacityExhausted { .. } | Error::Level { .. }) => all.refused += 1,
                    Err(_) => all.failed += 1,
                }
                Ok(())
            };
            self.change(group, index, group.first, state, work, &list, done)?;
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
    up.sort_by(|a, b| scores[b.0].total_cmp(&scores[a.0]).then(a.0.cmp(&b.0)));
    let mut all: Vec<_> = moved().filter(|(block, to)| *to < levels[*block]).collect();
    all.append(&mut up);
    all
}

/// Bits of a channel's key and value together: a width of the ladder.
fn width(group: &Group, level: u8) -> u8 {
    let format = group.layout_at(level).format;
    (format.key.bits() + format.value.bits()) as u8
}

/// The masses of the last step, `[query head][block]`, taken from the heads that kept them. `None` if there was no step, or it was of
/// other blocks, or its masses are not finite.
fn take_attention(group: &Group, state: &mut SequenceState, blocks: usize) -> Option<Vec<f64>> {
    let mut rows = Vec::new();
    let mut whole = blocks > 0;
    for head in &mut state.heads[group.first * group.kv_heads..(group.first + 1) * group.kv_heads] {
        whole &= head.mass.len() == blocks * group.kernel.heads();
        rows.extend(head.mass.drain(..).map(f64::from));
    }
    (whole && rows.iter().all(|mass| mass.is_finite())).then_some(rows)
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
