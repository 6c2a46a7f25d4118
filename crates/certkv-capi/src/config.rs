//! What a cache is made of, as C says it.
use crate::allocator::{self, certkv_allocator};
use crate::argument;
use crate::bound_budget::certkv_bound_budget;
use crate::calibration::{self, Found, certkv_calibration};
use crate::control::{self, certkv_control};
use crate::engine::Wanted;
use crate::guard::{Failure, guard};
use crate::level::{self, certkv_level};
use crate::log::{Sink, certkv_log};
use crate::retention::certkv_retention;
use crate::scales::{self, certkv_scales};
use crate::status::certkv_status::{self, CERTKV_FORMAT, CERTKV_INVALID_ARGUMENT, CERTKV_POLICY, CERTKV_UNSUPPORTED};
use crate::store::{self, certkv_store};
use crate::window::{self, certkv_window};
use certkv::gpu::{GpuConfig, SCRATCH_SHARE};
use certkv::{
    Certified, Config, Dtype, Eviction, Format, Geometry, Policy, PrefixConfig, PrefixSecret, Protection, Seed000,
    Spill, Watermarks,
};
use core::ffi::c_char;
use core::mem::{offset_of, zeroed};
use core::time::Duration;
use std::path::PathBuf;
use std::sync::Arc;

/// Element type. A plain integer, so that any value may be passed; those without a name are refused.
pub type certkv_dtype = i32;
/// In a configuration: f16. Refused elsewhere.
pub const CERTKV_DTYPE_DEFAULT: certkv_dtype = 0;
/// IEEE single precision.
pub const CERTKV_F32: certkv_dtype = 1;
/// IEEE half precision, as 16-bit patterns.
pub const CERTKV_F16: certkv_dtype = 2;
/// bfloat16, as 16-bit patterns.
pub const CERTKV_BF16: certkv_dtype = 3;

/// How a step decides what to read exactly.
pub type certkv_policy = i32;
/// One pass over the codes; outputs are within the tolerance or exact. The default.
pub const CERTKV_POLICY_CERTIFIED: certkv_policy = 0;
/// Codes only: the certificate is computed and reported, and nothing acts on it.
pub const CERTKV_POLICY_PACKED: certkv_policy = 1;
/// Dense attention over the originals.
pub const CERTKV_POLICY_DENSE: certkv_policy = 2;
/// Two phases, thresholds, bound and ladder of "Runtime-Certified Bounded-Error Quantized Attention".
pub const CERTKV_POLICY_SEED000: certkv_policy = 3;

/// Configuration of a cache. Fill it with certkv_config_init, then set the geometry and `max_tokens`; 0 in any other
/// field means its default. Fields are added at the end only, and their 0 will mean what the library did before.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct certkv_config {
    /// sizeof(certkv_config) of the caller's header.
    pub struct_size: u32,
    /// Layers of the model, 1 to 4096.
    pub layers: u32,
    /// Query heads per layer: a multiple of `kv_heads`, at most 16 times as many.
    pub q_heads: u32,
    /// Key/value heads per layer, 1 to 1024.
    pub kv_heads: u32,
    /// Channels per head: 64, 96, 128 or 256.
    pub head_dim: u32,
    /// Type of the originals: CERTKV_F16 (default) or CERTKV_BF16.
    pub store: certkv_dtype,
    /// Logit scale, from 2^-64 to 2^64; 0 for 1/sqrt(head_dim).
    pub scale: f32,
    /// Worker threads of the CPU kernels, 1 to 256; 0 for 1.
    pub threads: u32,
    /// Format of all layers, as "k8-v4g64-b64", or those of each layer with `+` between them, on a GPU all of one block size; on the host also those of each KV head of
    /// each layer, layer by layer. At most 63 characters each, 4096 of them; NULL for the default. Borrowed during the call.
    pub format: *const c_char,
    /// Tokens that all sequences together may hold, 1 to 2^31.
    pub max_tokens: u64,
    /// Bytes of device memory; 0 for no limit.
    pub device_budget: u64,
    /// Bytes of host memory for the originals; 0 for no limit.
    pub host_budget: u64,
    /// Exact key sides (one block of one KV head in one layer) of which copies are kept between steps in device memory, at most 2^24. On the host over
    /// all layers, and 0 for none: originals are read where they lie, which is best there. On a GPU in every layer, and 0 for 11% of those that `max_tokens` tokens
    /// have; 1 is as good as none.
    pub scratch_keys: u64,
    /// The same for exact value sides.
    pub scratch_values: u64,
    /// Tolerance of the certified policy relative to the norm of the output; 0 for 0.05. Other policies ignore it.
    pub tolerance: f64,
    /// Sequences that may live at once, 1 to 2^20, on a GPU to 4096; 0 for 16.
    pub max_sequences: u32,
    /// One of the CERTKV_POLICY values.
    pub policy: certkv_policy,
    /// Where the cache lies: CERTKV_DEVICE_HOST, or CERTKV_DEVICE_CUDA + the number of a GPU. On a GPU there is one step at a
    /// time, and `threads` are those of prefill.
    pub device: u32,
    /// On a GPU: steps whose certificates stay readable on the host without waiting, at most 4096; 0 for none. See certkv_ring_open.
    pub certificate_ring: u32,
    /// Most tokens of one sequence, on the host in whole blocks; 0 for `max_tokens`. Tables are planned for `max_sequences` sequences of that length.
    pub max_context: u64,
    /// On a GPU, and on the host not looked at: a folder with machine code of the kernels, where code that is compiled is kept, too; NULL for none. At most 4095
    /// bytes. Borrowed during the call.
    pub kernels: *const c_char,
    /// Tokens whose codes sequences that are swapped out may leave in host memory, at most 2^31; 0 for none. See
    /// certkv_sequence_swap_out.
    pub swap_tokens: u64,
    /// Units (blocks of the largest size) that outlive their sequences at most, up to 2^24, for others to continue from; 0 for none. See
    /// certkv_cache_publish.
    pub prefix_units: u64,
    /// 32 bytes from which the names of cached prefixes are made; NULL for bytes from the operating system. Borrowed during the call.
    pub prefix_secret: *const u8,
    /// Which cached prefix goes first when room is needed: one of the CERTKV_EVICTION values.
    pub prefix_eviction: certkv_eviction,
    /// 1 if what sequences leave in memory is overwritten with zeroes before anybody else has it; 0 otherwise. Pages of codes and of originals, on the device, on the
    /// host and swapped out, and sides copied to scratch: of a sequence that is released, cut or swapped out, as far as no step reads them, before that call returns, on a
    /// GPU in the order of the cache's stream. Not blocks that cached prefixes keep, nor records in a store until it has deleted them, nor buffers that a call works in until the
    /// next one needs them. Costs a write of each page's bytes when it is given up, on a GPU that of originals over the link.
    pub erase: u32,
    /// A store for the originals of live sequences for which host memory has no room; NULL for none. The cache keeps it: the handle may
    /// be destroyed. What a step reads from codes costs what it did; originals that it needs and that have left are read from the store first, and
    /// what the store did to them is a status of that step. On a GPU plans and repairs leave them on codes, and a step of sequences that lack some
    /// waits in every layer to see whether a head needs all of them: such a step is refused when recorded or replayed (CERTKV_ORDER). certkv_cache_destroy deletes what the cache has there, as far as the store answers; a
    /// process that does not get to it leaves records that nobody will ask for, so that a store for these alone can be emptied.
    pub spill_store: *mut certkv_store,
    /// Tokens whose originals have room in host memory, in every layer, until the store has them: at least the longest chunk. Beside them there is
    /// room for the open blocks, and, for each run of layers of one format and window, for the longest sequence in one of them: a run of few layers
    /// saves little, and one of one layer nothing.
    pub spill_host_tokens: u64,
    /// Most bytes of records in the store; 0 for no limit.
    pub spill_budget: u64,
    /// Threads that call the store, at most 256; 0 for 4.
    pub spill_workers: u32,
    /// Records (one block in one layer) under way at once, 2 to 65536; 0 for 32. Each has a buffer in host memory.
    pub spill_in_flight: u32,
    /// How long a call waits for the store at most, in milliseconds, up to a day; 0 for 10 seconds.
    pub spill_deadline_ms: u32,
    /// Elements of `windows`: 0, 1 for all layers, or one per layer.
    pub n_windows: u32,
    /// What the queries of each layer see. With `spill_store` only where a layer has none. Borrowed during the call.
    pub windows: *const certkv_window,
    /// Events of cached prefixes that stay readable, the latest so many, at most 2^24; 0 for none, which costs nothing. See certkv_cache_events.
    pub prefix_events: u64,
    /// Tokens behind each window whose pages stay, for sequences to be cut: so far back certkv_sequence_truncate goes; at most 2^31. 0 for a block,
    /// CERTKV_NO_SLACK for none. Only with `windows`.
    pub window_slack: u64,
    /// On the host: whose memory the pages lie in; NULL for the system's, which is mapped when first touched. Borrowed during the call; its functions and
    /// `context` are not.
    pub allocator: *const certkv_allocator,
    /// Longest chunk of several tokens (a draft that is verified) whose outputs have certificates, at most 2^31; 0 for none. On the host longer ones are a
    /// prompt's: computed from originals, CERTKV_EXACT, without a bound on their rounding, as on a GPU all are with 0. On the host every token of such a chunk is attended as a
    /// decode step of its own, under the step's policy, with the bits that it would have alone: it reads codes once a token, so that from about
    /// four tokens on a prompt's chunk takes less time. On a GPU chunks of up to eight tokens, where a layer has no window and its originals stay in host
    /// memory, are drafts: attended at once for all sequences, every token under the policy as a step; where all layers are so, a step of drafts and single tokens
    /// alone waits for nothing and can be recorded. Longer ones, a prompt's of any length, are attended there, too, so many tokens at a time: what was stored before them is read
    /// from codes, under CERTKV_POLICY_CERTIFIED where that is within tolerance, else from originals, as all is under CERTKV_POLICY_DENSE. That takes device
    /// memory, some 44 KB a token of 32 query heads and 8 key/value heads of 128 channels, and for drafts as much for each of up to eight tokens of every
    /// sequence, with 96 bytes a query head in every layer. Beside `levels` there are no drafts on a GPU: from two tokens on chunks are longer ones.
    pub chunk_tokens: u64,
    /// What formats with calibrated keys (such as ctq4, gtq3 or s1) code them by; NULL where no format needs one, or where `calibrations` has it. One of directions
    /// serves s1, s2 or s3, by its tier, and one without them the others. It has to be of this geometry and, which
    /// certkv_calibration_open sees to, of the model whose keys these are. The cache keeps what it needs: the handle may be destroyed. Saved sequences and
    /// cached prefixes are not read under another calibration.
    pub calibration: *const certkv_calibration,
    /// Events of blocks that move that stay readable, the latest so many, at most 2^24; 0 for none, which costs nothing. See
    /// certkv_cache_moves.
    pub move_events: u64,
    /// `n_levels` formats that full blocks can have, each with fewer bytes than the one before it, all of one block size. Every block becomes
    /// full at the first, which is `format` (NULL, or the same), and can change between steps: see certkv_sequence_change_level. Not beside windows,
    /// `spill_store` and `scales`. Borrowed during the call.
    pub levels: *const certkv_level,
    /// SmartKV decides on levels when certkv_sequence_control is called; NULL for nobody, or one of `retention` and `bound_budget`. On a GPU it takes 4 bytes of
    /// device memory a block and query head in each layer. Borrowed during the call.
    pub control: *const certkv_control,
    /// Fixed scales for sides with one scale per block (p8, e4m3g64), of this geometry; NULL for the scales of each block. What a block has
    /// beyond them saturates, is counted (`saturated` of certkv_snapshot), and is in its bound. The cache keeps what it needs: the handle may be
    /// destroyed.
    pub scales: *const certkv_scales,
    /// Elements of `levels`: 0 for none, or 2 to 8.
    pub n_levels: u32,
    /// On a GPU 1 if certkv_step_plan plans, beside what the caller's model computes, and not certkv_step_attend; 0 otherwise. It takes 4 bytes of device memory a block and
    /// query head in each layer.
    pub plan_apart: u32,
    /// Who hears what calls on this cache have to say; NULL for the function of certkv_log_set. Borrowed during the call; its function and `user` are not.
    pub log: *const certkv_log,
    /// As `control`: retention decides. On a GPU it takes room for 16 pages of records beside that, as `bound_budget` and a gate of `control` do, and keys of a calibration (`ctqN`,
    /// `gtqN`) go beside none of other kinds.
    pub retention: *const certkv_retention,
    /// The same: the bound's budget decides.
    pub bound_budget: *const certkv_bound_budget,
    /// On the host, under CERTKV_POLICY_CERTIFIED, of steps with tolerances of their own, too: at most this share of a sequence's tokens is read one by one
    /// from the originals where that is the cheapest way to the tolerance, 0 to 0.25; 0 for none. It reads fewer bytes and takes more time to decide: for
    /// machines whose cores outrun their memory. Nothing beside `levels` and `spill_store`. Other policies ignore it.
    pub row_share: f64,
    /// Where formats need more than one: `n_calibrations` more of them, beside `calibration` or without. No two of one kind: at most one without directions, and
    /// one of each tier. Borrowed during the call.
    pub calibrations: *const *const certkv_calibration,
    /// Elements of `calibrations`, at most 16.
    pub n_calibrations: u32,
    /// On the host, with `levels`: 1 if every KV head of a block has a level of its own (certkv_sequence_head_level), 0 if all have the block's. Then each layer
    /// and head has block tables of its own, and pages that hold that head alone, with a seal each.
    pub levels_by_head: u32,
    /// First tokens of every sequence whose blocks decode steps read from the originals, whatever the policy, at most 2^31; 0 for none. Codes are kept of them as of
    /// others. On a GPU their copies take device memory in every layer for each of `max_sequences` sequences; not beside residual planes or `spill_store` there. Not
    /// beside `bound_budget`.
    pub protect_sinks: u64,
    /// The same of the newest tokens: a query has this many protected, its own among them. Each token of a chunk that has certificates has its own on the host; on a GPU
    /// drafts have what any of their tokens has, and longer chunks read what was stored before them from codes.
    pub protect_recent: u64,
    /// Room that cached prefixes leave at the end of every step, in tokens whose pages are free: where they are fewer than `prefix_low`, units that nobody uses go until
    /// they are `prefix_high`, so that a step which needs pages seldom has to wait for that. Both 0: they go when somebody needs pages. Pages of windows and of
    /// single levels do not count.
    pub prefix_low: u64,
    /// See `prefix_low`: from there up to `max_tokens`.
    pub prefix_high: u64,
}

/// In `window_slack`: no tokens.
pub const CERTKV_NO_SLACK: u64 = u64::MAX;

/// Which cached prefix goes first when room is needed.
pub type certkv_eviction = i32;
/// As S3-FIFO says: prompts that come only once do not push out those that come again. The default.
pub const CERTKV_EVICTION_S3FIFO: certkv_eviction = 0;
/// The one that was not used for longest.
pub const CERTKV_EVICTION_LRU: certkv_eviction = 1;

/// Memory of this process.
pub const CERTKV_DEVICE_HOST: u32 = 0;
/// The first GPU; add the number of another.
pub const CERTKV_DEVICE_CUDA: u32 = 1;

/// Fills `config` with the defaults. `struct_size` is the caller's sizeof(certkv_config); nothing is written beyond it.
///
/// Threads: any, at any time.
/// Stream: none.
/// Capture: safe.
/// Errors: NULL_POINTER, MISALIGNED, STRUCT_SIZE; `config` is unchanged then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn certkv_config_init(config: *mut certkv_config, struct_size: u32) -> certkv_status {
    guard(|| {
        argument::aligned(config, "config")?;
        let size = argument::known_size::<certkv_config>(struct_size, "config", LEAST)?;
        let mut filled = blank();
        (filled.struct_size, filled.threads, filled.max_sequences) = (struct_size, 1, 16);
        (filled.store, filled.tolerance) = (CERTKV_F16, Certified::default().tol_rel);
        // SAFETY: the caller's struct has `struct_size` bytes, and `size` is no more.
        unsafe { argument::write_prefix(config, &filled, size) };
        Ok(())
    })
}

/// The geometry must be there; the rest has defaults.
const LEAST: usize = offset_of!(certkv_config, store);

fn blank() -> certkv_config {
    // SAFETY: integers, floats and a raw pointer, for all of which zero bits are a value.
    unsafe { zeroed() }
}

/// The log of a caller's configuration.
///
/// # Safety
/// `config` is NULL or a struct of its `struct_size` bytes whose `log` is as [`Sink::read`] wants it.
pub(crate) unsafe fn log(config: *const certkv_config) -> Result<Option<Arc<Sink>>, Failure> {
    // SAFETY: by the caller's promise, and as for `blank`.
    unsafe { Sink::read(argument::read_struct(config, "config", LEAST)?.log) }
}

/// Most of `calibrations`.
const MOST_CALIBRATIONS: u32 = 16;

/// What keys are coded by.
///
/// # Safety
/// `calibrations` is NULL or has `n_calibrations` elements.
unsafe fn calibrate(config: &mut Config, given: &certkv_config) -> Result<(), Failure> {
    if given.n_calibrations > MOST_CALIBRATIONS {
        let n = given.n_calibrations;
        return Err(invalid(format!("config->n_calibrations = {n}: must be at most {MOST_CALIBRATIONS}")));
    }
    // SAFETY: by the caller's promise.
    let more = unsafe { argument::slice(given.calibrations, given.n_calibrations.into(), "config->calibrations")? };
    for handle in core::iter::once(&given.calibration).filter(|first| !first.is_null()).chain(more) {
        match &*calibration::of(*handle)? {
            Found::Schemes(_) if config.calibration.is_some() => {
                return Err(invalid("config->calibrations: more than one without directions".to_owned()));
            }
            Found::Schemes(schemes) => config.calibration = Some(schemes.clone()),
            // The engine counts those of a tier.
            Found::Directions(books) => config.codebooks.push(books.clone()),
        }
    }
    Ok(())
}

/// Reads a caller's configuration and says it in the engine's words.
///
/// # Safety
/// `config` is NULL or a struct of its `struct_size` bytes whose `format` and `kernels` are NULL or C strings and whose `prefix_secret` is
/// NULL or has 32 bytes, whose `windows` is NULL or has `n_windows` elements, whose `calibrations` is NULL or has `n_calibrations`, whose `levels` are as [`level::read`] wants them, whose `control`,
/// `retention` and `bound_budget` are NULL or structs of their `struct_size` bytes, and whose `allocator` and `log` are as [`allocator::read`] and [`Sink::read`] want them.
pub(crate) unsafe fn read(config: *const certkv_config) -> Result<Wanted, Failure> {
    // SAFETY: by the caller's promise, and as for `blank`.
    let given = unsafe { argument::read_struct(config, "config", LEAST)? };
    let flags = [("plan_apart", given.plan_apart), ("erase", given.erase), ("levels_by_head", given.levels_by_head)];
    for (name, given) in flags {
        if given > 1 {
            return Err(invalid(format!("config->{name} = {given}: must be 0 or 1")));
        }
    }
    let store = match given.store {
        CERTKV_DTYPE_DEFAULT | CERTKV_F16 => Dtype::F16,
        CERTKV_BF16 => Dtype::Bf16,
        other => return Err(invalid(format!("config->store = {other}: must be CERTKV_F16 or CERTKV_BF16"))),
    };
    let [layers, q_heads, kv_heads, head_dim] =
        [given.layers, given.q_heads, given.kv_heads, given.head_dim].map(|n| n as usize);
    let mut geometry = Geometry::new(layers, q_heads, kv_heads, head_dim).map_err(certkv::Error::from)?;
    geometry.store = store;
    if given.scale != 0.0 {
        geometry.scale = given.scale;
    }
    let geometry = geometry.validated().map_err(certkv::Error::from)?;
    let mut config = Config::new(geometry, usize::try_from(given.max_tokens).unwrap_or(usize::MAX));
    if !given.format.is_null() {
        // SAFETY: a C string, by the caller's promise.
        config.formats = unsafe { formats(given.format)? };
    }
    let or = |given: u64, default: usize| match given {
        0 => default,
        some => usize::try_from(some).unwrap_or(usize::MAX),
    };
    config.threads = or(given.threads.into(), 1);
    config.max_sequences = or(given.max_sequences.into(), config.max_sequences);
    config.max_context = or(given.max_context, 0);
    config.device_budget = or(given.device_budget, usize::MAX);
    config.host_budget = or(given.host_budget, usize::MAX);
    config.scratch_keys = or(given.scratch_keys, 0);
    config.scratch_values = or(given.scratch_values, 0);
    config.policy = policy("config", given.policy, given.tolerance, given.row_share)?;
    config.protection = Protection::new(or(given.protect_sinks, 0), or(given.protect_recent, 0));
    config.swap_tokens = or(given.swap_tokens, 0);
    config.erase = given.erase == 1;
    // SAFETY: by the caller's promise.
    config.prefixes = unsafe { prefixes(&given)? };
    let [low, high] = [given.prefix_low, given.prefix_high].map(|tokens| or(tokens, 0));
    config.prefix_watermarks = ((low, high) != (0, 0)).then_some(Watermarks { low, high });
    (config.prefix_events, config.move_events) = (or(given.prefix_events, 0), or(given.move_events, 0));
    // SAFETY: by the caller's promise.
    config.windows = unsafe { window::read(given.windows, given.n_windows, given.window_slack)? };
    // SAFETY: by the caller's promise.
    config.memory = unsafe { allocator::read(given.allocator)? };
    // SAFETY: by the caller's promise. Who makes a cache has read it before.
    drop(unsafe { Sink::read(given.log)? });
    // SAFETY: by the caller's promise.
    unsafe { calibrate(&mut config, &given)? };
    // SAFETY: by the caller's promise.
    unsafe { level::configure(&mut config, &given)? };
    // SAFETY: by the caller's promise.
    config.control = unsafe { control::decides(&given)? };
    if !given.scales.is_null() {
        config.scales = Some(scales::of(given.scales, &geometry)?);
    }
    let Some(ordinal) = given.device.checked_sub(CERTKV_DEVICE_CUDA) else {
        if given.certificate_ring != 0 {
            let why = "config->certificate_ring: a cache on the host has none (config->device)";
            return Err(Failure::new(CERTKV_UNSUPPORTED, why));
        }
        config.chunk_tokens = or(given.chunk_tokens, 0);
        config.spill = spill(&given)?;
        return Ok(Wanted::Host(Box::new(config)));
    };
    let only_on_the_host = [
        (config.memory.is_some(), "allocator: a cache on a GPU has its pages in memory that the driver knows"),
        (config.levels_by_head, "levels_by_head: blocks of a cache on a GPU have levels, and their heads have none"),
        (given.row_share != 0.0, "row_share: a cache on a GPU reads no rows one by one in this release"),
    ];
    if let Some((_, why)) = only_on_the_host.iter().find(|(given, _)| *given) {
        return Err(Failure::new(CERTKV_UNSUPPORTED, format!("config->{why} (config->device)")));
    }
    // SAFETY: NULL or a C string, by the caller's promise.
    let kernels = unsafe { path(given.kernels)? };
    let mut gpu = GpuConfig::new(geometry, config.max_tokens);
    gpu.formats.clone_from(&config.formats);
    gpu.calibration.clone_from(&config.calibration);
    gpu.codebooks.clone_from(&config.codebooks);
    gpu.scales.clone_from(&config.scales);
    gpu.levels.clone_from(&config.levels);
    gpu.control = config.control;
    gpu.max_context = or(given.max_context, config.max_tokens);
    gpu.certificate_ring = given.certificate_ring as usize;
    (gpu.max_sequences, gpu.threads, gpu.policy) = (config.max_sequences, config.threads, config.policy);
    (gpu.swap_tokens, gpu.prefixes) = (config.swap_tokens, config.prefixes.take());
    gpu.prefix_watermarks = config.prefix_watermarks;
    gpu.windows.clone_from(&config.windows);
    (gpu.prefix_events, gpu.move_events) = (config.prefix_events, config.move_events);
    gpu.chunk_tokens = or(given.chunk_tokens, 0);
    gpu.spill = spill(&given)?;
    (gpu.device_budget, gpu.host_budget) = (config.device_budget, config.host_budget);
    gpu = gpu.with_scratch(SCRATCH_SHARE);
    gpu.scratch_keys = or(given.scratch_keys, gpu.scratch_keys);
    gpu.scratch_values = or(given.scratch_values, gpu.scratch_values);
    gpu.plan_apart = given.plan_apart == 1;
    (gpu.erase, gpu.protection) = (config.erase, config.protection);
    Ok(Wanted::Gpu { ordinal, config: Box::new(gpu), kernels })
}

/// Whether and how blocks outlive their sequences.
///
/// # Safety
/// `given.prefix_secret` is NULL or has 32 bytes.
unsafe fn prefixes(given: &certkv_config) -> Result<Option<PrefixConfig>, Failure> {
    let eviction = match given.prefix_eviction {
        CERTKV_EVICTION_S3FIFO => Eviction::S3Fifo,
        CERTKV_EVICTION_LRU => Eviction::Lru,
        other => return Err(invalid(format!("config->prefix_eviction = {other}: not a CERTKV_EVICTION value"))),
    };
    if given.prefix_units == 0 {
        return Ok(None);
    }
    let secret = if given.prefix_secret.is_null() {
        let none = |e| Failure::new(CERTKV_UNSUPPORTED, format!("config->prefix_secret is NULL, and {e}"));
        PrefixSecret::random().map_err(none)?
    } else {
        // SAFETY: by the caller's promise.
        PrefixSecret::new(unsafe { argument::key(given.prefix_secret, "config->prefix_secret")? })
    };
    let units = usize::try_from(given.prefix_units).unwrap_or(usize::MAX);
    Ok(Some(PrefixConfig { secret, units, eviction }))
}

/// Where originals go that host memory has no room for.
fn spill(given: &certkv_config) -> Result<Option<Spill>, Failure> {
    if given.spill_store.is_null() {
        return Ok(None);
    }
    let (workers, in_flight) = (given.spill_workers as usize, given.spill_in_flight as usize);
    if workers > 256 {
        return Err(invalid(format!("config->spill_workers = {workers}: must be at most 256")));
    }
    if in_flight == 1 || in_flight > 1 << 16 {
        return Err(invalid(format!("config->spill_in_flight = {in_flight}: must be 2 to 65536")));
    }
    if given.spill_deadline_ms > DAY_MS {
        let why = format!("config->spill_deadline_ms = {}: must be at most {DAY_MS}", given.spill_deadline_ms);
        return Err(invalid(why));
    }
    let tokens = usize::try_from(given.spill_host_tokens).unwrap_or(usize::MAX);
    let mut spill = Spill::new(store::backend(given.spill_store)?, tokens);
    let or = |given: usize, default: usize| if given == 0 { default } else { given };
    spill.workers = or(workers, spill.workers);
    spill.in_flight = or(in_flight, spill.in_flight);
    spill.disk_budget = or(usize::try_from(given.spill_budget).unwrap_or(usize::MAX), spill.disk_budget);
    if given.spill_deadline_ms != 0 {
        spill.deadline = Duration::from_millis(given.spill_deadline_ms.into());
    }
    Ok(Some(spill))
}

/// Milliseconds of a day.
const DAY_MS: u32 = 24 * 60 * 60 * 1000;

/// A folder's name.
///
/// # Safety
/// `text` is NULL or a C string.
unsafe fn path(text: *const c_char) -> Result<Option<PathBuf>, Failure> {
    if text.is_null() {
        return Ok(None);
    }
    // SAFETY: by the caller's promise.
    let text = unsafe { argument::characters(text, "config->kernels", argument::MOST_PATH, 1) }.map_err(invalid)?;
    Ok(Some(text.into()))
}

fn invalid(why: String) -> Failure {
    Failure::new(CERTKV_INVALID_ARGUMENT, why)
}

/// The policy that `owner` names.
pub(crate) fn policy(owner: &str, policy: certkv_policy, tolerance: f64, row_share: f64) -> Result<Policy, Failure> {
    let certified = Certified { row_share, ..Certified::default() };
    let made = match policy {
        // A NaN is not the default: it goes on and is refused.
        CERTKV_POLICY_CERTIFIED if tolerance == 0.0 => Policy::Certified(certified),
        CERTKV_POLICY_CERTIFIED => Policy::Certified(Certified { tol_rel: tolerance, ..certified }),
        CERTKV_POLICY_PACKED => Policy::Packed,
        CERTKV_POLICY_DENSE => Policy::Dense,
        CERTKV_POLICY_SEED000 => Policy::Seed000(Seed000::default()),
        other => return Err(invalid(format!("{owner}->policy = {other}: not a CERTKV_POLICY value"))),
    };
    // The parameters that can be set.
    let refused = |e: String| Failure::new(CERTKV_POLICY, format!("{owner}->{}", e.replace("tol_rel", "tolerance")));
    made.validated().map_err(|e| refused(e.to_string()))?;
    Ok(made)
}

/// One format, one per layer, or one per layer and KV head.
///
/// # Safety
/// `text` is a C string.
unsafe fn formats(text: *const c_char) -> Result<Vec<Format>, Failure> {
    let refused = |why: String| Failure::new(CERTKV_FORMAT, why);
    // SAFETY: by the caller's promise.
    let text = unsafe { argument::characters(text, "config->format", MOST_FORMAT, MOST_FORMATS) }.map_err(refused)?;
    text.split('+').map(|one| one.parse().map_err(|e| Failure::from(certkv::Error::Format(e)))).collect()
}

/// Most bytes of a format; most formats.
pub(crate) const MOST_FORMAT: usize = 63;
const MOST_FORMATS: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::*;
    use certkv_status::*;
    use core::ptr;

    /// What a refused configuration says.
    fn said(change: impl FnOnce(&mut certkv_config)) -> String {
        let (mut config, mut cache) = (blank(), ptr::null_mut());
        // SAFETY: whole structs and locals; the text lives until the next call.
        unsafe {
            assert_eq!(certkv_config_init(&mut config, size_of::<certkv_config>() as u32), CERTKV_OK);
            (config.layers, config.q_heads, config.kv_heads, config.head_dim, config.max_tokens) = (2, 2, 1, 64, 128);
            change(&mut config);
            assert_ne!(certkv_cache_create(&config, &mut cache), CERTKV_OK);
            let mut info: certkv_error_info = zeroed();
            info.struct_size = size_of::<certkv_error_info>() as u32;
            assert_eq!(certkv_last_error(&mut info), CERTKV_OK);
            core::ffi::CStr::from_ptr(info.message).to_str().unwrap().to_owned()
        }
    }

    #[test]
    fn fields_are_called_what_they_are_called_in_c() {
        let window = certkv_window { tokens: 1 << 40, ..Default::default() };
        let three = [certkv_window::default(); 3];
        let level = certkv_level { format: c"t8-v8g64-b16".as_ptr(), tokens: 128 };
        type Change<'a> = &'a dyn Fn(&mut certkv_config);
        let changes: [(&str, Change<'_>); 40] = [
            ("config->layers = 0", &|c| c.layers = 0),
            ("config->q_heads = 3000", &|c| c.q_heads = 3000),
            ("config->kv_heads = 0", &|c| c.kv_heads = 0),
            ("config->head_dim = 7", &|c| c.head_dim = 7),
            ("config->store = 9", &|c| c.store = 9),
            ("config->scale = NaN", &|c| c.scale = f32::NAN),
            ("config->threads: 257", &|c| c.threads = 257),
            ("config->format: ", &|c| c.format = c"k8".as_ptr()),
            ("config->format: 3 formats", &|c| c.format = c"k8-v4g32-b16+k8-v4g32-b16+k8-v4g32-b32".as_ptr()),
            (
                "config->format: 3 formats for 2 layers; give one, or one per layer, or one per layer and KV head (4)",
                &|c| {
                    (c.q_heads, c.kv_heads, c.format) = (4, 2, c"k8-v4g32-b16+k8-v4g32-b16+t4-v4g32-b32".as_ptr());
                },
            ),
            ("config->max_tokens: 0", &|c| c.max_tokens = 0),
            ("config->max_tokens: ", &|c| c.max_tokens = u64::MAX),
            ("config->device_budget: budget: ", &|c| c.device_budget = 1000),
            ("config->host_budget: budget: ", &|c| c.host_budget = 1000),
            ("config->scratch_keys: ", &|c| c.scratch_keys = u64::MAX),
            ("config->protect_sinks: ", &|c| c.protect_sinks = u64::MAX),
            ("config->protect_recent: ", &|c| c.protect_recent = 1 << 32),
            ("config->scratch_values: ", &|c| c.scratch_values = u64::MAX),
            ("config->tolerance = -1: must be", &|c| c.tolerance = -1.0),
            ("config->row_share = 0.3: must be", &|c| c.row_share = 0.3),
            ("config->row_share = NaN: must be", &|c| c.row_share = f64::NAN),
            ("config->max_sequences: ", &|c| c.max_sequences = u32::MAX),
            ("config->policy = 9", &|c| c.policy = 9),
            ("config->certificate_ring: ", &|c| c.certificate_ring = 1),
            ("config->swap_tokens: ", &|c| c.swap_tokens = u64::MAX),
            ("config->prefix_units: ", &|c| c.prefix_units = u64::MAX),
            ("config->prefix_eviction = 5", &|c| c.prefix_eviction = 5),
            ("config->prefix_low: ", &|c| (c.prefix_units, c.prefix_low, c.prefix_high) = (4, 9, 8)),
            ("config->prefix_low: ", &|c| c.prefix_high = 8),
            ("config->erase = 2: must be 0 or 1", &|c| c.erase = 2),
            ("config->windows: 3 windows", &|c| (c.n_windows, c.windows) = (3, three.as_ptr())),
            ("config->windows: a window of", &|c| (c.n_windows, c.windows) = (1, &window)),
            ("config->prefix_events: ", &|c| c.prefix_events = 5),
            ("config->window_slack", &|c| c.window_slack = 5),
            ("config->move_events: ", &|c| c.move_events = u64::MAX),
            ("config->chunk_tokens: ", &|c| c.chunk_tokens = u64::MAX),
            ("config->levels: 1 levels", &|c| (c.n_levels, c.levels) = (1, &level)),
            ("config->n_levels = 9", &|c| (c.n_levels, c.levels) = (9, &level)),
            ("config->plan_apart = 2: must be 0 or 1", &|c| c.plan_apart = 2),
            ("config->calibration: none", &|c| c.format = c"ctq4-v4g64-b16".as_ptr()),
        ];
        for (words, change) in changes {
            let said = said(change);
            assert!(said.starts_with(words), "{said:?} does not begin with {words:?}");
        }
    }
}
