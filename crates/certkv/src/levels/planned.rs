//! The certificate-driven budget: levels of all layers so that the bounds of the last step's outputs would be least.
use super::Control;
use super::control::{ControlEntry, Controlled, Decides, LayerControl, Planned, check_bytes};
use super::site::{OnHost, Site};
use super::terms::{self, Reading};
use crate::cache::Cache;
use crate::sequence::SequenceState;
use crate::work::Workspace;
use crate::{Config, Error, SequenceId};
use certkv_control::Standing;
use certkv_control::bound_budget::{BoundPlan, BoundRule, Clock, Lacking, Planner, Terms, Told};
use certkv_control::smartkv::Decision;

/// Levels by the certificates' own terms, math.md 9.5: the fewest bytes at which the bound of every query head's output would be within a
/// tolerance; where the budget is less than that, what loses least within it. One price for the bytes of all layers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BoundBudget {
    /// Bytes that a token of a full block may take in a layer on average over all layers, all KV heads together: codes, scales, summaries and
    /// seals.
    pub bytes_per_token: f64,
    /// Tolerance and clock.
    pub rule: BoundRule,
}

impl BoundBudget {
    /// The default rule within so many bytes.
    pub fn new(bytes_per_token: f64) -> Self {
        Self { bytes_per_token, rule: BoundRule::default() }
    }

    /// Checks the rule and the budget.
    pub(super) fn check(&self, config: &Config) -> Result<(), String> {
        self.rule.validated().map_err(|error| error.to_string())?;
        check_bytes(config, self.bytes_per_token)
    }
}

/// Levels that blocks could have, and what the certificates of the last step would have been: [`Cache::plan_levels`].
#[derive(Debug, Clone, PartialEq)]
pub struct LevelPlan {
    /// Level of each full block, `[layer][block]`, or `[layer][KV head][block]` with [`Config::levels_by_head`], layers and heads in one list: which of [`Config::levels`].
    pub levels: Vec<Vec<usize>>,
    /// Bytes of pages at these levels, all layers together, without padding.
    pub bytes: f64,
    /// The largest bound of a query head as a share of its output's norm, if every block were read from its codes.
    pub bound: f64,
    /// What is lacking of the tolerance.
    pub lacking: Lacking,
}

/// What one layer is told.
struct Heard {
    kept: usize,
    levels: Vec<u8>,
    terms: Option<Terms>,
}

impl Cache {
    /// The fewest bytes, at most `bytes` in all layers together, at which the bound of every query head of the last step's outputs would be at
    /// most `epsilon` of the output's norm, read from codes alone; where those are too few, what loses least within them, and how many are
    /// lacking. Nothing moves: [`Cache::set_levels`] does that, or [`Cache::control`] under [`crate::Control::Budget`], which plans so.
    ///
    /// `None` if nothing was seen since [`Cache::control`] looked last. Blocks that are new are coded at every level once; the plan costs up
    /// to 48 sorts of the blocks.
    ///
    /// # Errors
    /// [`Error::Config`] naming `control` if that is none that judges by terms; unknown or busy sequence; [`Error::SwappedOut`];
    /// [`Error::Control`] for bytes or a tolerance that are no numbers.
    pub fn plan_levels(&self, id: SequenceId, epsilon: f64, bytes: f64) -> Result<Option<LevelPlan>, Error> {
        check_plan(self.config.control.as_ref(), epsilon)?;
        let _turn = self.turn.lock();
        self.with(id, |state| {
            if state.is_out() {
                return Err(Error::SwappedOut);
            }
            let mut work = self.workspace()?;
            let planned = plan(&mut OnHost { cache: self, state, work: &mut work }, epsilon, bytes);
            self.return_workspace(work);
            planned
        })
    }

    /// Bytes of a page in one layer by level of the ladder; all layers have the same levels.
    pub(super) fn ladder_cost(&self) -> Vec<f64> {
        let of =
            |group: &crate::group::Group| (0..group.level_count()).rev().map(|l| group.bytes_at(l) as f64).collect();
        self.groups.first().map_or_else(Vec::new, of)
    }

    /// What the last step said of a layer's blocks, which have `levels`, if somebody looks for the first time.
    pub(super) fn seen(
        &self,
        index: usize,
        state: &mut SequenceState,
        work: &mut Workspace,
        levels: &[u8],
        reading: Reading,
    ) -> Result<Option<terms::HeadTerms>, Error> {
        self.probe(index, state, work, levels.len())?;
        Ok(terms::read(&self.groups[index], state, levels, reading))
    }
}

/// Whether somebody keeps what a plan is made from, and for that tolerance.
pub(crate) fn check_plan(control: Option<&Control>, epsilon: f64) -> Result<(), Error> {
    if !control.is_some_and(Control::wants_terms) {
        let why = "levels are planned from terms, which only retention and the bound's budget keep".to_owned();
        return Err(Error::Config { field: "control", why });
    }
    BoundRule { epsilon, ..BoundRule::default() }.validated()?;
    Ok(())
}

/// As [`Cache::plan_levels`].
pub(crate) fn plan(site: &mut dyn Site, epsilon: f64, bytes: f64) -> Result<Option<LevelPlan>, Error> {
    let mut terms = Vec::with_capacity(site.groups());
    for group in 0..site.groups() {
        let levels = site.levels(group)?;
        let Some(found) = site.seen(group, &levels, Reading::CERTIFICATE)? else { return Ok(None) };
        terms.push(found.into_terms());
    }
    let (terms, cost): (Vec<&Terms>, _) = (terms.iter().collect(), site.cost());
    let plan = site.deciders()?.1.planner.plan(&terms, &cost, epsilon, bytes)?;
    let top = cost.len().saturating_sub(1);
    let down = |levels: Vec<u8>| levels.into_iter().map(|level| top.saturating_sub(level.into())).collect();
    let BoundPlan { levels, bytes, bound, lacking, .. } = plan;
    Ok(Some(LevelPlan { levels: levels.into_iter().map(down).collect(), bytes, bound, lacking }))
}

/// Lets the bound's budget look at a sequence, and change levels where it decides to.
pub(crate) fn control(
    control: &BoundBudget,
    site: &mut dyn Site,
    mut log: Option<&mut dyn FnMut(ControlEntry)>,
    all: &mut Controlled,
) -> Result<(), Error> {
    let rule = &control.rule;
    let is_quiet = |decides: &Decides, _: usize, now: &Standing| matches!(decides, Decides::Planned(clock) if clock.is_quiet(now, rule));
    // A log has every step.
    if log.is_none() && site.let_pass(&is_quiet)? {
        return Ok(());
    }
    let mut heard = Vec::with_capacity(site.groups());
    for group in 0..site.groups() {
        heard.push(Heard { kept: site.kept(group)?, levels: site.levels(group)?, terms: None });
    }
    let (cost, budget) = (site.cost(), site.of_block(control.bytes_per_token));
    if Planner::is_due(rule, &clocks(site.deciders()?.0), &told(&heard), &cost, budget) {
        for (group, heard) in heard.iter_mut().enumerate() {
            let found = site.seen(group, &heard.levels, Reading::CERTIFICATE)?;
            heard.terms = found.map(|found| found.into_terms());
        }
    }
    site.forget();
    let (layer_controls, deciders) = site.deciders()?;
    let plan = deciders.planner.tell(rule, &mut clocks(layer_controls), &told(&heard), &cost, budget)?;
    layer_controls.iter_mut().for_each(LayerControl::told);
    for (group, Heard { kept, levels, terms }) in heard.into_iter().enumerate() {
        let decision = plan.as_ref().map(|(trigger, plan)| {
            let wanted = &plan.levels[group];
            let bytes = wanted.iter().map(|level| cost[usize::from(*level)]).sum();
            let fits = !matches!(plan.lacking, Lacking::Floor(_));
            Decision { trigger: *trigger, levels: fits.then(|| wanted.clone()), bytes, forced: false }
        });
        if let Some(decision) = &decision {
            let scores = terms.as_ref().map_or_else(Vec::new, |terms| lowest(terms, levels.len()));
            site.make(group, &levels, decision, &scores, all)?;
        }
        if let Some(log) = &mut log {
            let planned = plan.as_ref().map(|(_, plan)| Planned { bound: plan.bound, lacking: plan.lacking });
            log(ControlEntry { terms, decision, planned, ..ControlEntry::of(site.place(group), kept, levels) });
        }
    }
    Ok(())
}

fn clocks(controls: &mut [LayerControl]) -> Vec<&mut Clock> {
    let all = controls.iter_mut().filter_map(|layer| match &mut layer.decides {
        Decides::Planned(clock) => Some(clock),
        _ => None,
    });
    all.collect()
}

fn told(heard: &[Heard]) -> Vec<Told<'_>> {
    heard.iter().map(|Heard { kept, levels, terms }| Told { kept: *kept, terms: terms.as_ref(), levels }).collect()
}

/// What each block loses at the lowest level, all heads together.
fn lowest(terms: &Terms, blocks: usize) -> Vec<f64> {
    let cells = terms.loss.len().checked_div(terms.heads * blocks).unwrap_or(0);
    let of = |block: usize| (0..terms.heads).map(|head| terms.loss[(head * blocks + block) * cells]).sum();
    (0..blocks).map(of).collect()
}
