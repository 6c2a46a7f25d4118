//! SmartKV for one layer: what its controller is told, and what becomes of its decision.
use super::control::{ControlEntry, Controlled, Decides, check_bytes};
use super::ladder_levels;
use super::terms::{Measure, Reading};
use crate::cache::Cache;
use crate::group::Group;
use crate::sequence::SequenceState;
use crate::work::Workspace;
use crate::{Config, Error};
use certkv_control::smartkv::{Controller, Ladder, Rule, Told};

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

impl SmartKv {
    /// Checks the rule and the budget.
    pub(super) fn check(&self, config: &Config) -> Result<(), String> {
        Controller::new(0, config.geometry.q_heads, self.rule).map_err(|error| error.to_string())?;
        check_bytes(config, self.bytes_per_token)
    }
}

impl Cache {
    pub(super) fn control_smart(
        &self,
        index: usize,
        control: &SmartKv,
        state: &mut SequenceState,
        work: &mut Workspace,
        logged: bool,
        all: &mut Controlled,
    ) -> Result<Option<ControlEntry>, Error> {
        let group = &self.groups[index];
        let (layer, count) = (group.first, group.level_count());
        let gated = control.rule.gate.is_some();
        let levels = ladder_levels(&state.tables[index], count);
        let danger = if gated {
            let reading = Reading { measure: Measure::Linear, cancels: true, gated };
            let found = self.seen(index, state, work, &levels, reading)?;
            found.map(|found| found.danger).filter(|danger| danger.len() == levels.len())
        } else {
            None
        };
        let attention = take_attention(group, state, levels.len());
        let Some(layer_control) = state.control.get_mut(layer) else { return Ok(None) };
        let kept = layer_control.kept;
        let Decides::Smart(controller) = &mut layer_control.decides else { return Ok(None) };
        let up = (0..count).rev();
        let bits: Vec<u8> = up.clone().map(|level| width(group, level)).collect();
        let cost: Vec<f64> = up.map(|level| group.bytes_at(level) as f64).collect();
        let ladder = Ladder { bits: &bits, cost: &cost };
        let told = Told { kept, attention: attention.as_deref(), levels: &levels, danger: danger.as_deref() };
        let budget = control.bytes_per_token * group.layout.tokens() as f64;
        let decision = controller.tell(&mut work.widths, &ladder, &told, budget)?;
        let scores = decision.is_some().then(|| controller.scores().to_vec());
        layer_control.told();
        if let (Some(decision), Some(scores)) = (&decision, scores) {
            self.make(index, state, work, &levels, decision, &scores, all)?;
        }
        Ok(logged.then_some(ControlEntry {
            layer,
            kept,
            attention,
            loss: None,
            danger,
            terms: None,
            levels,
            decision,
            planned: None,
        }))
    }
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
    for head in &mut state.heads[group.all_memories()] {
        head.terms.clear();
        whole &= head.mass.len() == blocks * group.kernel.heads();
        rows.extend(head.mass.drain(..).map(f64::from));
    }
    (whole && rows.iter().all(|mass| mass.is_finite())).then_some(rows)
}
