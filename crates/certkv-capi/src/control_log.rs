//! What whoever decides on levels was told of each layer and what came of it, for a host that keeps a log.
//!
//! Entries are made while locks are held. They wait until the call holds none, so that the host's function may call the library.
use crate::bound_budget::{self, CERTKV_LACKING_NOTHING, certkv_lacking};
use crate::cache::{self, certkv_cache};
use crate::control::{certkv_controlled, controlled_out, write_controlled};
use crate::guard::{Failure, guard};
use crate::sequence::{certkv_sequence, id};
use crate::status::certkv_status::{self, CERTKV_NULL_POINTER};
use certkv::ControlEntry;
use certkv::smartkv::Trigger;
use core::ffi::c_void;
use core::ptr;

/// What made a decision.
pub type certkv_trigger = i32;
/// None was made.
pub const CERTKV_TRIGGER_NONE: certkv_trigger = 0;
/// It was the first.
pub const CERTKV_TRIGGER_FIRST: certkv_trigger = 1;
/// The interval was over.
pub const CERTKV_TRIGGER_INTERVAL: certkv_trigger = 2;
/// Scores were no longer what they had been.
pub const CERTKV_TRIGGER_DRIFT: certkv_trigger = 3;
/// Blocks that are new brought more bytes than the budget.
pub const CERTKV_TRIGGER_BUDGET: certkv_trigger = 4;

/// One layer's part, or that of one of its KV heads, of a call of certkv_sequence_control_logged: what whoever decides was told, and what was decided. Told the same, they decide the
/// same. Levels are numbers of `config->levels`, also where an array goes by level. Pointers are borrowed during the callback; NULL for what there was
/// not.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct certkv_control_entry {
    /// sizeof(certkv_control_entry) of the library: later ones have more fields behind these.
    pub struct_size: u32,
    /// The layer.
    pub layer: u32,
    /// Its full blocks.
    pub blocks: u64,
    /// Of these, the first so many are those that they were at the call before; UINT64_MAX: nothing was cut.
    pub kept: u64,
    /// Query heads of `attention`, `bound_loss`, `bound_shrink` and `bound_cap`.
    pub heads: u32,
    /// Levels: `config->n_levels`.
    pub n_levels: u32,
    /// Level of each block before, `blocks` of them.
    pub levels: *const u32,
    /// Of `config->control`: masses of the last step, heads x blocks. NULL on a GPU, where they stay there without a gate: see `scored`.
    pub attention: *const f64,
    /// Of `config->retention`: what each level loses of a block, blocks x levels. NULL in a step that no decision counts.
    pub loss: *const f64,
    /// With a gate: the danger of each block.
    pub danger: *const f64,
    /// Of `config->bound_budget`, as shares of the norm of a head's output: what a level adds to its bound, heads x blocks x levels, NULL in a
    /// step that no plan is made of;
    pub bound_loss: *const f64,
    /// what it takes from the sum that the bound is divided by, in the same order;
    pub bound_shrink: *const f64,
    /// and what no bound of a head exceeds.
    pub bound_cap: *const f64,
    /// What made the decision: one of the CERTKV_TRIGGER values. CERTKV_TRIGGER_NONE: all is as it was.
    pub trigger: certkv_trigger,
    /// 1 if the budget was too small for what may not fall: it was to fall.
    pub forced: u32,
    /// Level that each block is to have; NULL without a decision, and where not even the lowest levels fit the budget. A block that cannot have it
    /// keeps its own: certkv_sequence_level says.
    pub wanted: *const u32,
    /// Bytes of these, with all KV heads; without them, what the budget would have to be.
    pub bytes: f64,
    /// Of `config->bound_budget`, all layers together: the largest bound of a head as a share of its output's norm, from codes alone.
    pub bound: f64,
    /// How many bytes are lacking, or which bound is left.
    pub lacks: f64,
    /// Which of the two: one of the CERTKV_LACKING values.
    pub lacking: certkv_lacking,
    /// Where `config->levels_by_head` is 1, the KV head whose levels these are; else 0, and they are all heads'.
    pub kv_head: u32,
    /// Of `config->control` where masses stay on a GPU: of how many blocks scores were made there. 0 if of none.
    pub scored: u64,
    /// Their scores; NULL where nothing was decided.
    pub scores: *const f64,
    /// Where it was looked at, how far scores are from those of the last decision: their divergence, else a NaN,
    pub drift_divergence: f64,
    /// and the percentage of blocks whose rank has moved, else a NaN.
    pub drift_moved: f64,
}

/// Told of one layer after the other, on the thread of the call. No lock of the library is held: it may call the library, for this cache too. It must
/// return, by no exception and no longjmp.
pub type certkv_control_log_callback =
    Option<unsafe extern "C" fn(user: *mut c_void, entry: *const certkv_control_entry)>;

/// An entry with its levels by the numbers of a configuration, whose first is the highest.
struct Told {
    entry: ControlEntry,
    levels: Vec<u32>,
    wanted: Option<Vec<u32>>,
}

impl Told {
    fn new(mut entry: ControlEntry, count: usize) -> Self {
        let numbers = |ladder: &[u8]| ladder.iter().map(|up| (count - 1 - usize::from(*up)) as u32).collect();
        let turn = |cells: &mut Vec<f64>| cells.chunks_exact_mut(count).for_each(<[f64]>::reverse);
        if let Some(loss) = &mut entry.loss {
            turn(loss);
        }
        if let Some(terms) = &mut entry.terms {
            turn(&mut terms.loss);
            turn(&mut terms.shrink);
        }
        let wanted = entry.decision.as_ref().and_then(|decision| decision.levels.as_deref()).map(numbers);
        Self { levels: numbers(&entry.levels), wanted, entry }
    }

    /// As C has it, borrowed from this.
    fn entry(&self, group: usize, count: usize) -> certkv_control_entry {
        fn cells(of: Option<&Vec<f64>>) -> *const f64 {
            of.map_or(ptr::null(), |of| of.as_ptr())
        }
        let ControlEntry { layer, kv_heads, kept, attention, scored, loss, danger, terms, decision, planned, .. } =
            &self.entry;
        let drift = scored.as_ref().and_then(|scored| scored.drift);
        let decided = decision.as_ref();
        let (lacking, lacks) =
            planned.map_or((CERTKV_LACKING_NOTHING, 0.0), |planned| bound_budget::lacking(planned.lacking));
        certkv_control_entry {
            struct_size: size_of::<certkv_control_entry>() as u32,
            layer: *layer as u32,
            blocks: self.levels.len() as u64,
            kept: if *kept == usize::MAX { u64::MAX } else { *kept as u64 },
            heads: (kv_heads.len() * group) as u32,
            n_levels: count as u32,
            levels: self.levels.as_ptr(),
            attention: cells(attention.as_ref()),
            loss: cells(loss.as_ref()),
            danger: cells(danger.as_ref()),
            bound_loss: cells(terms.as_ref().map(|terms| &terms.loss)),
            bound_shrink: cells(terms.as_ref().map(|terms| &terms.shrink)),
            bound_cap: cells(terms.as_ref().map(|terms| &terms.cap)),
            trigger: decided.map_or(CERTKV_TRIGGER_NONE, |decision| match decision.trigger {
                Trigger::First => CERTKV_TRIGGER_FIRST,
                Trigger::Interval => CERTKV_TRIGGER_INTERVAL,
                Trigger::Drift => CERTKV_TRIGGER_DRIFT,
                Trigger::Budget => CERTKV_TRIGGER_BUDGET,
            }),
            forced: decided.is_some_and(|decision| decision.forced).into(),
            wanted: self.wanted.as_ref().map_or(ptr::null(), |wanted| wanted.as_ptr()),
            bytes: decided.map_or(0.0, |decision| decision.bytes),
            bound: planned.map_or(0.0, |planned| planned.bound),
            lacks,
            lacking,
            kv_head: kv_heads.start as u32,
            scored: scored.as_ref().map_or(0, |scored| scored.blocks as u64),
            scores: cells(scored.as_ref().and_then(|scored| scored.scores.as_ref())),
            drift_divergence: drift.map_or(f64::NAN, |drift| drift.divergence),
            drift_moved: drift.map_or(f64::NAN, |drift| drift.moved),
        }
    }
}

/// As certkv_sequence_control, and then tells `log` of each layer, in their order: what whoever decides was told, and what they decided. `user` is
/// handed to it. It is not called where nobody decides, nor when the call fails. Entries are made anew in each call.
///
/// Threads: any, at any time; waits for other calls that move blocks.
/// Stream: none.
/// Capture: safe.
/// Errors: as certkv_sequence_control, and NULL_POINTER (`log`). Nothing changed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn certkv_sequence_control_logged(
    cache: *mut certkv_cache,
    sequence: certkv_sequence,
    log: certkv_control_log_callback,
    user: *mut c_void,
    controlled: *mut certkv_controlled,
) -> certkv_status {
    guard(|| {
        let Some(log) = log else {
            return Err(Failure::new(CERTKV_NULL_POINTER, "log is NULL"));
        };
        // SAFETY: the caller gives NULL or a struct of its `struct_size` bytes.
        let size = unsafe { controlled_out(controlled)? };
        let (done, told, group, count) = cache::with(cache, |held| {
            let (of, group, mut entries) = (id(sequence), held.engine.geometry().group(), Vec::new());
            let mut log = |entry| entries.push(entry);
            let log: &mut dyn FnMut(ControlEntry) = &mut log;
            // One of the two is called.
            let log = core::cell::Cell::new(Some(log));
            let (done, count) = held.engine.on(
                |on| Ok((on.control_logged(of, log.take())?, on.levels().len())),
                |on| Ok((on.control_logged(of, log.take())?, on.levels().len())),
            )?;
            let told: Vec<Told> = entries.into_iter().map(|entry| Told::new(entry, count)).collect();
            Ok((done, told, group, count))
        })?;
        if let Some(size) = size {
            // SAFETY: as above.
            unsafe { write_controlled(controlled, size, done) };
        }
        for told in &told {
            let entry = told.entry(group, count);
            // SAFETY: the caller's function, which takes an entry that lives as long as the call.
            unsafe { log(user, &entry) };
        }
        Ok(())
    })
}
