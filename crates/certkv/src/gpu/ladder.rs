//! The launches of one layer's attention under a policy: a fixed sequence, so that it can be recorded.
//!
//! `Certified` is at most three passes. The first reads what the last step's plan chose exactly and all else from codes, and
//! lists the heads over tolerance. For those the repair promotes more, from scratch or straight over the host's link, and a
//! second pass over just them lists what is left; that goes to the dense rung: every block from the mapped originals, which
//! leaves nothing but rounding (math.md (5.26)). All of that behind the first pass is one launch (`kernels/ladder.cu`), as nearly always there is nothing
//! of it to do. Then the plan chooses the next step's sides from this step's masses, and its copies to scratch come before the next layer's launches.
//!
//! A *refinable* format has no plan: the first pass itself reads the residual planes of the blocks whose weights ask for them. For heads over
//! tolerance more sides are picked, by this step's masses and outputs, and a correction takes their blocks away and adds them again (math.md (6.6),
//! (6.11)), which is one launch, too. Where no residuals are enough the repair reads all of them, and originals of what then stands out.
//!
//! *Cost:* the records once, and 5 launches with append, plan and copies (4 for a refinable format), of which one over an empty list takes some 3 us; for
//! a block picked its record and residuals; for a listed head its records and promoted sides once more; for a dense one its originals over the link,
//! which is some 90 times slower than device memory.
use super::core::{Choice, Core, Drafts};
use super::policy::{Limit, Rule};
use crate::Error;
use certkv_kernel::cuda::args::Element;
use certkv_kernel::cuda::ladder::{self as launched, Ladder};
use certkv_kernel::cuda::launch::{self, Attend, Refinement};
use certkv_kernel::cuda::queue::Span;
use certkv_kernel::cuda::select::SelectMode;
use certkv_kernel::cuda::tensor::Tensor;

/// One layer's attention.
#[derive(Debug, Clone, Copy)]
pub(super) struct Call<'a> {
    pub(super) layer: usize,
    /// Sequences of the batch.
    pub(super) seqs: usize,
    /// Blocks that it reads, over all sequences and KV heads; where they still grow, as many as there can be.
    pub(super) blocks: usize,
    pub(super) query: Tensor<'a>,
    pub(super) out: Tensor<'a>,
    pub(super) rule: Rule,
    /// Whether the list of heads over tolerance is as the layer's append left it: empty.
    pub(super) fresh: bool,
    /// `None`: a token of each sequence.
    pub(super) drafts: Option<Drafts>,
}

/// Enqueues the launches of `call`.
pub(super) fn attend(core: &Core, call: &Call<'_>) -> Result<(), Error> {
    up_to(core, call, Last::Dense)?;
    plan_next(core, call)
}

/// Whether heads may need the originals of every block.
pub(super) fn reads_all(core: &Core, call: &Call<'_>) -> bool {
    !core.kit(call.layer).exact && call.rule != Rule::Packed
}

/// Enqueues what comes before originals of every block are read: all of it, where no head can need them.
pub(super) fn attend_but_dense(core: &Core, call: &Call<'_>) -> Result<(), Error> {
    up_to(core, call, Last::Repair)
}

/// The last rung that is enqueued.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Last {
    Repair,
    Dense,
}

fn up_to(core: &Core, call: &Call<'_>, last: Last) -> Result<(), Error> {
    let Call { layer, rule, .. } = *call;
    core.settle(layer)?;
    let plain = || core.plain_args(call);
    let first = |args: &Attend<'_>| run_first(core, call, args);
    if let Some(of) = call.drafts.filter(|of| !of.closing) {
        core.protect_coded(layer, of.place, call.seqs, rule)?;
    }
    if !call.fresh {
        core.empty_list(layer, 0, call.drafts)?;
        core.empty_corrections()?;
    }
    match rule {
        Rule::Packed => {
            let promoted = if core.protects(layer) { Some(core.chosen(layer)?) } else { None };
            // For who decides on levels.
            let masses = if core.sizes.controlled { Some(core.layer_masses(layer)?) } else { None };
            first(&Attend { promoted, masses, ..plain()? })
        }
        Rule::Dense if core.kit(layer).exact => first(&plain()?),
        Rule::Dense if last == Last::Dense => first(&all_originals(core, call)?),
        Rule::Dense => Ok(()),
        Rule::Certified(limit) => certified(core, call, limit, last),
    }
}

/// The same under a tolerance.
fn within<'a>(core: &'a Core, limit: Limit, args: Attend<'a>) -> Result<Attend<'a>, Error> {
    Ok(Attend { relative: limit.relative, absolute: limit.absolute, limits: core.limits(limit)?, ..args })
}

/// The launch over the whole batch. Lists of heads are short: only this one can be worth the wide cut. Behind the layer's append nothing that is
/// still running can be at the layer's records: the step's tables were sent before, and what it fills is coded when it ends.
fn run_first(core: &Core, call: &Call<'_>, args: &Attend<'_>) -> Result<(), Error> {
    if let Some(kit) = core.kit(call.layer).for_drafts(call.drafts) {
        // Behind the append of a draft step, which writes what a step's does.
        let settled = call.fresh && call.drafts.is_some_and(|drafts| drafts.closing);
        return Ok(launch::attend(&core.queue, &kit.attend, &Attend { settled, ..*args })?);
    }
    if core.levels.is_some() {
        return core.attend_levels(call.layer, &Attend { settled: call.fresh, ..*args }, Some(call.blocks));
    }
    let (kernel, variant) = core.kit(call.layer).cut_for(call.blocks);
    Ok(launch::attend(&core.queue, kernel, &Attend { variant, settled: call.fresh, ..*args })?)
}

/// Arguments of a launch that reads the originals of every block.
fn all_originals<'a>(core: &'a Core, call: &Call<'a>) -> Result<Attend<'a>, Error> {
    let args = core.plain_args(call)?;
    Ok(Attend { promoted: Some(core.everything(call.layer)?), ..args })
}

/// The same for heads that repairs leave over tolerance.
fn dense_rung<'a>(core: &'a Core, call: &Call<'a>, limit: Limit, only: Span<'a>) -> Result<Attend<'a>, Error> {
    let certificates = core.certificates_of(call.layer, 1, call.drafts)?;
    within(core, limit, Attend { certificates, only: Some(only), ..all_originals(core, call)? })
}

/// Enqueues the dense rung for the heads of `only`.
pub(super) fn dense<'a>(core: &'a Core, call: &Call<'a>, only: Span<'a>) -> Result<(), Error> {
    let args = match call.rule {
        Rule::Certified(limit) => dense_rung(core, call, limit, only)?,
        _ => Attend { only: Some(only), ..all_originals(core, call)? },
    };
    run(core, call.layer, &args)
}

/// Enqueues the choice of what the next step reads exactly, unless that is left to a call of its own.
pub(super) fn plan_next(core: &Core, call: &Call<'_>) -> Result<(), Error> {
    let refinable = core.kit(call.layer).corrects.is_some();
    let certifies = matches!(call.rule, Rule::Certified(_)) && reads_all(core, call);
    let apart = call.drafts.is_none() && core.plans_apart(call.layer);
    if refinable || apart || !certifies {
        return Ok(());
    }
    core.plan(&choice_of(call))?;
    core.lends(call.layer, false);
    Ok(())
}

/// The plan behind a call.
fn choice_of<'a>(call: &Call<'a>) -> Choice<'a> {
    match call.drafts {
        None => Choice::plan(call.layer, 0, call.seqs, true),
        Some(of) => Choice { drafts: call.drafts, ..Choice::plan(call.layer, of.place, call.seqs, of.closing) },
    }
}

/// Rounds of a plan after a prompt, at most.
const ROUNDS: usize = 16;

/// Attention of the sequence at `place`, for its masses, and the plan that they give. Each round copies as much as a step may; what it
/// took stays.
pub(super) fn plan(core: &Core, layer: usize, place: usize, query: Tensor<'_>, limit: Limit) -> Result<(), Error> {
    core.settle(layer)?;
    let plain = core.attend_args(layer, 1, query, core.own_outputs(place, 1, Element::F32)?)?;
    let args = Attend {
        tables: core.tables_from(layer, place)?,
        certificates: core.certificates_from(layer, place)?,
        masses: Some(core.layer_masses(layer)?),
        // A prompt's full blocks have been coded.
        closing: false,
        ..within(core, limit, plain)?
    };
    run(core, layer, &args)?;
    let [keys, values] = core.sizes.of_layer[layer].slots;
    for _ in 0..(keys + values).div_ceil(core.sizes.copies).clamp(1, ROUNDS) {
        core.empty_queue(layer)?;
        core.plan(&Choice::plan(layer, place, 1, false))?;
    }
    Ok(())
}

fn run(core: &Core, layer: usize, args: &Attend<'_>) -> Result<(), Error> {
    if core.levels.is_some() {
        return core.attend_levels(layer, args, None);
    }
    Ok(launch::attend(&core.queue, &core.kit(layer).attend, args)?)
}

fn certified(core: &Core, call: &Call<'_>, limit: Limit, last: Last) -> Result<(), Error> {
    let Call { layer, drafts, .. } = *call;
    let plain = &within(core, limit, core.plain_args(call)?)?;
    let (over, left) = (core.list_of(layer, 0, drafts)?, core.list_of(layer, 1, drafts)?);
    let kit = core.kit(layer);
    if kit.exact {
        // Nothing to promote: what is over tolerance cannot be bounded, and is an error.
        core.empty_list(layer, 1, drafts)?;
        return run_first(core, call, plain);
    }
    let (ladder, corrects) = core.ladders(layer, drafts);
    let choice = |mode, only| core.choice(&Choice { mode, only: Some(only), ..choice_of(call) });
    let chosen =
        Attend { promoted: Some(core.chosen(layer)?), masses: Some(core.masses_for(layer, drafts)?), ..*plain };
    let turns = core.counter(&core.sizes.counters.turns)?;
    if let Some((kernel, variant)) = corrects {
        let (kept, listed) = (Some(core.kept_of(drafts)?), core.correction_list()?);
        core.correcting(true);
        let refinement = core.on_demand(layer)?;
        run_first(core, call, &Attend { failures: Some(listed), promoted: None, refinement, kept, ..chosen })?;
        let refinement = Refinement::Picked(core.picks()?);
        let pass = Attend { variant, only: Some(listed), failures: Some(over), kept, refinement, ..*plain };
        let choice = Some(choice(SelectMode::Refine, listed)?);
        launched::ladder(&core.queue, kernel, &Ladder { choice, pass, then: None, turns })?;
    } else {
        run_first(core, call, &Attend { failures: Some(over), ..chosen })?;
    }
    if core.levels.is_some() {
        return climb_levels(core, call, limit, &chosen);
    }
    core.lends(layer, corrects.is_none());
    let certificates = core.certificates_of(layer, 1, drafts)?;
    let refinement = if corrects.is_some() { Refinement::Always } else { Refinement::Never };
    let pass = Attend { certificates, only: Some(over), failures: Some(left), refinement, ..chosen };
    let then = if last == Last::Dense { Some(dense_rung(core, call, limit, left)?) } else { None };
    let choice = Some(choice(SelectMode::Repair, over)?);
    launched::ladder(&core.queue, ladder, &Ladder { choice, pass, then, turns })?;
    // It empties the list of corrections.
    core.correcting(false);
    Ok(())
}

/// What is behind the first pass where blocks have levels, whose formats no one kernel reads: the choice, a pass over the heads over tolerance, and one over those
/// that are left, in launches of their own.
fn climb_levels(core: &Core, call: &Call<'_>, limit: Limit, chosen: &Attend<'_>) -> Result<(), Error> {
    let layer = call.layer;
    let (over, left) = (core.list_of(layer, 0, None)?, core.list_of(layer, 1, None)?);
    let choice = Choice { mode: SelectMode::Repair, only: Some(over), ..choice_of(call) };
    core.select(&core.queue, &choice)?;
    core.lends(layer, true);
    let certificates = core.certificates_of(layer, 1, None)?;
    run(core, layer, &Attend { certificates, only: Some(over), failures: Some(left), masses: None, ..*chosen })?;
    run(core, layer, &dense_rung(core, call, limit, left)?)
}
