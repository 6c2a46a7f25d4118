//! The step handle: one batch of new tokens, layer by layer, committed as a whole.
use crate::argument;
use crate::cache::{self, certkv_cache};
use crate::certificate::certkv_certificate;
use crate::config::{self, CERTKV_BF16, CERTKV_F16, CERTKV_F32, certkv_dtype, certkv_policy};
use crate::guard::{Failure, guard};
use crate::kept::Kept;
use crate::owned::{DeviceRows, OwnedStep};
use crate::records::{Records, put_records, sized};
use crate::sequence::{self, certkv_sequence};
use crate::status::certkv_status::{self, CERTKV_INVALID_ARGUMENT, CERTKV_LENGTH, CERTKV_UNSUPPORTED};
use crate::stepping::{self, Work, over, with_step};
use certkv::gpu::{Element, Rows};
use certkv::{Certificate, Chunk, Policy};
use core::mem::offset_of;
use core::ptr;
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

/// Whether buffers are on the GPU of the cache.
pub(crate) fn on_device(space: certkv_space, held: &cache::Held) -> Result<bool, Failure> {
    match space {
        CERTKV_SPACE_HOST => Ok(false),
        CERTKV_SPACE_DEVICE => held.engine.on_gpu().map(|_| true),
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
            config::policy("options", given.policy, given.tolerance, 0.0).map(Some)
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
    if let Some(chunk) = given.iter().find(|chunk| chunk.tokens > 1 << 31) {
        return Err(Failure::new(CERTKV_LENGTH, format!("chunk.tokens = {}: more than 2^31", chunk.tokens)));
    }
    let opened = stepping::open(cache, |held, work| {
        let of = |chunk: &certkv_chunk| Chunk { sequence: sequence::id(chunk.sequence), tokens: chunk.tokens as usize };
        work.kept.chunks.clear();
        work.kept.chunks.extend(given.iter().map(of));
        work.step = Some(OwnedStep::begin(Arc::clone(held), &work.kept.chunks, policy)?);
        Ok(())
    })?;
    // SAFETY: as above.
    unsafe { step.write(opened) };
    Ok(())
}

/// Writes the new tokens' keys (after RoPE) and values of one layer, `[tokens][kv_heads * head_dim]` each, `elements`
/// numbers in each buffer. Once per layer. They are rounded to the cache's 16-bit type. The buffers are borrowed during
/// the call. `dtype` is CERTKV_F32, CERTKV_F16 or CERTKV_BF16. With CERTKV_SPACE_DEVICE both are device memory, 16-byte aligned.
/// In a step of one token per sequence, and of drafts (`config->chunk_tokens`) beside such, they must stay as they are until the work is done, and nothing is waited for.
/// A row that is not finite, or that 16 bits do not hold, is refused then: zeros stand in its place, and results are NOT_FINITE or OVERFLOW, in this step and in all others of the
/// sequence, and of forks of it, until it is truncated to a length without that row, or the step is aborted. With another chunk the call waits; without `config->chunk_tokens` rows go by way of the host.
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
            let geometry = *held.engine.geometry();
            let Work { step, kept: Kept { rows, .. } } = work;
            let step = step.as_mut().ok_or_else(over)?;
            let expected = step.tokens() as u128 * geometry.kv_width() as u128;
            argument::count(elements, expected, "keys and values")?;
            let layer = layer as usize;
            if device {
                let element = element(dtype)?;
                argument::not_null(keys.cast::<u8>(), "keys")?;
                argument::not_null(values.cast::<u8>(), "values")?;
                let rows = Rows::dense(step.tokens(), geometry.kv_heads, geometry.head_dim);
                let given = [keys, values].map(|at| DeviceRows { address: at as u64, element, rows });
                // SAFETY: the caller gives `elements` elements of this type each, until the work is done.
                return unsafe { step.append_device(layer, given) };
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
/// CERTKV_SPACE_DEVICE queries and out are device memory, 16-byte aligned, which does not overlap and must stay
/// until the work is done. In a step of one token per sequence, and of drafts (`config->chunk_tokens`) beside such, nothing is waited for but certificates, which are
/// host memory always and say what `out` is worth: certkv_step_certificates reads them later. With another chunk the call waits; without `config->chunk_tokens` they go by way of the host.
///
/// Threads: one at a time per step.
/// Stream: host memory none; device memory the cache's own, see certkv_step_after_stream.
/// Capture: safe with device memory, see certkv_step_captured; host memory and certificates not allowed.
/// Errors: NULL_POINTER, MISALIGNED, OVERLAP, UNSUPPORTED, INVALID_HANDLE, BUSY_STEP, LAYER, SHAPE, ORDER, NOT_FINITE, OVERFLOW (on a GPU),
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
            let geometry = *held.engine.geometry();
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
                let len = elements as usize;
                argument::disjoint((out.cast_const(), len, "out"), (queries, len, "queries"))?;
                let rows = Rows::dense(step.tokens(), geometry.q_heads, geometry.head_dim);
                let given =
                    [queries as u64, out as u64].map(|address| DeviceRows { address, element: Element::F32, rows });
                // SAFETY: the caller gives `elements` floats each, until the work is done.
                unsafe { step.attend_device(layer as usize, given)? };
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
            held.engine.on_gpu()?;
            let heads = argument::array(certificates, n_certificates, "certificates")?;
            let expected = step.tokens() as u128 * held.engine.geometry().q_heads as u128;
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

/// Chooses what the next step reads exactly in a layer, from what this step's attention of it has weighed, and copies that to scratch, where `config->plan_apart`
/// leaves it to this call. Both run beside what the caller enqueues next, so that the best place for it is before the layer's other kernels: the end of the step waits for
/// them, and so does attention of the same layer. A layer that is not planned reads what it has read in this step. Does nothing where attention itself plans: without
/// `config->plan_apart`, on the host, for formats with residual planes, in layers whose originals may lie in `config->spill_store`, and under policies that promote nothing; nor when called again.
///
/// Threads: one at a time per step.
/// Stream: one of the cache's own, behind what the step has enqueued so far; nobody blocks.
/// Capture: safe; it is part of what is recorded.
/// Errors: NULL_POINTER, INVALID_HANDLE, BUSY_STEP, LAYER, ORDER (the layer was not attended), POISONED: nothing changed. DEVICE: what was begun is finished
/// before the layer is attended again, or in the next step.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn certkv_step_plan(step: *mut certkv_step, layer: u32) -> certkv_status {
    guard(|| with_step(step, |_, work| work.step.as_mut().ok_or_else(over)?.plan(layer as usize)))
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
    guard(|| stepping::finish(step, OwnedStep::finish))
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
        stepping::abort(step)
    })
}
