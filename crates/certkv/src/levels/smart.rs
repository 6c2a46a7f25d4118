//! SmartKV for one layer: what its controller is told, and what becomes of its decision.
use super::control::{ControlEntry, Controlled, Decides, check_bytes};
use super::terms::Reading;
use super::{Level, of_block};
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
    /// Bits of the levels, the last first.
    pub(super) fn ladder_bits(&self) -> Vec<u8> {
        ladder_bits(&self.config.levels)
    }

    pub(super) fn control_smart(
        &self,
        (index, control, ladder): (usize, &SmartKv, &Ladder<'_>),
        state: &mut SequenceState,
        work: &mut Workspace,
        logged: bool,
        all: &mut Controlled,
    ) -> Result<Option<ControlEntry>, Error> {
        let group = &self.groups[index];
        let gated = control.rule.gate.is_some();
        let Heard { mut levels, mut attention } = core::mem::take(&mut work.heard);
        let SequenceState { tables, control: layers, .. } = &mut *state;
        levels.clear();
        levels.extend_from_slice(layers[index].levels(&tables[index], group.level_count()));
        let danger = if gated {
            let found = self.seen(index, state, work, &levels, Reading::DANGER)?;
            found.map(|found| found.danger).filter(|danger| danger.len() == levels.len())
        } else {
            None
        };
        let whole = take_attention(group, state, levels.len(), &mut attention);
        let Some(layer_control) = state.control.get_mut(index) else { return Ok(None) };
        let kept = layer_control.kept;
        let Decides::Smart(controller) = &mut layer_control.decides else { return Ok(None) };
        let told =
            Told { kept, attention: whole.then_some(&attention[..]), levels: &levels, danger: danger.as_deref() };
        let budget = of_block(control.bytes_per_token, self.level_shape());
        let decision = controller.tell(&mut work.widths, ladder, &told, budget)?;
        let scores = decision.is_some().then(|| controller.scores().to_vec());
        layer_control.told();
        if let (Some(decision), Some(scores)) = (&decision, scores) {
            self.make(index, state, work, &levels, decision, &scores, all)?;
        }
        let entry = logged.then(|| ControlEntry {
            attention: whole.then(|| attention.clone()),
            danger,
            decision,
            ..ControlEntry::of((group.first, group.heads()), kept, levels.clone())
        });
        work.heard = Heard { levels, attention };
        Ok(entry)
    }
}

/// What a controller is told of one layer: buffers that are kept from layer to layer.
#[derive(Debug, Default)]
pub(crate) struct Heard {
    levels: Vec<u8>,
    attention: Vec<f64>,
}

/// Bits of levels, the last first.
pub(crate) fn ladder_bits(levels: &[Level]) -> Vec<u8> {
    let formats: Vec<Format> = levels.iter().rev().map(|level| level.format).collect();
    widths(&formats)
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

/// The masses of the last step, `[query head][block]`, taken from the heads that kept them. Whether these are all: not if there was no step, or it was of
/// other blocks, or its masses are not finite.
fn take_attention(group: &Group, state: &mut SequenceState, blocks: usize, rows: &mut Vec<f64>) -> bool {
    let (heads, each) = (&mut state.heads[group.all_memories()], blocks * group.kernel.heads());
    rows.clear();
    let mut whole = blocks > 0;
    for head in heads {
        head.terms.clear();
        whole &= head.mass.len() == each && head.mass.iter().fold(true, |all, mass| all & mass.is_finite());
        if whole {
            rows.extend(head.mass.iter().map(|mass| f64::from(*mass)));
        }
        head.mass.clear();
    }
    whole
}
