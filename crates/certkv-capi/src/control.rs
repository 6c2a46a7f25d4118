//! Who decides levels while decoding goes on: SmartKV, and which of them a configuration names.
use crate::argument;
use crate::bound_budget;
use crate::cache::{self, certkv_cache};
use crate::config::certkv_config;
use crate::guard::{Failure, guard};
use crate::parameters::{Parameters, gate_fields};
use crate::retention;
use crate::sequence::{certkv_sequence, id};
use crate::status::certkv_status;
use certkv::smartkv::{ImportanceRule, Rule};
use certkv::{Control, Controlled, SmartKv};
use core::mem::offset_of;

/// SmartKV over `config->levels`, with blocks for items: what was attended to lately has a wide level, within a budget of bytes. Fill it with
/// certkv_control_init, then set `bytes_per_token`. Every field is taken as it is: 0 is no default.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct certkv_control {
    /// sizeof(certkv_control) of the caller's header.
    pub struct_size: u32,
    /// A block may change once its rank has been away from where it was for so many looks at it.
    pub checks: u32,
    /// Bytes that a token of a full block may take in one layer on average, all KV heads together: codes, scales, summaries and seals.
    pub bytes_per_token: f64,
    /// By how many percentile points a rank is away; finite, not negative.
    pub points: f64,
    /// Share of a rank that stays from look to look; at least 0, below 1.
    pub keep_rank: f64,
    /// Exponent of a width's worth; finite, not negative.
    pub alpha: f64,
    /// Divergence of scores from those of the last decision that brings the next one forward; finite, not negative.
    pub drift: f64,
    /// The same in percent of blocks whose rank moved by `points`.
    pub drift_moved: f64,
    /// Share of a block's importance that stays from step to step; at least 0, below 1.
    pub keep: f64,
    /// The same of a query head's concentration.
    pub keep_head: f64,
    /// Share of importance in a score, 0 to 1; the rest is the last step's attention.
    pub mix: f64,
    /// Steps in which a score falls to 1/e as its block ages; positive, may be infinite.
    pub life: f64,
    /// So many first blocks have the first level, always.
    pub protected_first: u64,
    /// And so many last ones.
    pub protected_last: u64,
    /// Steps between decisions of the first layers, 1 to 2^31; at least 32 are waited for.
    pub interval: u64,
    /// Steps between looks at the drift, 1 to 2^31.
    pub drift_every: u64,
    /// A gate over blocks whose rank is in danger: a block is protected from this danger on,
    pub gate_protect: f64,
    /// and down to this one, which is below it and not negative. Both 0, as they are filled: no gate.
    pub gate_release: f64,
}

/// What certkv_sequence_control did, over all layers.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct certkv_controlled {
    /// sizeof(certkv_controlled), set by the caller; nothing is written beyond it.
    pub struct_size: u32,
    /// 0.
    pub reserved: u32,
    /// Layers whose levels were decided anew.
    pub decided: u64,
    /// Of these, layers of which not even the lowest levels fit the budget: nothing was asked for there.
    pub below_floor: u64,
    /// Blocks that have another level now.
    pub changed: u64,
    /// Blocks that keep their level although another was decided: no page at that level, or no codes.
    pub refused: u64,
    /// The same because the device failed.
    pub failed: u64,
}

/// Fills `control` with the parameters of the source, and no budget: `bytes_per_token` is 0, which certkv_cache_create refuses. `struct_size` is the
/// caller's sizeof(certkv_control); nothing is written beyond it.
///
/// Threads: any, at any time.
/// Stream: none.
/// Capture: safe.
/// Errors: NULL_POINTER, MISALIGNED, STRUCT_SIZE; `control` is unchanged then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn certkv_control_init(control: *mut certkv_control, struct_size: u32) -> certkv_status {
    guard(|| {
        argument::aligned(control, "control")?;
        let size = argument::known_size::<certkv_control>(struct_size, "control", LEAST)?;
        let Rule {
            importance,
            points,
            checks,
            keep_rank,
            alpha,
            protected,
            base,
            drift,
            drift_moved,
            drift_every,
            gate,
        } = Rule::default();
        let [gate_protect, gate_release] = gate_fields(gate);
        let ImportanceRule { keep, keep_head, mix, life } = importance;
        let filled = certkv_control {
            struct_size,
            checks,
            bytes_per_token: 0.0,
            points,
            keep_rank,
            alpha,
            drift,
            drift_moved,
            keep,
            keep_head,
            mix,
            life,
            protected_first: protected[0] as u64,
            protected_last: protected[1] as u64,
            interval: base as u64,
            drift_every: drift_every as u64,
            gate_protect,
            gate_release,
        };
        // SAFETY: the caller's struct has `struct_size` bytes, and `size` is no more.
        unsafe { argument::write_prefix(control, &filled, size) };
        Ok(())
    })
}

/// What the first header with it had.
const LEAST: usize = offset_of!(certkv_control, gate_protect);

/// Reads what a configuration says of SmartKV.
///
/// # Safety
/// `control` is a struct of its `struct_size` bytes.
pub(crate) unsafe fn read(control: *const certkv_control) -> Result<SmartKv, Failure> {
    // SAFETY: by the caller's promise; integers and floats, for which zero bits are a value.
    let given = unsafe { argument::read_struct(control, "config->control", LEAST)? };
    let parameters = Parameters::of("config->control");
    let finite =
        [("points", given.points), ("alpha", given.alpha), ("drift", given.drift), ("drift_moved", given.drift_moved)];
    parameters.finite(&finite)?;
    parameters.shares(&[("keep_rank", given.keep_rank), ("keep", given.keep), ("keep_head", given.keep_head)])?;
    if !(0.0..=1.0).contains(&given.mix) {
        return parameters.wrong("mix", &given.mix, "0 to 1");
    }
    if given.life.is_nan() || given.life <= 0.0 {
        return parameters.wrong("life", &given.life, "positive");
    }
    parameters.counts(1, &[("interval", given.interval), ("drift_every", given.drift_every)])?;
    let ends = [("protected_first", given.protected_first), ("protected_last", given.protected_last)];
    parameters.counts(0, &ends)?;
    let rule = Rule {
        importance: ImportanceRule { keep: given.keep, keep_head: given.keep_head, mix: given.mix, life: given.life },
        points: given.points,
        checks: given.checks,
        keep_rank: given.keep_rank,
        alpha: given.alpha,
        protected: [given.protected_first as usize, given.protected_last as usize],
        base: given.interval as usize,
        drift: given.drift,
        drift_moved: given.drift_moved,
        drift_every: given.drift_every as usize,
        gate: parameters.gate(given.gate_protect, given.gate_release)?,
    };
    Ok(SmartKv { bytes_per_token: given.bytes_per_token, rule })
}

/// Who decides in a cache: at most one of three.
///
/// # Safety
/// `given.control`, `given.retention` and `given.bound_budget` are NULL or structs of their `struct_size` bytes.
pub(crate) unsafe fn decides(given: &certkv_config) -> Result<Option<Control>, Failure> {
    let named = [
        ("control", given.control.is_null()),
        ("retention", given.retention.is_null()),
        ("bound_budget", given.bound_budget.is_null()),
    ];
    let mut named = named.iter().filter(|(_, null)| !null);
    if let (Some((first, _)), Some((second, _))) = (named.next(), named.next()) {
        return Err(argument::invalid(format!("config->{second}: config->{first} decides already")));
    }
    Ok(if !given.control.is_null() {
        // SAFETY: by the caller's promise.
        Some(unsafe { read(given.control)? }.into())
    } else if !given.retention.is_null() {
        // SAFETY: as above.
        Some(unsafe { retention::read(given.retention)? }.into())
    } else if !given.bound_budget.is_null() {
        // SAFETY: as above.
        Some(unsafe { bound_budget::read(given.bound_budget)? }.into())
    } else {
        None
    })
}

/// Lets who decides on levels (`config->control`, `retention` or `bound_budget`) look at what the last step said of each block of a sequence, and change
/// levels where that is decided. To be called between steps, after each of them or fewer: steps in between are not seen. Fills `controlled`, whose
/// `struct_size` must be set; it may be NULL. Where nobody decides nothing happens, and every count is 0. A block that cannot have the level that was
/// decided keeps its own, and is counted. On a GPU to be called behind a step that the sequence has been in with one token, before the next begins: nothing is seen of others; it
/// waits for the device.
///
/// Threads: any, at any time; waits for other calls that move blocks.
/// Stream: none.
/// Capture: safe.
/// Errors: NULL_POINTER (`cache`), MISALIGNED, STRUCT_SIZE, INVALID_HANDLE, UNKNOWN_SEQUENCE, BUSY_SEQUENCE (a step holds it), SWAPPED_OUT,
/// BUSY_STEP (on a GPU, while a step is open), OUT_OF_MEMORY, DEVICE, POISONED. Nothing changed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn certkv_sequence_control(
    cache: *mut certkv_cache,
    sequence: certkv_sequence,
    controlled: *mut certkv_controlled,
) -> certkv_status {
    guard(|| {
        // SAFETY: the caller gives NULL or a struct of its `struct_size` bytes.
        let size = unsafe { controlled_out(controlled)? };
        let of = id(sequence);
        let done = cache::with(cache, |held| held.engine.on(|on| on.control(of), |on| on.control(of)))?;
        if let Some(size) = size {
            // SAFETY: as above.
            unsafe { write_controlled(controlled, size, done) };
        }
        Ok(())
    })
}

/// Checks where counts are to go: bytes of the struct, `None` for nowhere.
///
/// # Safety
/// `controlled` is NULL or a struct of its `struct_size` bytes.
pub(crate) unsafe fn controlled_out(controlled: *const certkv_controlled) -> Result<Option<usize>, Failure> {
    // SAFETY: by the caller's promise.
    unsafe { argument::optional_struct(controlled, "controlled", offset_of!(certkv_controlled, decided)) }
}

/// Fills the counts of what was done.
///
/// # Safety
/// `controlled` is a struct of `size` bytes, which [`controlled_out`] found.
pub(crate) unsafe fn write_controlled(controlled: *mut certkv_controlled, size: usize, done: Controlled) {
    let filled = certkv_controlled {
        struct_size: size as u32,
        reserved: 0,
        decided: done.decided as u64,
        below_floor: done.below_floor as u64,
        changed: done.changed as u64,
        refused: done.refused as u64,
        failed: done.failed as u64,
    };
    // SAFETY: by the caller's promise; `filled` has no fewer bytes.
    unsafe { argument::write_prefix(controlled, &filled, size) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::mem::zeroed;

    #[test]
    fn the_parameters_are_those_of_the_engine() {
        // SAFETY: integers and floats, for which zero bits are a value.
        let mut control: certkv_control = unsafe { zeroed() };
        let size = size_of::<certkv_control>() as u32;
        // SAFETY: a whole struct.
        let read = unsafe {
            assert_eq!(certkv_control_init(&mut control, size), certkv_status::CERTKV_OK);
            control.bytes_per_token = 99.0;
            read(&control).unwrap()
        };
        assert_eq!(read, SmartKv::new(99.0));
    }
}
