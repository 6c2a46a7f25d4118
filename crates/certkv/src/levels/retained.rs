//! Retention over levels: what it is told of all layers, and what becomes of its decisions.
use super::control::{ControlEntry, Controlled, Decides, LayerControl, check_bytes};
use super::site::Site;
use super::terms::{Measure, Reading};
use crate::{Config, Error};
use certkv_control::Standing;
use certkv_control::retention::{Budgets, Controller, Layer, Rule, Told, Wants};

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

/// Lets retention look at a sequence, and change levels where it decides to.
pub(crate) fn control(
    control: &Retention,
    site: &mut dyn Site,
    mut log: Option<&mut dyn FnMut(ControlEntry)>,
    all: &mut Controlled,
) -> Result<(), Error> {
    let rule = &control.rule;
    let is_quiet = |decides: &Decides, layer: usize, now: &Standing| matches!(decides, Decides::Retained(of) if of.is_quiet(layer, now, rule));
    // A log has every step.
    if log.is_none() && site.let_pass(&is_quiet)? {
        return Ok(());
    }
    let mut heard = Vec::with_capacity(site.groups());
    for group in 0..site.groups() {
        heard.push(Heard { kept: site.kept(group)?, levels: site.levels(group)?, loss: None, danger: None });
    }
    let cost = site.cost();
    let budgets = Budgets {
        block: site.of_block(control.bytes_per_token),
        layer: site.of_block(control.layer_bytes_per_token),
        head: site.of_block(control.head_bytes_per_token),
        heads: site.shape().0,
    };
    let wanted = Controller::wants(rule, &layers(site.deciders()?.0), &told(&heard), &cost, budgets);
    if rule.gate.is_none() {
        let all = site.losses(&wanted, control.measure)?;
        heard.iter_mut().zip(all).for_each(|(heard, loss)| heard.loss = loss);
    } else {
        // Danger is told by what each head says.
        for (group, heard) in heard.iter_mut().enumerate().filter(|(group, _)| wanted[*group] != Wants::Nothing) {
            hear(site, group, control, cost.len(), heard)?;
        }
    }
    site.forget();
    let (layer_controls, deciders) = site.deciders()?;
    let decisions = deciders.retention.tell(rule, &mut layers(layer_controls), &told(&heard), &cost, budgets)?;
    layer_controls.iter_mut().for_each(LayerControl::told);
    for (group, (heard, decision)) in heard.into_iter().zip(decisions).enumerate() {
        let Heard { kept, levels, loss, danger } = heard;
        if let Some(decision) = &decision {
            // Those that lose most at the lowest level come up first; of the last ones nothing may have been heard.
            let lowest = |block: usize| loss.as_ref().and_then(|loss| loss.get(block * cost.len())).copied();
            let scores: Vec<f64> = (0..levels.len()).map(|block| lowest(block).unwrap_or(0.0)).collect();
            site.make(group, &levels, decision, &scores, all)?;
        }
        if let Some(log) = &mut log {
            log(ControlEntry { loss, danger, decision, ..ControlEntry::of(site.place(group), kept, levels) });
        }
    }
    Ok(())
}

/// What the last step said of a group's blocks, with the danger of each.
fn hear(site: &mut dyn Site, group: usize, control: &Retention, count: usize, heard: &mut Heard) -> Result<(), Error> {
    let reading = Reading { gated: true, ..Reading::losses(control.measure) };
    if let Some(terms) = site.seen(group, &heard.levels, reading)? {
        let blocks = heard.levels.len();
        heard.loss = Some(terms.sum(blocks * count));
        heard.danger = Some(terms.danger).filter(|danger| danger.len() == blocks);
    }
    Ok(())
}

fn layers(controls: &mut [LayerControl]) -> Vec<&mut Layer> {
    let all = controls.iter_mut().filter_map(|layer| match &mut layer.decides {
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
