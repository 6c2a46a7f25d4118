//! What a cache would take, before it takes it.
use crate::argument;
use crate::config::{self, certkv_config};
use crate::guard::guard;
use crate::status::certkv_status;
use certkv::Class;
use core::mem::offset_of;

/// What a configuration would take, in bytes: what certkv_snapshot calls reserved in a new cache.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct certkv_plan {
    /// sizeof(certkv_plan), set by the caller; nothing is written beyond it.
    pub struct_size: u32,
    /// 1 where `config->device` is a GPU and this machine has no CUDA driver: what the cache would take on an H200. Else 0.
    pub assumed: u32,
    /// Packed pages: codes, scales, summaries.
    pub packed: u64,
    /// Open blocks and exact sides (16-bit, device).
    pub scratch: u64,
    /// Block tables and what else is held for sequences, prefixes and work.
    pub tables: u64,
    /// 16-bit originals, and codes of sequences that are swapped out.
    pub host: u64,
    /// Device memory in all: packed, scratch and tables.
    pub device_bytes: u64,
    /// Its budget; UINT64_MAX for none.
    pub device_budget: u64,
    /// Bytes by which it is short; 0 if it suffices.
    pub device_lacks: u64,
    /// Host memory in all.
    pub host_bytes: u64,
    /// Its budget; UINT64_MAX for none.
    pub host_budget: u64,
    /// Bytes by which it is short; 0 if it suffices.
    pub host_lacks: u64,
    /// The most that cached prefixes add to the tables as they are published; those for which a budget has no room are not cached.
    pub later: u64,
}

/// Fills `plan`, whose `struct_size` must be set, with what certkv_cache_create would take for `config`. Nothing is taken, and a budget that
/// is short is no error. `config` is borrowed during the call. Where `config->device` is a GPU of this machine, its driver is started if
/// nothing else has (0.1 s); what the driver takes for itself is no part of the plan.
///
/// Threads: any, at any time.
/// Stream: none.
/// Capture: not allowed.
/// Errors: NULL_POINTER, MISALIGNED, STRUCT_SIZE, RESERVED, INVALID_ARGUMENT, INVALID_HANDLE (of `config->spill_store`), UNSUPPORTED, FORMAT, POLICY,
/// DEVICE (no such GPU, or one without kernels). `plan` is unchanged.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn certkv_config_plan(config: *const certkv_config, plan: *mut certkv_plan) -> certkv_status {
    guard(|| {
        // SAFETY: the caller gives NULL or a struct of its `struct_size` bytes.
        let size = unsafe { argument::struct_size(plan, "plan", offset_of!(certkv_plan, packed))? };
        // SAFETY: the caller gives NULL or a struct of its `struct_size` bytes.
        let (found, at_hand) = unsafe { config::read(config)? }.plan()?;
        let of = |class| found.of(class) as u64;
        let filled = certkv_plan {
            struct_size: size as u32,
            assumed: u32::from(!at_hand),
            packed: of(Class::Packed),
            scratch: of(Class::Scratch),
            tables: of(Class::Tables),
            host: of(Class::Host),
            device_bytes: found.device.bytes as u64,
            device_budget: found.device.budget as u64,
            device_lacks: found.device.lacks() as u64,
            host_bytes: found.host.bytes as u64,
            host_budget: found.host.budget as u64,
            host_lacks: found.host.lacks() as u64,
            later: found.later as u64,
        };
        // SAFETY: the struct has `size` bytes, by the caller's promise, and so has `filled`.
        unsafe { argument::write_prefix(plan, &filled, size) };
        Ok(())
    })
}
