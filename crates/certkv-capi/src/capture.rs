//! The capture handle: a step that is part of a graph of the caller's.
use crate::argument;
use crate::guard::guard;
use crate::handle::Registry;
use crate::status::certkv_status;
use crate::step::certkv_step;
use crate::stepping;
use certkv::gpu::GpuCapture;
use core::ffi::c_void;
use core::ptr;
use std::sync::Arc;

/// What a recorded step holds of a cache. Opaque.
#[derive(Debug)]
pub struct certkv_capture {
    _opaque: [u8; 0],
}

static CAPTURES: Registry<GpuCapture> = Registry::new(0x3d, "capture");

/// Ends the cache's part of a recording that `stream` began: between certkv_step_after_stream, by which the cache's stream joined it, and this
/// call, certkv_step_append and certkv_step_attend with device memory went into the graph, beside the caller's own kernels. `stream` waits for the
/// cache's and may end the recording. The step is over without a trace, as after certkv_step_abort. `*capture` is filled; the caller ends it with
/// certkv_capture_destroy, after the graph, whose memory it keeps.
///
/// The graph then runs any step of as many sequences, however long, with one token each, or with drafts of as many tokens each (`config->chunk_tokens`): certkv_step_begin; certkv_step_before_stream; the launch on the stream;
/// certkv_step_after_stream; certkv_step_replayed; certificates if wanted; certkv_step_finish.
///
/// Threads: one at a time per step; the thread that began to record, unless it did so in relaxed mode.
/// Stream: `stream` waits for the cache's, in the recording.
/// Capture: required.
/// Errors: NULL_POINTER, MISALIGNED, INVALID_HANDLE, BUSY_STEP, UNSUPPORTED (the cache is on the host), ORDER (the cache's stream is not recording,
/// or a layer was not appended, or the step has a chunk of several tokens, but for drafts of one length), DEVICE, POISONED. `*capture` is NULL if it can be written, and
/// certkv_step_abort still is due; what was recorded so far is of no use.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn certkv_step_captured(
    step: *mut certkv_step,
    stream: *mut c_void,
    capture: *mut *mut certkv_capture,
) -> certkv_status {
    guard(|| {
        argument::aligned(capture, "capture")?;
        // SAFETY: not NULL and aligned; the caller gives a variable of this type.
        unsafe { capture.write(ptr::null_mut()) };
        // SAFETY: the caller gives a live stream.
        let ended = stepping::end(step, |open| unsafe { open.captured(stream) })?;
        // SAFETY: as above.
        unsafe { capture.write(CAPTURES.insert(Arc::new(ended))) };
        Ok(())
    })
}

/// Says that a graph with `capture` was launched for this step: behind what the step enqueued in certkv_step_begin, and with the cache's stream
/// behind it. All layers count as appended, and as attended where the recording attended them.
///
/// Threads: one at a time per step.
/// Stream: none.
/// Capture: not allowed.
/// Errors: NULL_POINTER, INVALID_HANDLE, BUSY_STEP, UNSUPPORTED (the cache is on the host), ORDER (a layer was appended already, the capture is
/// another cache's, or the step has a chunk of several tokens, but for drafts of one length), SHAPE (another number of sequences, or of tokens each), POLICY,
/// POISONED. Nothing changed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn certkv_step_replayed(step: *mut certkv_step, capture: *const certkv_capture) -> certkv_status {
    guard(|| {
        let capture = CAPTURES.get(capture)?;
        stepping::on(step, |open| open.replayed(&capture))
    })
}

/// Ends a capture; its graph must not run any more. NULL is allowed.
///
/// Threads: any, at any time.
/// Stream: none.
/// Capture: not allowed.
/// Errors: INVALID_HANDLE, for a capture that has ended already. Nothing changed then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn certkv_capture_destroy(capture: *mut certkv_capture) -> certkv_status {
    guard(|| {
        if capture.is_null() {
            return Ok(());
        }
        CAPTURES.remove(capture).map(drop)
    })
}
