//! Retention over levels: what it is told of all layers, and what becomes of its decisions.
use super::control::{ControlEntry, Controlled, Decides, check_bytes};
use super::terms::{self, Measure, Reading};
use crate::cache::Cache;
use crate::sequence::SequenceState;
use crate::work::Workspace;
use crate::{Config, Error};
use certkv_control::retention::{Budgets, Rule, Told};
use certkv_control::smartkv::Decision;

/// Rate-distortion retention over [`Config::levels`]: math.md 9.3 with blocks of layers for items. What a level loses is its terms in the
/// certificates of the last step, as shares of the outputs' norms, all query heads of the layer together. All layers share one budget.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Retention {
    /// Bytes that a token of a full block may take in a layer on average over all layers, all KV heads together: codes, scales, summaries and
    /// seals.
    pub bytes_per_token: f64,
    /// The same on average over any one layer; infinite for no such limit.
    pub layer_bytes_per_token: f64,
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
        let heard = (0..self.groups.len()).map(|index| self.hear(index, control, state, work));
        let heard = heard.collect::<Result<Vec<_>, _>>()?;
        let decisions = self.decide_retained(control, state, work, &heard)?;
        for (index, (heard, decision)) in heard.into_iter().zip(decisions).enumerate() {
            let Heard { kept, levels, loss, danger } = heard;
            if let Some(decision) = &decision {
                // Those that lose most at the lowest level come up first.
                let lowest = |loss: &Vec<f64>| loss.chunks_exact(loss.len() / levels.len()).map(|of| of[0]).collect();
                let scores = loss.as_ref().map_or_else(|| vec![0.0; levels.len()], lowest);
                self.make(index, state, work, &levels, decision, &scores, all)?;
            }
            if let Some(log) = &mut log {
                let layer = self.groups[index].first;
                log(ControlEntry {
                    layer,
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

    fn hear(
        &self,
        index: usize,
        control: &Retention,
        state: &mut SequenceState,
        work: &mut Workspace,
    ) -> Result<Heard, Error> {
        let group = &self.groups[index];
        let gated = control.rule.gate.is_some();
        let reading = Reading { measure: control.measure, cancels: true, gated };
        let (levels, terms) = self.seen(index, state, work, reading)?;
        terms::forget(group, state);
        let cells = levels.len() * usize::from(group.level_count());
        let kept = state.control.get_mut(group.first).map_or(usize::MAX, |control| control.take_kept());
        let loss = terms.as_ref().map(|terms| terms.sum(cells));
        let danger = terms.filter(|terms| gated && terms.danger.len() == levels.len()).map(|terms| terms.danger);
        Ok(Heard { kept, levels, loss, danger })
    }

    fn decide_retained(
        &self,
        control: &Retention,
        state: &mut SequenceState,
        work: &mut Workspace,
        heard: &[Heard],
    ) -> Result<Vec<Option<Decision>>, Error> {
        let Some(group) = self.groups.first() else { return Ok(Vec::new()) };
        let cost = self.ladder_cost();
        let tokens = group.layout.tokens() as f64;
        let budgets =
            Budgets { block: control.bytes_per_token * tokens, layer: control.layer_bytes_per_token * tokens };
        let told = heard.iter().map(|Heard { kept, levels, loss, danger }| Told {
            kept: *kept,
            loss: loss.as_deref(),
            danger: danger.as_deref(),
            levels,
        });
        let told: Vec<_> = told.collect();
        let layers = state.control.iter_mut().filter_map(|layer| match &mut layer.decides {
            Decides::Retained(layer) => Some(layer),
            _ => None,
        });
        let mut layers: Vec<_> = layers.collect();
        Ok(work.retention.tell(&control.rule, &mut layers, &told, &cost, budgets)?)
    }
}
