//! Levels of blocks: formats that a block can have, and which one it has.
use crate::argument;
use crate::cache::{self, certkv_cache};
use crate::config::{self, MOST_FORMAT};
use crate::control::{certkv_controlled, controlled_out, write_controlled};
use crate::guard::{Failure, guard};
use crate::sequence::{certkv_sequence, id};
use crate::status::certkv_status::{self, CERTKV_FORMAT, CERTKV_SHAPE};
use certkv::Level;
use core::ffi::c_char;

/// A format that full blocks can have, with pages of its own.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct certkv_level {
    /// As "t8-v8g64-b16": both sides coded, of calibrated keys with what they need among the calibrations. At most 63 characters.
    pub format: *const c_char,
    /// Tokens, in each layer, that it has pages for, 1 to 2^31. What one level does not use is no other level's.
    pub tokens: u64,
}

/// Most of them.
const MOST_LEVELS: u32 = 8;

/// Levels of a configuration.
///
/// # Safety
/// `levels` is NULL or has `n` elements, whose `format` is NULL or a C string.
pub(crate) unsafe fn read(levels: *const certkv_level, n: u32) -> Result<Vec<Level>, Failure> {
    if n > MOST_LEVELS {
        return Err(argument::invalid(format!("config->n_levels = {n}: must be none or 2 to {MOST_LEVELS}")));
    }
    // SAFETY: by the caller's promise.
    let given = unsafe { argument::slice(levels, n.into(), "config->levels")? };
    let one = |(at, level): (usize, &certkv_level)| {
        let name = format!("config->levels[{at}].format");
        argument::not_null(level.format, &name)?;
        let refused = |why: String| Failure::new(CERTKV_FORMAT, why);
        // SAFETY: a C string, by the caller's promise.
        let text = unsafe { argument::characters(level.format, &name, MOST_FORMAT, 1) }.map_err(refused)?;
        let format = text.parse().map_err(|e| refused(format!("{name}: {e}")))?;
        Ok(Level { format, tokens: usize::try_from(level.tokens).unwrap_or(usize::MAX) })
    };
    given.iter().enumerate().map(one).collect()
}

/// Numbers of a block and a level; those that no memory has become ones that no sequence has.
fn numbers(layer: u32, block: u64, level: u32) -> (usize, usize, usize) {
    (layer as usize, usize::try_from(block).unwrap_or(usize::MAX), level as usize)
}

/// Fills `*level` with what a cache finds.
///
/// # Safety
/// `level` is NULL, misaligned, or a variable of this type.
unsafe fn tell(
    cache: *const certkv_cache,
    level: *mut u32,
    host: impl FnOnce(&certkv::Cache) -> Result<usize, certkv::Error>,
    gpu: impl FnOnce(&mut certkv::gpu::GpuCache) -> Result<usize, certkv::Error>,
) -> Result<(), Failure> {
    argument::aligned(level, "level")?;
    let found = cache::with(cache, |held| held.engine.on(host, gpu))?;
    // SAFETY: not NULL and aligned; the caller gives a variable of this type.
    unsafe { level.write(found as u32) };
    Ok(())
}

/// Which of `config->levels` full block number `block` of a sequence has in `layer`; `*level` is filled, with 0 where the cache has no levels.
///
/// Threads: any, at any time.
/// Stream: none.
/// Capture: safe.
/// Errors: NULL_POINTER, MISALIGNED, INVALID_HANDLE, UNKNOWN_SEQUENCE, BUSY_SEQUENCE, LAYER, LEVEL (the block is not full), INVALID_ARGUMENT (heads have
/// levels of their own: `config->levels_by_head`), BUSY_STEP (on a GPU, while a step is open), POISONED. `*level` is unchanged then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn certkv_sequence_level(
    cache: *const certkv_cache,
    sequence: certkv_sequence,
    layer: u32,
    block: u64,
    level: *mut u32,
) -> certkv_status {
    guard(|| {
        let (layer, block, _) = numbers(layer, block, 0);
        let of = id(sequence);
        // SAFETY: by the caller's promise.
        unsafe { tell(cache, level, |on| on.level(of, layer, block), |on| on.level(of, layer, block)) }
    })
}

/// Codes full block number `block` of a sequence anew in one layer, from its originals, at another of `config->levels`: the next step reads it so.
/// Sequences that share the block keep it as it was. Costs reading the block's originals and coding them, which on a GPU is enqueued on the cache's stream and not waited for.
///
/// Threads: any, at any time; waits for other calls that move blocks.
/// Stream: none.
/// Capture: safe.
/// Errors: NULL_POINTER, INVALID_HANDLE, UNKNOWN_SEQUENCE, BUSY_SEQUENCE, LAYER, LEVEL (no such level, a block that is not full, or one that no scales
/// hold), CAPACITY (of that level's pages), INVALID_ARGUMENT (heads have levels of their own), SWAPPED_OUT, BUSY_STEP (on a GPU, while a step is open), OUT_OF_MEMORY, DEVICE, POISONED. Nothing changed: the block has the level that it had.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn certkv_sequence_change_level(
    cache: *mut certkv_cache,
    sequence: certkv_sequence,
    layer: u32,
    block: u64,
    level: u32,
) -> certkv_status {
    guard(|| {
        cache::with(cache, |held| {
            let ((layer, block, level), of) = (numbers(layer, block, level), id(sequence));
            let host = |on: &certkv::Cache| on.change_level(of, layer, block, level);
            held.engine.on(host, |on| on.change_level(of, layer, block, level))
        })
    })
}

/// As certkv_sequence_level of one KV head, by its number in the model: where `config->levels_by_head` is 1, and of a block's one level where it is not.
///
/// Threads: any, at any time.
/// Stream: none.
/// Capture: safe.
/// Errors: as certkv_sequence_level, and SHAPE (no such head). `*level` is unchanged then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn certkv_sequence_head_level(
    cache: *const certkv_cache,
    sequence: certkv_sequence,
    layer: u32,
    kv_head: u32,
    block: u64,
    level: *mut u32,
) -> certkv_status {
    guard(|| {
        let (layer, block, head) = numbers(layer, block, kv_head);
        let of = id(sequence);
        // SAFETY: by the caller's promise.
        unsafe {
            tell(cache, level, |on| on.level_of(of, layer, head, block), |on| on.level_of(of, layer, head, block))
        }
    })
}

/// As certkv_sequence_change_level of one KV head, by its number in the model: of that head alone where `config->levels_by_head` is 1, and of the whole
/// block where it is not.
///
/// Threads: any, at any time; waits for other calls that move blocks.
/// Stream: none.
/// Capture: safe.
/// Errors: as certkv_sequence_change_level, and SHAPE (no such head). Nothing changed: it has the level that it had.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn certkv_sequence_change_head_level(
    cache: *mut certkv_cache,
    sequence: certkv_sequence,
    layer: u32,
    kv_head: u32,
    block: u64,
    level: u32,
) -> certkv_status {
    guard(|| {
        cache::with(cache, |held| {
            let ((layer, block, head), level, of) = (numbers(layer, block, kv_head), level as usize, id(sequence));
            let host = |on: &certkv::Cache| on.change_level_of(of, layer, head, block, level);
            held.engine.on(host, |on| on.change_level_of(of, layer, head, block, level))
        })
    })
}

/// Gives full blocks of a sequence other levels, all at once, as certkv_sequence_plan_levels fills `levels`: layer by layer, of each KV head of a layer where
/// `config->levels_by_head` is 1, the level of each of its first blocks, as many everywhere. Blocks behind those stay as they are. Those that fall go first, as they leave pages
/// to those that rise; a block for which there is no page, or that a level cannot hold, stays as it is and is counted. `controlled` is NULL or has its `struct_size` set, and is filled: blocks that
/// have another level now, and those that do not although another was asked for. Costs what certkv_sequence_change_level costs for each of them; on a GPU a fifth of that, as
/// blocks are coded together.
///
/// Threads: any, at any time; waits for other calls that move blocks.
/// Stream: none.
/// Capture: safe.
/// Errors: NULL_POINTER, MISALIGNED, STRUCT_SIZE, OVERLAP, INVALID_HANDLE, UNKNOWN_SEQUENCE, BUSY_SEQUENCE, SHAPE (`n_levels` is no whole number of lists), LEVEL (no such level, or more blocks
/// than are full), SWAPPED_OUT, BUSY_STEP (on a GPU, while a step is open), OUT_OF_MEMORY, DEVICE, POISONED. Nothing changed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn certkv_sequence_set_levels(
    cache: *mut certkv_cache,
    sequence: certkv_sequence,
    levels: *const u32,
    n_levels: u64,
    controlled: *mut certkv_controlled,
) -> certkv_status {
    guard(|| {
        // SAFETY: the caller gives NULL or a struct of its `struct_size` bytes.
        let size = unsafe { controlled_out(controlled)? };
        // SAFETY: the caller gives so many elements.
        let given = unsafe { argument::slice(levels, n_levels, "levels")? };
        let told = (controlled.cast_const().cast::<u8>(), size.unwrap_or(0), "controlled");
        argument::disjoint((levels, given.len(), "levels"), told)?;
        let of = id(sequence);
        let done = cache::with(cache, |held| {
            let lists = held.engine.on(|on| Ok(on.level_lists()), |on| Ok(on.level_lists()))?;
            if given.len() % lists != 0 {
                let why = format!("levels: {} elements are no whole number for each of {lists} lists", given.len());
                return Err(Failure::new(CERTKV_SHAPE, why));
            }
            let each = given.len() / lists;
            let list = |at: usize| given[at * each..(at + 1) * each].iter().map(|level| *level as usize).collect();
            let levels: Vec<Vec<usize>> = (0..lists).map(list).collect();
            held.engine.on(|on| on.set_levels(of, &levels), |on| on.set_levels(of, &levels))
        })?;
        if let Some(size) = size {
            // SAFETY: as above.
            unsafe { write_controlled(controlled, size, done) };
        }
        Ok(())
    })
}

/// What a configuration says of levels goes with its format, of which they are the first.
///
/// # Safety
/// As [`read`].
pub(crate) unsafe fn configure(config: &mut certkv::Config, given: &config::certkv_config) -> Result<(), Failure> {
    // SAFETY: by the caller's promise.
    config.levels = unsafe { read(given.levels, given.n_levels)? };
    config.levels_by_head = given.levels_by_head == 1;
    if let (Some(first), true) = (config.levels.first(), given.format.is_null()) {
        config.formats = vec![first.format];
    }
    Ok(())
}
