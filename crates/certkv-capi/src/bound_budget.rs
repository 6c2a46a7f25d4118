//! The bound's budget for `config->bound_budget`, and a plan of levels that moves nothing.
use crate::argument;
use crate::cache::{self, certkv_cache};
use crate::guard::{Failure, guard};
use crate::parameters::Parameters;
use crate::sequence::{certkv_sequence, id};
use crate::status::certkv_status;
use certkv::bound_budget::{BoundRule, Lacking};
use certkv::{BoundBudget, LevelPlan};
use core::mem::offset_of;

/// Levels from `config->levels` by the bounds that certificates would have: the fewest bytes at which every query head's would be within a tolerance;
/// where the budget is less than that, what loses least within it. Fill it with certkv_bound_budget_init, then set `bytes_per_token`. Every
/// field is taken as it is: 0 is no default. Each block is coded once at every level, to see what it loses there.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct certkv_bound_budget {
    /// sizeof(certkv_bound_budget) of the caller's header.
    pub struct_size: u32,
    /// 0.
    pub reserved: u32,
    /// Bytes that a token of a full block may take in a layer on average over all layers, all KV heads together: codes, scales, summaries and seals.
    pub bytes_per_token: f64,
    /// Bound of every query head that is asked for, as a share of the norm of its output; positive, finite.
    pub epsilon: f64,
    /// Share of what codes lose that a plan has to save to be made, where nothing exceeds the budget; at least 0, below 1.
    pub gain: f64,
    /// Steps between plans, 1 to 2^31.
    pub interval: u64,
}

/// What a plan of levels lacks.
pub type certkv_lacking = i32;
/// Nothing: every bound is within the tolerance.
pub const CERTKV_LACKING_NOTHING: certkv_lacking = 0;
/// So many bytes more, and every bound would be.
pub const CERTKV_LACKING_BYTES: certkv_lacking = 1;
/// No bytes help: at the first level of all blocks the largest bound is `lacks`.
pub const CERTKV_LACKING_BOUND: certkv_lacking = 2;
/// Not even the last level fits: it takes so many bytes more. Levels are the last then.
pub const CERTKV_LACKING_FLOOR: certkv_lacking = 3;

/// What certkv_sequence_plan_levels found.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct certkv_level_plan {
    /// sizeof(certkv_level_plan), set by the caller; nothing is written beyond it.
    pub struct_size: u32,
    /// 1 for a plan; 0 if nothing was seen of the sequence since certkv_sequence_control looked last, and then all that follows is 0.
    pub planned: u32,
    /// Full blocks of a layer: `levels` has so many for each, or for each of its KV heads in turn where `config->levels_by_head` is 1.
    pub blocks: u64,
    /// Bytes of pages at these levels, all layers together, without padding.
    pub bytes: f64,
    /// The largest bound of a query head as a share of its output's norm, if every block were read from its codes.
    pub bound: f64,
    /// Bytes, or a bound, as `lacking` says.
    pub lacks: f64,
    /// What is lacking of the tolerance.
    pub lacking: certkv_lacking,
    /// 0.
    pub reserved: u32,
}

/// Fills `budget` with the defaults, and no bytes: `bytes_per_token` is 0, which certkv_cache_create refuses. `struct_size` is the caller's
/// sizeof(certkv_bound_budget); nothing is written beyond it.
///
/// Threads: any, at any time.
/// Stream: none.
/// Capture: safe.
/// Errors: NULL_POINTER, MISALIGNED, STRUCT_SIZE; `budget` is unchanged then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn certkv_bound_budget_init(budget: *mut certkv_bound_budget, struct_size: u32) -> certkv_status {
    guard(|| {
        argument::aligned(budget, "budget")?;
        let size =
            argument::known_size::<certkv_bound_budget>(struct_size, "budget", size_of::<certkv_bound_budget>())?;
        let BoundRule { epsilon, every, gain } = BoundRule::default();
        let (bytes_per_token, interval) = (0.0, every as u64);
        let filled = certkv_bound_budget { struct_size, reserved: 0, bytes_per_token, epsilon, gain, interval };
        // SAFETY: the caller's struct has `struct_size` bytes, and `size` is no more.
        unsafe { argument::write_prefix(budget, &filled, size) };
        Ok(())
    })
}

/// Reads what a configuration says of the bound's budget.
///
/// # Safety
/// `budget` is a struct of its `struct_size` bytes.
pub(crate) unsafe fn read(budget: *const certkv_bound_budget) -> Result<BoundBudget, Failure> {
    let name = "config->bound_budget";
    // SAFETY: by the caller's promise; integers and floats, for which zero bits are a value.
    let given = unsafe { argument::read_struct(budget, name, size_of::<certkv_bound_budget>())? };
    let parameters = Parameters::of(name);
    if given.reserved != 0 {
        return parameters.wrong("reserved", &given.reserved, "0");
    }
    if !(given.epsilon > 0.0 && given.epsilon.is_finite()) {
        return parameters.wrong("epsilon", &given.epsilon, "positive and finite");
    }
    parameters.shares(&[("gain", given.gain)])?;
    parameters.counts(1, &[("interval", given.interval)])?;
    let rule = BoundRule { epsilon: given.epsilon, every: given.interval as usize, gain: given.gain };
    Ok(BoundBudget { bytes_per_token: given.bytes_per_token, rule })
}

/// Levels that the full blocks of a sequence could have: the fewest bytes, at most `bytes` (UINT64_MAX for no limit) in all layers together, at which the
/// bound of every query head of the last step's outputs would be at most `epsilon` of the output's norm, read from codes alone. Where `bytes` are too
/// few, what loses least within them, and how many are lacking. Nothing moves: certkv_sequence_set_levels does that, or certkv_sequence_control
/// under `config->bound_budget`. `levels` is filled layer by layer with the level of each block, if it has room (`n_levels`, at least layers x
/// blocks); with `levels` NULL and 0 `n_levels` only `plan` is, whose `struct_size` must be set. Blocks that are new are coded once at every level. On a GPU
/// behind a step that the sequence has been in with one token, before the next begins; it waits for the device.
///
/// Threads: any, at any time; waits for other calls that move blocks.
/// Stream: none.
/// Capture: safe.
/// Errors: NULL_POINTER, MISALIGNED, STRUCT_SIZE, INVALID_ARGUMENT (`epsilon`; a cache where neither retention nor the bound's budget decides, nor
/// SmartKV with a gate), SHAPE (`n_levels`), INVALID_HANDLE, UNKNOWN_SEQUENCE, BUSY_SEQUENCE (a step holds it), SWAPPED_OUT, BUSY_STEP (on a GPU, while
/// a step is open), OUT_OF_MEMORY, DEVICE, POISONED. Nothing changed, and neither `levels` nor `plan`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn certkv_sequence_plan_levels(
    cache: *mut certkv_cache,
    sequence: certkv_sequence,
    epsilon: f64,
    bytes: u64,
    levels: *mut u32,
    n_levels: u64,
    plan: *mut certkv_level_plan,
) -> certkv_status {
    guard(|| {
        let room = argument::array(levels, n_levels, "levels")?;
        // SAFETY: the caller gives a struct of its `struct_size` bytes.
        let size = unsafe { argument::struct_size(plan, "plan", offset_of!(certkv_level_plan, blocks))? };
        argument::disjoint((levels, room, "levels"), (plan.cast::<u8>(), size, "plan"))?;
        if !(epsilon > 0.0 && epsilon.is_finite()) {
            return Err(argument::invalid(format!("epsilon = {epsilon}: must be positive and finite")));
        }
        let limit = if bytes == u64::MAX { f64::INFINITY } else { bytes as f64 };
        let of = id(sequence);
        let found = cache::with(cache, |held| {
            held.engine.on(|on| on.plan_levels(of, epsilon, limit), |on| on.plan_levels(of, epsilon, limit))
        })?;
        let wanted = found.as_ref().map_or(0, |found| found.levels.iter().map(Vec::len).sum());
        if room != 0 && room < wanted {
            argument::count(n_levels, wanted as u128, "levels")?;
        }
        if let (Some(found), true) = (&found, room >= wanted) {
            for (at, level) in found.levels.iter().flatten().enumerate() {
                // SAFETY: `room` elements, by the caller's promise, and no fewer than these.
                unsafe { levels.add(at).write(*level as u32) };
            }
        }
        // SAFETY: the struct has `size` bytes, by the caller's promise, and so has what is written.
        unsafe { argument::write_prefix(plan, &told(found.as_ref(), size), size) };
        Ok(())
    })
}

/// What a plan lacks: one of the CERTKV_LACKING values, and how much.
pub(crate) fn lacking(lacking: Lacking) -> (certkv_lacking, f64) {
    match lacking {
        Lacking::Nothing => (CERTKV_LACKING_NOTHING, 0.0),
        Lacking::Bytes(bytes) => (CERTKV_LACKING_BYTES, bytes),
        Lacking::Bound(bound) => (CERTKV_LACKING_BOUND, bound),
        Lacking::Floor(bytes) => (CERTKV_LACKING_FLOOR, bytes),
    }
}

fn told(found: Option<&LevelPlan>, size: usize) -> certkv_level_plan {
    let none = certkv_level_plan { struct_size: size as u32, ..Default::default() };
    let Some(found) = found else { return none };
    let (lacking, lacks) = lacking(found.lacking);
    let blocks = found.levels.first().map_or(0, Vec::len) as u64;
    certkv_level_plan { planned: 1, blocks, bytes: found.bytes, bound: found.bound, lacks, lacking, ..none }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::mem::zeroed;

    #[test]
    fn the_parameters_are_those_of_the_engine() {
        // SAFETY: integers and floats, for which zero bits are a value.
        let mut budget: certkv_bound_budget = unsafe { zeroed() };
        let size = size_of::<certkv_bound_budget>() as u32;
        // SAFETY: a whole struct.
        let read = unsafe {
            assert_eq!(certkv_bound_budget_init(&mut budget, size), certkv_status::CERTKV_OK);
            budget.bytes_per_token = 99.0;
            read(&budget).unwrap()
        };
        assert_eq!(read, BoundBudget::new(99.0));
    }
}
