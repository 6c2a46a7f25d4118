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
use certkv_core::Format;

/// SmartKV over [`Config::levels`], one controller for each layer of each sequence: math.md 9.2 with blocks for items.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SmartKv {
    /// Bytes that a token of a full block may take in one layer on average, all KV heads together: codes, scales, summaries and seals. Heads with
    /// levels of their own have equal parts of it.
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
        let formats: Vec<Format> = config.levels.iter().map(|level| level.format).collect();
        if let Some(at) = widths(&formats).windows(2).position(|pair| pair[0] <= pair[1]) {
            return Err(format!(
                "{} has no more bits than {}, which is all that it knows of them",
                formats[at],
                formats[at + 1]
            ));
        }
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
        let count = group.level_count();
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
        let Some(layer_control) = state.control.get_mut(index) else { return Ok(None) };
        let kept = layer_control.kept;
        let Decides::Smart(controller) = &mut layer_control.decides else { return Ok(None) };
        let up = (0..count).rev();
        let formats: Vec<Format> = up.clone().map(|level| group.layout_at(level).format).collect();
        let bits = widths(&formats);
        let cost: Vec<f64> = up.map(|level| group.bytes_at(level) as f64).collect();
        let ladder = Ladder { bits: &bits, cost: &cost };
        let told = Told { kept, attention: attention.as_deref(), levels: &levels, danger: danger.as_deref() };
        let budget = self.of_block(control.bytes_per_token);
        let decision = controller.tell(&mut work.widths, &ladder, &told, budget)?;
        let scores = decision.is_some().then(|| controller.scores().to_vec());
        layer_control.told();
        if let (Some(decision), Some(scores)) = (&decision, scores) {
            self.make(index, state, work, &levels, decision, &scores, all)?;
        }
        Ok(logged.then_some(ControlEntry {
            layer: group.first,
            kv_heads: group.heads(),
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

/// Bits of a channel's key and value together: widths of the ladder. In eighths beside spherical keys, which have less than one; utility (9.11) is a power of
/// them, so that their unit is no matter.
fn widths(formats: &[Format]) -> Vec<u8> {
    let eighths = formats.iter().any(|format| format.key.tier().is_some());
    let of = |Format { key, value, .. }: &Format| match key.tier() {
        Some(tier) => 8 * value.bits() + (8 * (8 + tier.bits() as usize)).div_ceil(tier.group()),
        None => (key.bits() + value.bits()) * if eighths { 8 } else { 1 },
    };
    formats.iter().map(|format| of(format) as u8).collect()
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
