//! What a cache would take, before it takes it.
use crate::argument;
use crate::config::{self, certkv_config};
use crate::guard::{Failure, guard};
use crate::status::certkv_status::{self, CERTKV_RESERVED};
use certkv::{Class, Requests};
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

/// Requests that are to live side by side, none of them sharing a block with another. Set all of it to 0 bytes, then `struct_size` and the rest.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct certkv_requests {
    /// sizeof(certkv_requests) of the caller's header.
    pub struct_size: u32,
    /// 0.
    pub reserved: u32,
    /// How many, at least 1.
    pub count: u64,
    /// Tokens of each, prompt and answer, at least 1.
    pub tokens: u64,
    /// Share of all key sides, and of all value sides, of which scratch keeps copies, 0 to 1.
    pub scratch: f64,
}

/// What requests come to.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct certkv_requests_plan {
    /// sizeof(certkv_requests_plan), set by the caller; nothing is written beyond it.
    pub struct_size: u32,
    /// As `assumed` of certkv_plan.
    pub assumed: u32,
    /// `config->max_tokens` for them: each in whole blocks.
    pub max_tokens: u64,
    /// `config->max_sequences` for them.
    pub max_sequences: u64,
    /// The most requests of this length that fit the budgets, up to what a cache can have at all.
    pub most: u64,
    /// Bytes of device memory for them.
    pub device_bytes: u64,
    /// Bytes by which its budget is short; 0 if it suffices.
    pub device_lacks: u64,
    /// Bytes of host memory for them.
    pub host_bytes: u64,
    /// Bytes by which its budget is short; 0 if it suffices.
    pub host_lacks: u64,
}

/// Fills `answer`, whose `struct_size` must be set, with what so many requests of one length take in a cache of this configuration, whether the budgets
/// have it, and how many they would have. `config->max_tokens`, `max_sequences`, `max_context`, `scratch_keys` and `scratch_values` do not count, and
/// `max_tokens` may be 0: a cache of that size has `max_tokens` and `max_sequences` of the answer, and `requests->tokens` for its `max_context`. Nothing is taken. `config`
/// and `requests` are borrowed during the call.
///
/// Threads: any, at any time.
/// Stream: none.
/// Capture: not allowed.
/// Errors: as certkv_config_plan; RESERVED and INVALID_ARGUMENT also of `requests`. `answer` is unchanged.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn certkv_config_plan_requests(
    config: *const certkv_config,
    requests: *const certkv_requests,
    answer: *mut certkv_requests_plan,
) -> certkv_status {
    guard(|| {
        // SAFETY: the caller gives NULL or a struct of its `struct_size` bytes.
        let size = unsafe { argument::struct_size(answer, "answer", offset_of!(certkv_requests_plan, max_sequences))? };
        // SAFETY: the caller gives NULL or a struct of its `struct_size` bytes; integers and a float, for which zero bits are a value.
        let given = unsafe { argument::read_struct(requests, "requests", offset_of!(certkv_requests, scratch))? };
        if given.reserved != 0 {
            return Err(Failure::new(CERTKV_RESERVED, "requests->reserved is not 0"));
        }
        // As the engine says it, by the names of this struct.
        if given.count == 0 || given.count > 1 << 20 {
            return Err(argument::invalid(format!("requests->count = {}: must be 1 to 2^20", given.count)));
        }
        if given.tokens == 0 || given.tokens > 1 << 31 {
            return Err(argument::invalid(format!("requests->tokens = {}: must be 1 to 2^31", given.tokens)));
        }
        if !(0.0..=1.0).contains(&given.scratch) {
            return Err(argument::invalid(format!("requests->scratch = {}: must be 0 to 1", given.scratch)));
        }
        let wanted = Requests { count: given.count as usize, tokens: given.tokens as usize, scratch: given.scratch };
        // SAFETY: the caller gives NULL or a struct of its `struct_size` bytes.
        let (found, at_hand) = unsafe { config::read(config)? }.plan_requests(wanted)?;
        let filled = certkv_requests_plan {
            struct_size: size as u32,
            assumed: u32::from(!at_hand),
            max_tokens: found.max_tokens as u64,
            max_sequences: found.max_sequences as u64,
            most: found.most as u64,
            device_bytes: found.plan.device.bytes as u64,
            device_lacks: found.plan.device.lacks() as u64,
            host_bytes: found.plan.host.bytes as u64,
            host_lacks: found.plan.host.lacks() as u64,
        };
        // SAFETY: the struct has `size` bytes, by the caller's promise, and so has `filled`.
        unsafe { argument::write_prefix(answer, &filled, size) };
        Ok(())
    })
}

/// Fills `plan`, whose `struct_size` must be set, with what certkv_cache_create would take for `config`. Nothing is taken, and a budget that
/// is short is no error. `config` is borrowed during the call. Where `config->device` is a GPU of this machine, its driver is started if
/// nothing else has (0.1 s); what the driver takes for itself is no part of the plan.
///
/// Threads: any, at any time.
/// Stream: none.
/// Capture: not allowed.
/// Errors: NULL_POINTER, MISALIGNED, STRUCT_SIZE, RESERVED, INVALID_ARGUMENT, INVALID_HANDLE (of a handle in `config`), UNSUPPORTED, FORMAT, FILE_REFUSED, POLICY,
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
