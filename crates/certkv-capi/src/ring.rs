//! The ring handle: certificates of a cache's last steps, read without waiting for the GPU.
use crate::argument;
use crate::cache::{self, certkv_cache};
use crate::certificate::CERTKV_UNCERTIFIED;
use crate::guard::{Failure, guard};
use crate::handle::Registry;
use crate::status::certkv_status::{self, CERTKV_NOT_PUBLISHED, CERTKV_OVERWRITTEN, CERTKV_SHAPE, CERTKV_UNSUPPORTED};
use crate::step::certkv_step;
use crate::stepping;
use certkv::gpu::{CertificateRing, Missed, PublishedStep};
use core::mem::offset_of;
use core::ptr;
use parking_lot::Mutex;
use std::sync::Arc;

/// Certificates of the last steps of a cache on a GPU, in memory of the host. Opaque.
#[derive(Debug)]
pub struct certkv_ring {
    _opaque: [u8; 0],
}

/// What was published of one head's output; fields as in certkv_certificate, in single precision.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct certkv_published_head {
    /// Upper bound on the distance from attention over the originals; infinite where the layer was not attended.
    pub bound: f32,
    /// Absolute tolerance that was applied.
    pub tol: f32,
    /// Norm of the output.
    pub out_norm: f32,
    /// CERTKV_UNCERTIFIED, _CERTIFIED, _EXACT or _FAILED.
    pub status: u8,
    /// One of CERTKV_RUNG.
    pub rung: u8,
    /// 0.
    pub reserved: u16,
}

/// Which heads a step has: `[layers][sequences][q_heads]`, sequences being those with one new token, in the order of the step's chunks. In a step of drafts
/// (`config->chunk_tokens`) beside such, which has no other chunk, every new token counts as one, in the order of the step's rows.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct certkv_published_step {
    /// sizeof(certkv_published_step), set by the caller; nothing is written beyond it.
    pub struct_size: u32,
    /// Layers of the model.
    pub layers: u32,
    /// Sequences with one new token, or in a step of drafts its tokens.
    pub sequences: u32,
    /// Query heads of a layer.
    pub q_heads: u32,
}

/// What certkv_step_publish writes: this, and a certkv_published_head for each of `[layers][sequences][q_heads]` behind it.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct certkv_published_memory {
    /// How often steps of this cache were published so.
    pub number: u64,
    /// Not written.
    pub reserved: [u64; 7],
    /// `number` before the heads are written,
    pub begun: u64,
    /// and when they were.
    pub done: u64,
    /// Sequences with one new token, in the order of the step's chunks; or in a step of drafts its tokens, in the order of its rows.
    pub sequences: u32,
    /// Layers of the model.
    pub layers: u32,
    /// Query heads of a layer.
    pub q_heads: u32,
    /// 0 where the step makes no claim (its policy is packed), 1 where it certifies, 2 where it reads everything exactly.
    pub rule: u32,
}

/// In `status` of a certkv_published_head in device memory: the layer was not attended.
pub const CERTKV_ABSENT: u8 = 255;

struct Held {
    ring: CertificateRing,
    /// The step read last.
    step: Mutex<PublishedStep>,
}

static RINGS: Registry<Held> = Registry::new(0x9b, "ring");

/// Opens the ring of a cache whose `config->certificate_ring` is not 0. `*ring` is filled; the caller ends it with certkv_ring_destroy. It
/// stays readable, also while a step is open, and when the cache is destroyed.
///
/// Threads: any, at any time. Reads of one ring take turns: give each thread its own.
/// Stream: none.
/// Capture: safe.
/// Errors: NULL_POINTER, MISALIGNED, INVALID_HANDLE, UNSUPPORTED (the cache is on the host, or has no ring), POISONED. `*ring` is NULL if it
/// can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn certkv_ring_open(cache: *const certkv_cache, ring: *mut *mut certkv_ring) -> certkv_status {
    guard(|| {
        argument::aligned(ring, "ring")?;
        // SAFETY: not NULL and aligned; the caller gives a variable of this type.
        unsafe { ring.write(ptr::null_mut()) };
        let found = cache::with(cache, |held| {
            let found = held.engine.on_gpu()?.ring();
            found.ok_or_else(|| Failure::new(CERTKV_UNSUPPORTED, "the cache has no ring (config->certificate_ring)"))
        })?;
        // SAFETY: as above.
        unsafe { ring.write(RINGS.insert(Arc::new(Held { ring: found, step: Mutex::default() }))) };
        Ok(())
    })
}

/// Fills `*steps` with the number of steps that the GPU has published so far: the newest that can be read is one less. Neither waits nor calls
/// the driver.
///
/// Threads: any, at any time.
/// Stream: none.
/// Capture: safe.
/// Errors: NULL_POINTER, MISALIGNED, INVALID_HANDLE. Nothing changed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn certkv_ring_published(ring: *const certkv_ring, steps: *mut u64) -> certkv_status {
    guard(|| {
        argument::aligned(steps, "steps")?;
        let published = RINGS.get(ring)?.ring.published();
        // SAFETY: not NULL and aligned; the caller gives a variable of this type.
        unsafe { steps.write(published) };
        Ok(())
    })
}

/// Copies what step `number` published to `heads`, `[layers][sequences][q_heads]`, and fills `step`, whose `struct_size` must be set. What is
/// copied is of that step and whole. `capacity`: heads that there is room for. Neither waits nor calls the driver.
///
/// Threads: any; calls on one ring take turns.
/// Stream: none.
/// Capture: safe.
/// Errors: NULL_POINTER, MISALIGNED, STRUCT_SIZE, OVERLAP, INVALID_ARGUMENT, INVALID_HANDLE; NOT_PUBLISHED, OVERWRITTEN (a later step has taken its place):
/// nothing changed. SHAPE (`capacity` is too small): `step` says how many there are, `heads` is unchanged.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn certkv_ring_read(
    ring: *const certkv_ring,
    number: u64,
    heads: *mut certkv_published_head,
    capacity: u64,
    step: *mut certkv_published_step,
) -> certkv_status {
    guard(|| {
        let room = argument::array(heads, capacity, "heads")?;
        // SAFETY: the caller gives NULL or a struct of its `struct_size` bytes.
        let size = unsafe { argument::struct_size(step, "step", offset_of!(certkv_published_step, q_heads) + 4)? };
        argument::disjoint((heads, room, "heads"), (step, 1, "step"))?;
        let held = RINGS.get(ring)?;
        let mut found = held.step.lock();
        held.ring.read(number, &mut found).map_err(missed)?;
        let [layers, sequences, q_heads] = [found.layers(), found.sequences(), found.q_heads()];
        let shape = certkv_published_step {
            struct_size: size as u32,
            layers: layers as u32,
            sequences: sequences as u32,
            q_heads: q_heads as u32,
        };
        // SAFETY: the struct has `size` bytes, by the caller's promise, and so has `shape`.
        unsafe { argument::write_prefix(step, &shape, size) };
        let wanted = layers * sequences * q_heads;
        if room < wanted {
            return Err(Failure::new(CERTKV_SHAPE, format!("heads: room for {room}, the step has {wanted}")));
        }
        for at in 0..wanted {
            let (layer, place, head) = (at / q_heads / sequences, at / q_heads % sequences, at % q_heads);
            // SAFETY: `at` is below `room`, and the array has that many writable elements, by the caller's promise.
            unsafe { heads.add(at).write(of(&found, layer, place, head)) };
        }
        Ok(())
    })
}

/// Ends a ring handle. NULL is allowed.
///
/// Threads: any, at any time.
/// Stream: none.
/// Capture: safe.
/// Errors: INVALID_HANDLE, for a ring that has ended already. Nothing changed then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn certkv_ring_destroy(ring: *mut certkv_ring) -> certkv_status {
    guard(|| if ring.is_null() { Ok(()) } else { RINGS.remove(ring).map(drop) })
}

/// Fills `*number` with the number under which the step's certificates will be in the ring, once it is finished or replayed. A step that is
/// aborted does not use its number up.
///
/// Threads: one at a time per step.
/// Stream: none.
/// Capture: safe.
/// Errors: NULL_POINTER, MISALIGNED, INVALID_HANDLE, BUSY_STEP, UNSUPPORTED (the cache is on the host), POISONED. Nothing changed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn certkv_step_number(step: *const certkv_step, number: *mut u64) -> certkv_status {
    guard(|| {
        argument::aligned(number, "number")?;
        let found = stepping::on(step, |open| open.number())?;
        // SAFETY: not NULL and aligned; the caller gives a variable of this type.
        unsafe { number.write(found) };
        Ok(())
    })
}

/// Enqueues that the certificates of the layers attended so far in a step on a GPU go to device memory of the caller: a certkv_published_memory, then the heads.
/// Kernels that come behind it, on the cache's stream or on one that waits for it (certkv_step_before_stream), read them without the host. `memory` has `bytes` bytes,
/// at least sizeof(certkv_published_memory) + 16 * layers * sequences * q_heads, from a multiple of 16 on, and stays until the work is done; sequences are those of
/// certkv_published_step. Of chunks that are longer than drafts there is nothing. `status` of a head is that of a certificate, or CERTKV_ABSENT.
///
/// Threads: one at a time per step.
/// Stream: enqueued on the cache's own.
/// Capture: safe, see certkv_step_captured: each run publishes its own.
/// Errors: NULL_POINTER, INVALID_HANDLE, BUSY_STEP, SHAPE (`bytes`), MISALIGNED, INVALID_ARGUMENT (memory of the host or of another GPU), UNSUPPORTED (a cache on
/// the host), DEVICE (also: more than 256 layers), POISONED. Nothing changed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn certkv_step_publish(
    step: *mut certkv_step,
    memory: *mut certkv_published_memory,
    bytes: u64,
) -> certkv_status {
    guard(|| {
        argument::not_null(memory, "memory")?;
        // SAFETY: the caller gives device memory of as many bytes that stays until the work is done.
        stepping::on(step, |open| unsafe { open.publish_to(memory.addr() as u64, bytes) })
    })
}

fn missed(why: Missed) -> Failure {
    let status = match why {
        Missed::NotYet => CERTKV_NOT_PUBLISHED,
        Missed::Overwritten => CERTKV_OVERWRITTEN,
    };
    Failure::new(status, why.to_string())
}

fn of(step: &PublishedStep, layer: usize, place: usize, head: usize) -> certkv_published_head {
    match step.head(layer, place, head) {
        Some(c) => certkv_published_head {
            bound: c.bound,
            tol: c.tolerance,
            out_norm: c.norm,
            status: c.status as u8,
            rung: c.rung as u8,
            reserved: 0,
        },
        // Of a layer that the step did not attend.
        None => certkv_published_head {
            bound: f32::INFINITY,
            tol: 0.0,
            out_norm: 0.0,
            status: CERTKV_UNCERTIFIED,
            rung: 0,
            reserved: 0,
        },
    }
}
