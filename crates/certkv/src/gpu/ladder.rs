//! The launches of one layer's attention under a policy: a fixed sequence, so that it can be recorded.
//!
//! `Certified` is at most three passes. The first reads what the last step's plan chose exactly and all else from codes, and
//! lists the heads over tolerance. For those the repair promotes more, from scratch or straight over the host's link, and a
//! second pass over just them lists what is left; that goes to the dense rung: every block from the mapped originals, which
//! leaves nothing but rounding (math.md (5.26)). Then the plan chooses the next step's sides from this step's masses, and its
//! copies to scratch come before the next layer's launches.
//!
//! A *refinable* format has no plan: the first pass itself reads the residual planes of the blocks whose weights ask for them. For heads over
//! tolerance more sides are picked, by this step's masses and outputs, and a correction takes their blocks away and adds them again (math.md (6.6),
//! (6.11)). Where no residuals are enough the repair reads all of them, and originals of what then stands out.
//!
//! *Cost:* the records once, and 7 launches (6 for a refinable format) of which those over empty lists take about 3 us; for a block picked its record and
//! residuals; for a listed head its records and promoted sides once more; for a dense one its originals over the link, which is some 90 times slower
//! than device memory.
use super::core::{Choice, Core};
use super::policy::{Limit, Rule};
use crate::Error;
use certkv_kernel::cuda::args::Element;
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
}

/// Enqueues the launches of `call`.
pub(super) fn attend(core: &Core, call: &Call<'_>) -> Result<(), Error> {
    attend_but_dense(core, call)?;
    if reads_all(core, call) {
        dense(core, call, None)?;
        plan_next(core, call)?;
    }
    Ok(())
}

/// Whether heads may need the originals of every block.
pub(super) fn reads_all(core: &Core, call: &Call<'_>) -> bool {
    !core.kit(call.layer).exact && call.rule != Rule::Packed
}

/// Enqueues what comes before originals of every block are read: all of it, where no head can need them.
pub(super) fn attend_but_dense(core: &Core, call: &Call<'_>) -> Result<(), Error> {
    let Call { layer, seqs, query, out, rule, .. } = *call;
    core.settle(layer)?;
    let plain = core.attend_args(layer, seqs, query, out)?;
    // Lists of heads are short: only the launch over the whole batch can be worth the wide cut. Behind the layer's append nothing that is
    // still running can be at the layer's records: the step's tables were sent before, and what it fills is coded when it ends.
    let first = |args: &Attend<'_>| run_first(core, call, args);
    if !call.fresh {
        core.failures.fill(core.queue.stream(), core.list_at(layer, 0), 4, 0)?;
        core.empty_corrections()?;
    }
    match rule {
        Rule::Packed => first(&plain),
        Rule::Dense if core.kit(layer).exact => first(&plain),
        Rule::Dense => Ok(()),
        Rule::Certified(limit) => certified(core, layer, &within(core, limit, plain)?, first),
    }
}

/// The same under a tolerance.
fn within<'a>(core: &'a Core, limit: Limit, args: Attend<'a>) -> Result<Attend<'a>, Error> {
    Ok(Attend { relative: limit.relative, absolute: limit.absolute, limits: core.limits(limit)?, ..args })
}

/// The launch over the whole batch.
fn run_first(core: &Core, call: &Call<'_>, args: &Attend<'_>) -> Result<(), Error> {
    let (kernel, variant) = core.kit(call.layer).cut_for(call.blocks);
    Ok(launch::attend(&core.queue, kernel, &Attend { variant, settled: call.fresh, ..*args })?)
}

/// Enqueues the dense rung: originals of every block for the heads of `only`, or for those that need them.
pub(super) fn dense(core: &Core, call: &Call<'_>, only: Option<Span<'_>>) -> Result<(), Error> {
    let Call { layer, seqs, query, out, rule, .. } = *call;
    let args = Attend { promoted: Some(core.everything(layer)?), only, ..core.attend_args(layer, seqs, query, out)? };
    match (rule, only) {
        (Rule::Certified(limit), _) => {
            let (left, certificates) = (core.failure_list(layer, 1)?, core.certificates(layer, 1)?);
            run(core, layer, &within(core, limit, Attend { certificates, only: only.or(Some(left)), ..args })?)
        }
        (_, Some(_)) => run(core, layer, &args),
        (_, None) => run_first(core, call, &args),
    }
}

/// Enqueues the choice of what the next step reads exactly, unless that is left to a call of its own.
pub(super) fn plan_next(core: &Core, call: &Call<'_>) -> Result<(), Error> {
    let refinable = core.kit(call.layer).corrects.is_some();
    if refinable || core.plans_apart(call.layer) || !matches!(call.rule, Rule::Certified(_)) {
        return Ok(());
    }
    core.plan(&Choice::plan(call.layer, 0, call.seqs, true))?;
    core.lends(call.layer, false);
    Ok(())
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
    Ok(launch::attend(&core.queue, &core.kit(layer).attend, args)?)
}

fn certified(
    core: &Core,
    layer: usize,
    plain: &Attend<'_>,
    first: impl Fn(&Attend<'_>) -> Result<(), Error>,
) -> Result<(), Error> {
    let (over, left) = (core.failure_list(layer, 0)?, core.failure_list(layer, 1)?);
    if core.kit(layer).exact {
        // Nothing to promote: what is over tolerance cannot be bounded, and is an error.
        core.failures.fill(core.queue.stream(), core.list_at(layer, 1), 4, 0)?;
        return first(plain);
    }
    let corrects = core.kit(layer).corrects.as_ref();
    let of = |mode, only| Choice { mode, only: Some(only), ..Choice::plan(layer, 0, plain.seqs, true) };
    let chosen = Attend { promoted: Some(core.chosen(layer)?), masses: Some(core.layer_masses(layer)?), ..*plain };
    if let Some((kernel, variant)) = corrects {
        let (kept, listed) = (Some(core.kept()?), core.correction_list()?);
        core.correcting(true);
        first(&Attend { failures: Some(listed), promoted: None, refinement: core.on_demand(layer)?, kept, ..chosen })?;
        core.select(&core.queue, &of(SelectMode::Refine, listed))?;
        let refinement = Refinement::Picked(core.picks()?);
        let args = Attend { variant, only: Some(listed), failures: Some(over), kept, refinement, ..*plain };
        launch::attend(&core.queue, kernel, &args)?;
    } else {
        first(&Attend { failures: Some(over), ..chosen })?;
    }
    core.lends(layer, corrects.is_none());
    core.select(&core.queue, &of(SelectMode::Repair, over))?;
    // A repair empties it.
    core.correcting(false);
    let certificates = core.certificates(layer, 1)?;
    let refinement = if corrects.is_some() { Refinement::Always } else { Refinement::Never };
    run(core, layer, &Attend { certificates, only: Some(over), failures: Some(left), refinement, ..chosen })
}
