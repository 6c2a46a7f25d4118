//! The step handle: one batch of new tokens, layer by layer, committed as a whole.
use crate::argument;
use crate::cache::{self, certkv_cache};
use crate::certificate::certkv_certificate;
use crate::config::{self, CERTKV_BF16, CERTKV_F16, CERTKV_F32, certkv_dtype, certkv_policy};
use crate::guard::{Failure, Poison, guard};
use crate::handle::Registry;
use crate::kept::Kept;
use crate::log::Sink;
use crate::owned::OwnedStep;
use crate::sequence::{self, certkv_sequence};
use crate::status::certkv_status::{
    self, CERTKV_BUSY_STEP, CERTKV_INVALID_ARGUMENT, CERTKV_INVALID_HANDLE, CERTKV_LENGTH, CERTKV_UNSUPPORTED,
};
use certkv::gpu::{Element, Rows};
use certkv::{Certificate, Chunk, Policy};
use core::mem::offset_of;
use core::ptr;
use parking_lot::Mutex;
use std::sync::Arc;

/// Where a buffer lies.
pub type certkv_space = i32;
/// Ordinary memory of the process.
pub const CERTKV_SPACE_HOST: certkv_space = 1;
/// Memory of the cache's GPU; CERTKV_UNSUPPORTED for caches on the host.
pub const CERTKV_SPACE_DEVICE: certkv_space = 2;

/// A step in progress. Opaque.
#[derive(Debug)]
pub struct certkv_step {
    _opaque: [u8; 0],
}

/// Tokens to append to one sequence in one step.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct certkv_chunk {
    /// The sequence.
    pub sequence: certkv_sequence,
    /// New tokens: 1 is certified decode, and so is each of up to `config->chunk_tokens`; more is causal prefill over the originals.
    pub tokens: u64,
}

pub(crate) struct Stepping {
    pub(crate) cache: Arc<cache::Held>,
    poison: Poison,
    work: Mutex<Work>,
}

pub(crate) struct Work {
    /// `None` once the step is over.
    pub(crate) step: Option<OwnedStep>,
    /// Kept between calls, and given to the next step.
    pub(crate) kept: Kept,
}

impl Drop for Stepping {
    fn drop(&mut self) {
        self.cache.spare.give(core::mem::take(&mut self.work.get_mut().kept));
    }
}

static STEPS: Registry<Stepping> = Registry::new(0x57, "step");

/// Runs `work` on a live step; a panic in it poisons the step and its cache.
pub(crate) fn with_step(
    handle: *const certkv_step,
    work: impl FnOnce(&Stepping, &mut Work) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let held = STEPS.get(handle)?;
    Sink::hears(&held.cache.log);
    held.poison.check()?;
    held.cache.poison.check()?;
    let mut inner = exclusive(&held)?;
    held.cache.poison.watch(|| held.poison.watch(|| work(&held, &mut inner)))
}

/// Runs `work` on the open step of a handle, and `after` if it succeeds.
fn attempt<T>(
    handle: *const certkv_step,
    work: impl FnOnce(&mut OwnedStep) -> Result<T, Failure>,
    after: impl FnOnce(&mut Work) -> Result<(), Failure>,
) -> Result<T, Failure> {
    let mut result = None;
    with_step(handle, |_, inner| {
        result = Some(work(inner.step.as_mut().ok_or_else(over)?)?);
        after(inner)
    })?;
    result.ok_or_else(over)
}

/// Runs `work` on the open step of a handle.
pub(crate) fn on<T>(
    handle: *const certkv_step,
    work: impl FnOnce(&mut OwnedStep) -> Result<T, Failure>,
) -> Result<T, Failure> {
    attempt(handle, work, |_| Ok(()))
}

/// As [`on`], and ends the step if `work` succeeds, rolling it back.
pub(crate) fn end<T>(
    handle: *const certkv_step,
    work: impl FnOnce(&mut OwnedStep) -> Result<T, Failure>,
) -> Result<T, Failure> {
    attempt(handle, work, |inner| {
        STEPS.remove(handle)?;
        drop(inner.step.take());
        Ok(())
    })
}

fn exclusive(held: &Stepping) -> Result<parking_lot::MutexGuard<'_, Work>, Failure> {
    held.work.try_lock().ok_or_else(|| Failure::new(CERTKV_BUSY_STEP, "another thread is inside a call on this step"))
}

pub(crate) fn over() -> Failure {
    Failure::new(CERTKV_INVALID_HANDLE, "the step is over")
}

/// Whether buffers are on the GPU of the cache.
pub(crate) fn on_device(space: certkv_space, held: &Stepping) -> Result<bool, Failure> {
    match space {
        CERTKV_SPACE_HOST => Ok(false),
        CERTKV_SPACE_DEVICE => held.cache.engine.on_gpu().map(|_| true),
        _ => Err(Failure::new(CERTKV_UNSUPPORTED, format!("space = {space}: not a CERTKV_SPACE value"))),
    }
}

/// How one step decides what to read exactly. Set all of it to 0 bytes, then `struct_size` and what there is to say.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct certkv_step_options {
    /// sizeof(certkv_step_options) of the caller's header.
    pub struct_size: u32,
    /// One of the CERTKV_POLICY values. It is what is said here, not what the cache was configured with.
    pub policy: certkv_policy,
    /// Tolerance of the certified policy relative to the norm of the output; 0 for 0.05. Other policies ignore it.
    pub tolerance: f64,
}

/// Starts a step: reserves every page that the new tokens can need, or none. `chunks` is borrowed during the call; rows
/// of later calls are in its order. `*step` is filled; certkv_step_finish or certkv_step_abort ends it. The sequences
/// are busy until then.
///
/// Threads: any, at any time.
/// Stream: none.
/// Capture: not allowed.
/// Errors: NULL_POINTER, MISALIGNED, INVALID_ARGUMENT, INVALID_HANDLE, SHAPE (no chunk, or one without tokens),
/// UNKNOWN_SEQUENCE, BUSY_SEQUENCE, SWAPPED_OUT, LENGTH, CAPACITY (also: `config->spill_store` took no originals to make room, or not in
/// time), OUT_OF_MEMORY, POISONED. Nothing changed, and `*step` is NULL if it can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn certkv_step_begin(
    cache: *mut certkv_cache,
    chunks: *const certkv_chunk,
    n_chunks: u64,
    step: *mut *mut certkv_step,
) -> certkv_status {
    guard(|| {
        // SAFETY: by the caller's promise.
        unsafe { begin(cache, chunks, n_chunks, || Ok(None), step) }
    })
}

/// As certkv_step_begin with a policy of the step's own, from `options`, which is borrowed during the call: requests of one cache may have their own
/// tolerances, in steps of their own.
///
/// Threads: any, at any time.
/// Stream: none.
/// Capture: not allowed.
/// Errors: as certkv_step_begin, and STRUCT_SIZE, POLICY (a tolerance out of range, or a policy that a GPU does not have). Nothing changed, and `*step`
/// is NULL if it can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn certkv_step_begin_with(
    cache: *mut certkv_cache,
    chunks: *const certkv_chunk,
    n_chunks: u64,
    options: *const certkv_step_options,
    step: *mut *mut certkv_step,
) -> certkv_status {
    guard(|| {
        let policy = || {
            let least = offset_of!(certkv_step_options, tolerance);
            // SAFETY: the caller gives NULL or a struct of its `struct_size` bytes; integers and a float, for which zero bits are a value.
            let given = unsafe { argument::read_struct(options, "options", least)? };
            config::policy("options", given.policy, given.tolerance).map(Some)
        };
        // SAFETY: by the caller's promise.
        unsafe { begin(cache, chunks, n_chunks, policy, step) }
    })
}

/// Begins a step under a policy, or under the cache's.
///
/// # Safety
/// `chunks` is NULL or has `n_chunks` elements, and `step` is NULL or a variable of this type.
unsafe fn begin(
    cache: *mut certkv_cache,
    chunks: *const certkv_chunk,
    n_chunks: u64,
    policy: impl FnOnce() -> Result<Option<Policy>, Failure>,
    step: *mut *mut certkv_step,
) -> Result<(), Failure> {
    argument::aligned(step, "step")?;
    // SAFETY: not NULL and aligned; the caller gives a variable of this type.
    unsafe { step.write(ptr::null_mut()) };
    // A sequence appears once in a step, and no cache has more.
    if n_chunks > 1 << 20 {
        return Err(Failure::new(CERTKV_INVALID_ARGUMENT, format!("n_chunks = {n_chunks}: more than sequences")));
    }
    let policy = policy()?;
    // SAFETY: the caller gives `n_chunks` elements.
    let given = unsafe { argument::slice(chunks, n_chunks, "chunks")? };
    let mut chunks = Vec::with_capacity(given.len());
    for chunk in given {
        if chunk.tokens > 1 << 31 {
            return Err(Failure::new(CERTKV_LENGTH, format!("chunk.tokens = {}: more than 2^31", chunk.tokens)));
        }
        chunks.push(Chunk { sequence: sequence::id(chunk.sequence), tokens: chunk.tokens as usize });
    }
    let held = cache::with(cache, |held| {
        let work = Work { step: Some(OwnedStep::begin(Arc::clone(held), &chunks, policy)?), kept: held.spare.take() };
        Ok(Stepping { cache: Arc::clone(held), poison: Poison::default(), work: Mutex::new(work) })
    })?;
    // SAFETY: as above.
    unsafe { step.write(STEPS.insert(Arc::new(held))) };
    Ok(())
}

/// Writes the new tokens' keys (after RoPE) and values of one layer, `[tokens][kv_heads * head_dim]` each, `elements`
/// numbers in each buffer. Once per layer. They are rounded to the cache's 16-bit type. The buffers are borrowed during
/// the call. `dtype` is CERTKV_F32, CERTKV_F16 or CERTKV_BF16. With CERTKV_SPACE_DEVICE both are device memory, 16-byte aligned,
/// in a step of one token per sequence; they must stay as they are until the work is done, nothing is waited for, and a row that
/// is not finite shows when certificates are read.
///
/// Threads: one at a time per step.
/// Stream: host memory none; device memory the cache's own, see certkv_step_after_stream.
/// Capture: safe with device memory, see certkv_step_captured; host memory and certificates not allowed.
/// Errors: NULL_POINTER, MISALIGNED, INVALID_ARGUMENT, UNSUPPORTED, INVALID_HANDLE, BUSY_STEP, LAYER, SHAPE, ORDER,
/// NOT_FINITE, OVERFLOW, OUT_OF_MEMORY, POISONED: nothing was written. DEVICE: the layer counts as not appended and may
/// be appended again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn certkv_step_append(
    step: *mut certkv_step,
    layer: u32,
    keys: *const core::ffi::c_void,
    values: *const core::ffi::c_void,
    elements: u64,
    dtype: certkv_dtype,
    space: certkv_space,
) -> certkv_status {
    guard(|| {
        with_step(step, |held, work| {
            let device = on_device(space, held)?;
            let geometry = *held.cache.engine.geometry();
            let Work { step, kept: Kept { rows, .. } } = work;
            let step = step.as_mut().ok_or_else(over)?;
            let expected = step.tokens() as u128 * geometry.kv_width() as u128;
            argument::count(elements, expected, "keys and values")?;
            let layer = layer as usize;
            if device {
                let element = element(dtype)?;
                argument::not_null(keys.cast::<u8>(), "keys")?;
                argument::not_null(values.cast::<u8>(), "values")?;
                let width = geometry.kv_width();
                let rows = Rows { count: step.tokens(), width, stride: width };
                // SAFETY: the caller gives `elements` elements of this type each, until the work is done.
                return unsafe { step.append_device(layer, [keys, values].map(|at| (at as u64, rows)), element) };
            }
            match dtype {
                CERTKV_F32 => {
                    // SAFETY: the caller gives `elements` floats each, unchanged during the call.
                    let keys = unsafe { argument::slice(keys.cast::<f32>(), elements, "keys")? };
                    // SAFETY: as above.
                    let values = unsafe { argument::slice(values.cast::<f32>(), elements, "values")? };
                    step.append(layer, keys, values)
                }
                CERTKV_F16 | CERTKV_BF16 => {
                    // SAFETY: the caller gives `elements` 16-bit patterns each, unchanged during the call.
                    let keys = unsafe { argument::slice(keys.cast::<u16>(), elements, "keys")? };
                    // SAFETY: as above.
                    let values = unsafe { argument::slice(values.cast::<u16>(), elements, "values")? };
                    rows.append(step, layer, keys, values, dtype, geometry.store)
                }
                other => Err(Failure::new(CERTKV_INVALID_ARGUMENT, format!("dtype = {other}: not an element type"))),
            }
        })
    })
}

/// Attention of the new tokens' queries (after RoPE) over everything up to and including themselves, for a layer that
/// was appended. `queries` is borrowed and `out` filled during the call: `[tokens][q_heads * head_dim]` f32 each,
/// `elements` numbers in each buffer. `certificates` is filled too, `[tokens][q_heads]`, or NULL with a count of 0. With
/// CERTKV_SPACE_DEVICE queries and out are device memory, 16-byte aligned, in a step of one token per sequence, and must stay
/// until the work is done; nothing is waited for but certificates, which are host memory always and say what `out` is worth:
/// certkv_step_certificates reads them later.
///
/// Threads: one at a time per step.
/// Stream: host memory none; device memory the cache's own, see certkv_step_after_stream.
/// Capture: safe with device memory, see certkv_step_captured; host memory and certificates not allowed.
/// Errors: NULL_POINTER, MISALIGNED, OVERLAP, UNSUPPORTED, INVALID_HANDLE, BUSY_STEP, LAYER, SHAPE, ORDER, NOT_FINITE,
/// NO_VISIBLE_TOKEN, UNCERTIFIABLE, OUT_OF_MEMORY, DEVICE, PANIC, POISONED; of originals that it needs and that are spilled, STORE_FAILED,
/// STORE_LATE, STORE_NOT_FOUND, STORE_DAMAGED, CAPACITY (a later try may succeed). `out` is unchanged, and the step as it was.
/// The certificates are CERTKV_UNCERTIFIED, or unchanged if the step, their pointer or their count was refused, or if they overlap `queries` or `out`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn certkv_step_attend(
    step: *mut certkv_step,
    layer: u32,
    queries: *const f32,
    out: *mut f32,
    elements: u64,
    certificates: *mut certkv_certificate,
    n_certificates: u64,
    space: certkv_space,
) -> certkv_status {
    guard(|| {
        with_step(step, |held, work| {
            let geometry = *held.cache.engine.geometry();
            let Work { step, kept: Kept { certificates: records, .. } } = work;
            let step = step.as_mut().ok_or_else(over)?;
            let tokens = step.tokens() as u128;
            // SAFETY: the caller gives NULL or `n_certificates` elements.
            let mut filled = unsafe { Records::new(certificates, n_certificates, step.tokens() * geometry.q_heads)? };
            let heads = filled.heads();
            let bytes = usize::try_from(elements).unwrap_or(usize::MAX).saturating_mul(size_of::<f32>());
            let apart =
                filled.apart_from([(out.cast_const().cast(), bytes, "out"), (queries.cast(), bytes, "queries")]);
            let device = on_device(space, held)?;
            argument::count(elements, tokens * geometry.q_width() as u128, "queries and out")?;
            sized(records, heads);
            apart?;
            if device {
                argument::not_null(queries.cast::<u8>(), "queries")?;
                argument::not_null(out.cast_const().cast::<u8>(), "out")?;
                // SAFETY: the caller gives `elements` floats each, until the work is done.
                unsafe {
                    let at = [queries as u64, out as u64];
                    step.attend_device(layer as usize, at, Element::F32, elements as usize)?;
                }
                if heads > 0 {
                    step.certificates(layer as usize, records)?;
                }
                filled.fill(records);
                return Ok(());
            }
            let len = argument::array(queries, elements, "queries")?;
            argument::array(out, elements, "out")?;
            argument::disjoint((out.cast_const(), len, "out"), (queries, len, "queries"))?;
            // SAFETY: not NULL, aligned, `elements` floats by the caller's promise, and written by nobody in this call.
            let queries = unsafe { core::slice::from_raw_parts(queries, len) };
            // SAFETY: as above, and no other buffer of the call overlaps it.
            let out = unsafe { core::slice::from_raw_parts_mut(out, len) };
            step.attend(layer as usize, queries, out, records)?;
            filled.fill(records);
            Ok(())
        })
    })
}

/// A caller's records that a call fills: none, or as many as it has outputs. However it ends, those that it did not fill certify nothing, but where
/// they overlap what the call is not to change; they are written once, as a pass over them takes as long as the rest of a call.
pub(crate) struct Records {
    at: *mut certkv_certificate,
    heads: usize,
}

impl Records {
    /// # Safety
    /// `certificates` is NULL or has `n` elements, which nobody else touches as long as this lives.
    pub(crate) unsafe fn new(certificates: *mut certkv_certificate, n: u64, expected: usize) -> Result<Self, Failure> {
        let heads = argument::array(certificates, n, "certificates")?;
        if heads > 0 {
            argument::count(n, expected as u128, "certificates")?;
        }
        Ok(Self { at: certificates, heads })
    }

    /// How many there are.
    pub(crate) fn heads(&self) -> usize {
        self.heads
    }

    /// Refuses other buffers of the call, as (first byte, bytes, name), that share a byte with them. Nothing is written then, not even that they
    /// certify nothing: it would be written over what the call is not to change.
    pub(crate) fn apart_from(&mut self, others: [(*const u8, usize, &str); 2]) -> Result<(), Failure> {
        for other in others.into_iter().filter(|(at, ..)| !at.is_null()) {
            if let Err(overlap) = argument::disjoint((self.at.cast_const(), self.heads, "certificates"), other) {
                self.heads = 0;
                return Err(overlap);
            }
        }
        Ok(())
    }

    /// Fills them, as many as `records` are, and leaves none for later.
    pub(crate) fn fill(mut self, records: &[Certificate]) {
        let heads = core::mem::take(&mut self.heads);
        for (at, record) in records.iter().take(heads).enumerate() {
            // SAFETY: aligned, and below the number of elements that `new` was promised.
            unsafe { self.at.add(at).write(certkv_certificate::from(record)) };
        }
    }
}

impl Drop for Records {
    fn drop(&mut self) {
        let empty = certkv_certificate::from(&Certificate::UNCERTIFIED);
        for at in 0..self.heads {
            // SAFETY: as in `fill`.
            unsafe { self.at.add(at).write(empty) };
        }
    }
}

/// Gives records that the engine fills their number; what they say before is of an earlier call.
pub(crate) fn sized(records: &mut Vec<Certificate>, heads: usize) {
    if records.len() != heads {
        records.clear();
        records.resize(heads, Certificate::UNCERTIFIED);
    }
}

/// # Safety
/// `to` is aligned and has as many elements.
unsafe fn put_records(to: *mut certkv_certificate, records: &[Certificate]) {
    for (at, record) in records.iter().enumerate() {
        // SAFETY: by the caller's promise.
        unsafe { to.add(at).write(certkv_certificate::from(record)) };
    }
}

/// # Safety
/// `stream` is NULL, a special handle of CUDA, or a live stream.
unsafe fn order(work: &mut Work, stream: *mut core::ffi::c_void, own_waits: bool) -> Result<(), Failure> {
    let step = work.step.as_mut().ok_or_else(over)?;
    // SAFETY: by the caller's promise.
    unsafe { step.order(stream, own_waits) }
}

pub(crate) fn element(dtype: certkv_dtype) -> Result<Element, Failure> {
    match dtype {
        CERTKV_F32 => Ok(Element::F32),
        CERTKV_F16 => Ok(Element::F16),
        CERTKV_BF16 => Ok(Element::Bf16),
        other => Err(Failure::new(CERTKV_INVALID_ARGUMENT, format!("dtype = {other}: not an element type"))),
    }
}

/// Certificates of a layer that was attended in this step, on a GPU: `[tokens][q_heads]` are filled. Waits for them.
///
/// Threads: one at a time per step.
/// Stream: the cache's own; blocks until its work so far is done.
/// Capture: not allowed.
/// Errors: NULL_POINTER, MISALIGNED, INVALID_HANDLE, BUSY_STEP, UNSUPPORTED (the cache is on the host), LAYER, SHAPE, ORDER,
/// NOT_FINITE and OVERFLOW (rows from device memory that were refused), UNCERTIFIABLE, DEVICE, POISONED. The certificates are
/// CERTKV_UNCERTIFIED, or unchanged if the step, their pointer or their count was refused.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn certkv_step_certificates(
    step: *mut certkv_step,
    layer: u32,
    certificates: *mut certkv_certificate,
    n_certificates: u64,
) -> certkv_status {
    guard(|| {
        with_step(step, |held, work| {
            let Work { step, kept: Kept { certificates: records, .. } } = work;
            let step = step.as_mut().ok_or_else(over)?;
            held.cache.engine.on_gpu()?;
            let heads = argument::array(certificates, n_certificates, "certificates")?;
            let expected = step.tokens() as u128 * held.cache.engine.geometry().q_heads as u128;
            argument::count(n_certificates, expected, "certificates")?;
            records.clear();
            records.resize(heads, Certificate::UNCERTIFIED);
            let read = step.certificates(layer as usize, records);
            // SAFETY: aligned; the caller gives `n_certificates` elements.
            unsafe { put_records(certificates, records) };
            read
        })
    })
}

/// What the step enqueues from now on comes after what `stream` (a CUstream or cudaStream_t; NULL for the default stream) was
/// given so far. Nobody blocks.
///
/// Threads: one at a time per step.
/// Stream: `stream` is only marked.
/// Capture: safe; a stream that records makes the other one record.
/// Errors: NULL_POINTER, INVALID_HANDLE, BUSY_STEP, UNSUPPORTED (the cache is on the host), DEVICE (also: a stream of another
/// context), POISONED. Nothing was ordered then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn certkv_step_after_stream(
    step: *mut certkv_step,
    stream: *mut core::ffi::c_void,
) -> certkv_status {
    guard(|| {
        // SAFETY: the caller gives a live stream.
        with_step(step, |_, work| unsafe { order(work, stream, true) })
    })
}

/// What `stream` (as in certkv_step_after_stream) is given from now on comes after what the step enqueued so far. Nobody blocks.
///
/// Threads: one at a time per step.
/// Stream: `stream` waits.
/// Capture: safe; a stream that records makes the other one record.
/// Errors: as certkv_step_after_stream.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn certkv_step_before_stream(
    step: *mut certkv_step,
    stream: *mut core::ffi::c_void,
) -> certkv_status {
    guard(|| {
        // SAFETY: the caller gives a live stream.
        with_step(step, |_, work| unsafe { order(work, stream, false) })
    })
}

/// Makes the new tokens part of their sequences and ends the step.
///
/// Threads: one at a time per step.
/// Stream: none.
/// Capture: not allowed.
/// Errors: ORDER (a layer was not appended), DEVICE, INTERNAL: the step is rolled back and its handle ends all the
/// same. NULL_POINTER, INVALID_HANDLE, BUSY_STEP, PANIC, POISONED: nothing changed; certkv_step_abort still is due.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn certkv_step_finish(step: *mut certkv_step) -> certkv_status {
    guard(|| {
        with_step(step, |_, work| {
            let ending = work.step.take().ok_or_else(over)?;
            let finished = ending.finish();
            STEPS.remove(step)?;
            finished
        })
    })
}

/// Ends a step without a trace: the sequences are as before. NULL is allowed.
///
/// Threads: one at a time per step.
/// Stream: none.
/// Capture: not allowed.
/// Errors: INVALID_HANDLE, for a step that is over already; BUSY_STEP. Nothing changed then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn certkv_step_abort(step: *mut certkv_step) -> certkv_status {
    guard(|| {
        if step.is_null() {
            return Ok(());
        }
        let held = STEPS.get(step)?;
        Sink::hears(&held.cache.log);
        let mut work = exclusive(&held)?;
        STEPS.remove(step)?;
        // Dropping the step rolls it back; a defect there concerns the cache.
        held.cache.poison.watch(|| drop(work.step.take()));
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::*;
    use certkv_status::{CERTKV_OK, CERTKV_PANIC, CERTKV_POISONED};

    #[test]
    fn a_defect_in_a_step_poisons_it_and_its_cache() {
        let mut config = core::mem::MaybeUninit::<certkv_config>::uninit();
        let (mut handle, mut sequence, mut step) = (ptr::null_mut(), 0, ptr::null_mut());
        // SAFETY: all pointers are to locals of the right type.
        unsafe {
            assert_eq!(certkv_config_init(config.as_mut_ptr(), size_of::<certkv_config>() as u32), CERTKV_OK);
            let mut config = config.assume_init();
            (config.layers, config.q_heads, config.kv_heads, config.head_dim, config.max_tokens) = (1, 2, 1, 64, 64);
            assert_eq!(certkv_cache_create(&config, &mut handle), CERTKV_OK);
            assert_eq!(certkv_sequence_create(handle, &mut sequence), CERTKV_OK);
            let chunk = certkv_chunk { sequence, tokens: 1 };
            assert_eq!(certkv_step_begin(handle, &chunk, 1, &mut step), CERTKV_OK);
            let busy = STEPS.get(step).unwrap();
            let inside = busy.work.lock();
            assert_eq!(certkv_step_abort(step), CERTKV_BUSY_STEP);
            drop(inside);
            assert_eq!(guard(|| with_step(step, |_, _| panic!("planted"))), CERTKV_PANIC);
            assert_eq!(certkv_step_finish(step), CERTKV_POISONED);
            let rows = [0f32; 64];
            let (k, n) = (rows.as_ptr().cast(), rows.len() as u64);
            assert_eq!(certkv_step_append(step, 0, k, k, n, CERTKV_F32, CERTKV_SPACE_HOST), CERTKV_POISONED);
            assert_eq!(certkv_sequence_release(handle, sequence), CERTKV_POISONED);
            assert_eq!(certkv_step_abort(step), CERTKV_OK);
            assert_eq!(certkv_step_abort(step), CERTKV_INVALID_HANDLE);
            assert_eq!(certkv_cache_destroy(handle), CERTKV_OK);
        }
    }
}
