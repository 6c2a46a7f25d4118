//! What decisions by the terms of certificates ask of a cache, wherever its blocks are.
use super::control::{Controlled, Decides, LayerControl};
use super::terms::{HeadTerms, Measure, Reading};
use super::{full_blocks, terms};
use crate::cache::Cache;
use crate::sequence::SequenceState;
use crate::work::Workspace;
use crate::{Config, Error};
use certkv_control::Standing;
use certkv_control::bound_budget::Planner;
use certkv_control::retention::{self, Wants};
use certkv_control::smartkv::Decision;
use core::ops::Range;

/// Who decides for all layers together, with buffers that are kept.
#[derive(Debug, Default)]
pub(crate) struct Deciders {
    pub(crate) retention: retention::Controller,
    pub(crate) planner: Planner,
}

/// One sequence whose blocks have levels, between two steps. A *group* is a layer, or a KV head of one with [`Config::levels_by_head`].
pub(crate) trait Site {
    /// How many groups there are.
    fn groups(&self) -> usize;
    /// Layer and KV heads of a group.
    fn place(&self, group: usize) -> (usize, Range<usize>);
    /// Full blocks of a group.
    fn blocks(&self, group: usize) -> Result<usize, Error>;
    /// Level of each, of the ladder, which ascends.
    fn levels(&mut self, group: usize) -> Result<Vec<u8>, Error>;
    /// Bytes of a page of a group by level of the ladder.
    fn cost(&self) -> Vec<f64>;
    /// Groups of a layer, and tokens of a block.
    fn shape(&self) -> (usize, usize);
    /// What the last step said of the blocks of a group, which have `levels`; `None` if nothing.
    fn seen(&mut self, group: usize, levels: &[u8], reading: Reading) -> Result<Option<HeadTerms>, Error>;
    /// What levels lose of the blocks of groups by what the last step said, `[block][level]`, all query heads together: `None` of groups of which it is not `wanted`, or that the step said
    /// nothing of. Of those that only look it may be told when they decide, then of all steps that they have looked at, the largest.
    fn losses(&mut self, wanted: &[Wants], measure: Measure) -> Result<Vec<Option<Vec<f64>>>, Error>;
    /// Forgets it, of all groups.
    fn forget(&mut self);
    /// State of each group, and who decides.
    fn deciders(&mut self) -> Result<(&mut [LayerControl], &mut Deciders), Error>;
    /// Makes what was decided of a group, whose blocks had `levels`. Of those that rise the ones with the largest `scores` come first.
    fn make(
        &mut self,
        group: usize,
        levels: &[u8],
        decision: &Decision,
        scores: &[f64],
        all: &mut Controlled,
    ) -> Result<(), Error>;

    /// [`of_block`] here.
    fn of_block(&self, bytes_per_token: f64) -> f64 {
        of_block(bytes_per_token, self.shape())
    }

    /// Lets the last step pass if it is nothing to any group but a tick of its clock: whether it was. Costs some comparisons a group.
    fn let_pass(&mut self, is_quiet: &dyn Fn(&Decides, usize, &Standing) -> bool) -> Result<bool, Error> {
        for group in 0..self.groups() {
            let ((layer, _), blocks) = (self.place(group), self.blocks(group)?);
            let Some(control) = self.deciders()?.0.get(group) else { return Ok(false) };
            let now = Standing { kept: control.kept, blocks, moved: control.moved };
            if !is_quiet(&control.decides, layer, &now) {
                return Ok(false);
            }
        }
        self.forget();
        for control in self.deciders()?.0 {
            control.pass();
        }
        Ok(true)
    }

    /// Blocks of a group that are those they were when the controller was told last.
    fn kept(&mut self, group: usize) -> Result<usize, Error> {
        Ok(self.deciders()?.0.get(group).map_or(usize::MAX, |control| control.kept))
    }
}

/// Of what a layer has a token, what a block has of so many `tokens` in one of its groups, `apart` of which a layer has.
pub(crate) fn of_block(bytes_per_token: f64, (apart, tokens): (usize, usize)) -> f64 {
    bytes_per_token * tokens as f64 / apart as f64
}

/// A sequence of a cache on the host.
pub(super) struct OnHost<'a> {
    pub(super) cache: &'a Cache,
    pub(super) state: &'a mut SequenceState,
    pub(super) work: &'a mut Workspace,
}

impl Site for OnHost<'_> {
    fn groups(&self) -> usize {
        self.cache.groups.len()
    }

    fn place(&self, group: usize) -> (usize, Range<usize>) {
        let group = &self.cache.groups[group];
        (group.first, group.heads())
    }

    fn blocks(&self, group: usize) -> Result<usize, Error> {
        Ok(full_blocks(&self.state.tables[group]))
    }

    fn levels(&mut self, group: usize) -> Result<Vec<u8>, Error> {
        let SequenceState { tables, control, .. } = &mut *self.state;
        Ok(control[group].levels(&tables[group], self.cache.groups[group].level_count()).to_vec())
    }

    fn cost(&self) -> Vec<f64> {
        self.cache.ladder_cost()
    }

    fn shape(&self) -> (usize, usize) {
        self.cache.level_shape()
    }

    fn seen(&mut self, group: usize, levels: &[u8], reading: Reading) -> Result<Option<HeadTerms>, Error> {
        self.cache.seen(group, self.state, self.work, levels, reading)
    }

    fn losses(&mut self, wanted: &[Wants], measure: Measure) -> Result<Vec<Option<Vec<f64>>>, Error> {
        let mut all = vec![None; wanted.len()];
        for (group, found) in all.iter_mut().enumerate().filter(|(group, _)| wanted[*group] != Wants::Nothing) {
            let levels = self.levels(group)?;
            self.cache.probe(group, self.state, self.work, levels.len())?;
            *found = terms::read_losses(&self.cache.groups[group], self.state, &levels, measure);
        }
        Ok(all)
    }

    fn forget(&mut self) {
        self.cache.groups.iter().for_each(|group| terms::forget(group, self.state));
    }

    fn deciders(&mut self) -> Result<(&mut [LayerControl], &mut Deciders), Error> {
        Ok((&mut self.state.control, &mut self.work.deciders))
    }

    fn make(
        &mut self,
        group: usize,
        levels: &[u8],
        decision: &Decision,
        scores: &[f64],
        all: &mut Controlled,
    ) -> Result<(), Error> {
        self.cache.make(group, self.state, self.work, levels, decision, scores, all)
    }
}

impl Cache {
    /// Groups of a layer whose blocks have levels of their own, and tokens of a block.
    pub(super) fn level_shape(&self) -> (usize, usize) {
        let tokens = self.groups.first().map_or(0, |group| group.layout.tokens());
        (self.config.leveled_heads(), tokens)
    }
}

impl Config {
    /// Bounds of some levels are in a metric of keys that is not that of others: what one says is nothing to another but by the norms of queries.
    pub(crate) fn mixes_metrics(&self) -> bool {
        let folded = |level: &super::Level| level.format.key.is_folded();
        self.levels.iter().any(folded) && !self.levels.iter().all(folded)
    }
}
