//! Retention over levels: what it is told of all layers, and what becomes of its decisions.
use super::control::{ControlEntry, Controlled, Decides, LayerControl, check_bytes};
use super::ladder_levels;
use super::terms::{self, Measure, Reading};
use crate::cache::Cache;
use crate::sequence::SequenceState;
use crate::work::Workspace;
use crate::{Config, Error};
use certkv_control::retention::{Budgets, Controller, Layer, Rule, Told};

/// Rate-distortion retention over [`Config::levels`]: math.md 9.3 with blocks of layers for items. What a level loses is its terms in the
/// certificates of the last step, as shares of the outputs' norms, all query heads of the layer together. All layers share one budget.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Retention {
    /// Bytes that a token of a full block may take in a layer on average over all layers, all KV heads together: codes, scales, summaries and
    /// seals.
    pub bytes_per_token: f64,
    /// The same on average over any one layer; infinite for no such limit.
    pub layer_bytes_per_token: f64,
    /// The same on average over any one KV head, all heads of the layer having as much: infinite for no such limit, and without
    /// [`Config::levels_by_head`].
    pub head_bytes_per_token: f64,
    /// How losses are measured.
    pub measure: Measure,
    /// Parameters.
    pub rule: Rule,
}

impl Retention {
    /// The default rule within so many bytes, which layers may share as they like.
    pub fn new(bytes_per_token: f64) -> Self {
        Self {
            bytes_per_token,
            layer_bytes_per_token: f64::INFINITY,
            head_bytes_per_token: f64::INFINITY,
            measure: Measure::default(),
            rule: Rule::default(),
        }
    }

    /// Checks the rule and the budgets.
    pub(super) fn check(&self, config: &Config) -> Result<(), String> {
        self.rule.validated().map_err(|error| error.to_string())?;
        if self.layer_bytes_per_token != f64::INFINITY {
            check_bytes(config, self.layer_bytes_per_token)?;
        }
        if self.head_bytes_per_token != f64::INFINITY {
            check_bytes(config, self.head_bytes_per_token)?;
            if !config.levels_by_head {
                return Err("a limit of heads, which have no levels of their own".to_owned());
            }
        }
        check_bytes(config, self.bytes_per_token)
    }
}

/// What one layer is told.
#[derive(Debug)]
struct Heard {
    kept: usize,
    levels: Vec<u8>,
    loss: Option<Vec<f64>>,
    danger: Option<Vec<f64>>,
}

impl Cache {
    pub(super) fn control_retained(
        &self,
        control: &Retention,
        state: &mut SequenceState,
        work: &mut Workspace,
        mut log: Option<&mut dyn FnMut(ControlEntry)>,
        all: &mut Controlled,
    ) -> Result<(), Error> {
        let heard = (0..self.groups.len()).map(|index| self.meet(index, state));
        let mut heard: Vec<_> = heard.collect();
        let (rule, cost) = (&control.rule, self.ladder_cost());
        let budgets = Budgets {
            block: self.of_block(control.bytes_per_token),
            layer: self.of_block(control.layer_bytes_per_token),
            head: self.of_block(control.head_bytes_per_token),
            heads: self.config.leveled_heads(),
        };
        let wanted = Controller::wants(rule, &layers(state), &told(&heard), &cost, budgets);
        for (index, heard) in heard.iter_mut().enumerate().filter(|(index, _)| wanted[*index]) {
            self.hear(index, control, state, work, heard)?;
        }
        self.groups.iter().for_each(|group| terms::forget(group, state));
        let decisions = work.retention.tell(rule, &mut layers(state), &told(&heard), &cost, budgets)?;
        state.control.iter_mut().for_each(LayerControl::told);
        for (index, (heard, decision)) in heard.into_iter().zip(decisions).enumerate() {
            let Heard { kept, levels, loss, danger } = heard;
            if let Some(decision) = &decision {
                // Those that lose most at the lowest level come up first.
                let lowest = |loss: &Vec<f64>| loss.chunks_exact(loss.len() / levels.len()).map(|of| of[0]).collect();
                let scores = loss.as_ref().map_or_else(|| vec![0.0; levels.len()], lowest);
                self.make(index, state, work, &levels, decision, &scores, all)?;
            }
            if let Some(log) = &mut log {
                let group = &self.groups[index];
                log(ControlEntry {
                    layer: group.first,
                    kv_heads: group.heads(),
                    kept,
                    attention: None,
                    loss,
                    danger,
                    terms: None,
                    levels,
                    decision,
                    planned: None,
                });
            }
        }
        Ok(())
    }

    /// A layer's blocks, of which nothing was heard.
    fn meet(&self, index: usize, state: &SequenceState) -> Heard {
        let group = &self.groups[index];
        let kept = state.control.get(index).map_or(usize::MAX, |control| control.kept);
        let levels = ladder_levels(&state.tables[index], group.level_count());
        Heard { kept, levels, loss: None, danger: None }
    }

    /// What the last step said of them.
    fn hear(
        &self,
        index: usize,
        control: &Retention,
        state: &mut SequenceState,
        work: &mut Workspace,
        heard: &mut Heard,
    ) -> Result<(), Error> {
        let gated = control.rule.gate.is_some();
        let reading = Reading { measure: control.measure, cancels: true, gated };
        if let Some(terms) = self.seen(index, state, work, &heard.levels, reading)? {
            let blocks = heard.levels.len();
            heard.loss = Some(terms.sum(blocks * usize::from(self.groups[index].level_count())));
            heard.danger = Some(terms.danger).filter(|danger| gated && danger.len() == blocks);
        }
        Ok(())
    }
}

fn layers(state: &mut SequenceState) -> Vec<&mut Layer> {
    let all = state.control.iter_mut().filter_map(|layer| match &mut layer.decides {
        Decides::Retained(layer) => Some(layer),
        _ => None,
    });
    all.collect()
}

fn told(heard: &[Heard]) -> Vec<Told<'_>> {
    let all = heard.iter().map(|Heard { kept, levels, loss, danger }| Told {
        kept: *kept,
        loss: loss.as_deref(),
        danger: danger.as_deref(),
        levels,
    });
    all.collect()
}
