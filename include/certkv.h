/* certkv: certified, paged, compressed KV cache for decode attention. C interface, host memory and GPUs.
 *
 * Generated from crates/certkv-capi; do not edit. CERTKV_WRITE_HEADER=1 cargo test -p certkv-capi writes it anew.
 *
 * Results. Every call that can fail returns a certkv_status; certkv_last_error has the text. On error nothing changed,
 * unless the call says otherwise. Nothing is printed, thrown or aborted.
 * An output that is not certified is no error: its certificate says so.
 * Handles and sequences. A handle or sequence that is stale, foreign or made up is refused with a status.
 * Memory. Pointers are borrowed for the length of the call unless the call says otherwise. Buffers must have the size
 * that is given with them: this cannot be checked.
 * Structs that may grow start with struct_size. Reserved fields are 0.
 * Threads. All calls may come from any thread and run concurrently; one step takes one call at a time.
 * Callbacks. There are three kinds: the functions of a host's own store (certkv_store_callbacks), on threads of the library, a log
 * (certkv_log_callback) and its memory for pages (certkv_allocator), on the host's.
 * Numbers. Calls compute in the floating-point environment that C begins with, whatever the thread's is (rounded otherwise, without
 * subnormal numbers), which is its own again when they return. A host's store and its memory for pages are called in it, too.
 * Stream, Capture. Stream says what a call enqueues where; a cache on a GPU has a stream of its own, which
 * certkv_step_after_stream and certkv_step_before_stream order with the caller's. Capture says whether a call may be made
 * while a CUDA graph is captured.
 */

#ifndef CERTKV_H
#define CERTKV_H

#include <stdint.h>

/* Version of this header; certkv_version() is that of the library. */
#define CERTKV_VERSION_MAJOR 0
#define CERTKV_VERSION_MINOR 1
#define CERTKV_VERSION_PATCH 0
#define CERTKV_VERSION_NUMBER \
  (CERTKV_VERSION_MAJOR * 1000000 + CERTKV_VERSION_MINOR * 1000 + CERTKV_VERSION_PATCH)
#define CERTKV_VERSION_STRING "0.1.0"

/**
 * For certkv_store_open_files: a record counts as stored when the disk has it. Without it, when every process of this machine sees it; a loss of
 * power may then take records away, or damage them, which is seen.
 */
#define CERTKV_FILES_SYNCED 1

/**
 * For certkv_store_open_files: each file is read back and compared before it gets its name. So it is without this flag, too, unless CERTKV_FILES_UNREAD is given.
 */
#define CERTKV_FILES_READ_BACK 2

/**
 * For certkv_store_open_files: files get their names without being read. A record that is not what was written is seen when it is got.
 */
#define CERTKV_FILES_UNREAD 4

/**
 * In `window_slack`: no tokens.
 */
#define CERTKV_NO_SLACK UINT64_MAX

/**
 * Memory of this process.
 */
#define CERTKV_DEVICE_HOST 0

/**
 * The first GPU; add the number of another.
 */
#define CERTKV_DEVICE_CUDA 1

/**
 * Characters of a GPU's name, with the 0 behind them.
 */
#define CERTKV_GPU_NAME 64

/**
 * In `certkv_move_event.block`: not known.
 */
#define CERTKV_NO_BLOCK UINT32_MAX

/**
 * Version of certkv_certificate, and value of its `version` field. A record with other fields will be another type,
 * with calls of its own, so that arrays of this one keep their stride.
 */
#define CERTKV_CERTIFICATE_VERSION 1

/**
 * Nothing has been shown about the output.
 */
#define CERTKV_UNCERTIFIED 0

/**
 * The bound holds, and what compression costs of it, `bound - e_arith`, is within the tolerance.
 */
#define CERTKV_CERTIFIED 1

/**
 * Computed from the originals alone: only the kernel's arithmetic remains in the bound.
 */
#define CERTKV_EXACT 2

/**
 * No output: the buffer holds nothing that may be used.
 */
#define CERTKV_FAILED 3

/**
 * The first pass was accepted.
 */
#define CERTKV_RUNG_PACKED 0

/**
 * More exact keys were fetched.
 */
#define CERTKV_RUNG_MORE_KEYS 1

/**
 * More exact values were fetched.
 */
#define CERTKV_RUNG_EXACT_VALUES 2

/**
 * Dense recomputation of the head.
 */
#define CERTKV_RUNG_DENSE_HEAD 3

/**
 * Dense recomputation of the layer.
 */
#define CERTKV_RUNG_DENSE_LAYER 4

/**
 * The output did not leave the first rung.
 */
#define CERTKV_CAUSE_NONE 0

/**
 * The key term was the larger one.
 */
#define CERTKV_CAUSE_KEY_ERROR 1

/**
 * The value term was the larger one.
 */
#define CERTKV_CAUSE_VALUE_ERROR 2

/**
 * The repairs allowed were used up.
 */
#define CERTKV_CAUSE_REPAIRS_USED 3

/**
 * A requested ranking condition failed.
 */
#define CERTKV_CAUSE_RANKING 4

/**
 * Stored codes and annotations disagree.
 */
#define CERTKV_CAUSE_INTEGRITY 5

/**
 * Neither keys nor values could lower the bound.
 */
#define CERTKV_CAUSE_EXHAUSTED 6

/**
 * The originals were needed and could not be read.
 */
#define CERTKV_CAUSE_TIER_UNAVAILABLE 7

/**
 * The caller asked for dense attention.
 */
#define CERTKV_CAUSE_REQUESTED 8

/**
 * In `status` of a certkv_published_head in device memory: the layer was not attended.
 */
#define CERTKV_ABSENT 255

/**
 * Result of a call. 0 is success; errors are negative, one range per group: -1 arguments, -100 state, -200 memory,
 * -300 device, -400 panics, -500 files, -600 stores. New values may be added to a group.
 */
enum certkv_status
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  /**
   * Success.
   */
  CERTKV_OK = 0,
  /**
   * A pointer that must not be NULL was.
   */
  CERTKV_NULL_POINTER = -1,
  /**
   * A pointer is not aligned for what it points to.
   */
  CERTKV_MISALIGNED = -2,
  /**
   * `struct_size` is impossible, or a newer caller set fields that this library does not know.
   */
  CERTKV_STRUCT_SIZE = -3,
  /**
   * A reserved field is not 0.
   */
  CERTKV_RESERVED = -4,
  /**
   * A value is out of its range; the message names it.
   */
  CERTKV_INVALID_ARGUMENT = -5,
  /**
   * A count does not fit the geometry or the step.
   */
  CERTKV_SHAPE = -6,
  /**
   * A layer outside the geometry.
   */
  CERTKV_LAYER = -7,
  /**
   * NaN or an infinity in keys, values or queries.
   */
  CERTKV_NOT_FINITE = -8,
  /**
   * A finite value that the 16-bit type of the cache cannot hold.
   */
  CERTKV_OVERFLOW = -9,
  /**
   * A format string that is not understood or does not fit the geometry.
   */
  CERTKV_FORMAT = -10,
  /**
   * A policy parameter out of range.
   */
  CERTKV_POLICY = -11,
  /**
   * Not a live handle of this kind: never given out, or destroyed.
   */
  CERTKV_INVALID_HANDLE = -12,
  /**
   * Not a live sequence of this cache: never given out, or released.
   */
  CERTKV_UNKNOWN_SEQUENCE = -13,
  /**
   * Understood, but not offered by this version.
   */
  CERTKV_UNSUPPORTED = -14,
  /**
   * Two buffers overlap, one of which is written.
   */
  CERTKV_OVERLAP = -15,
  /**
   * A length beyond the end of the sequence, or beyond what the cache can hold, or tokens that a layer's window no longer has, or more of
   * them in one step than its chunk.
   */
  CERTKV_LENGTH = -16,
  /**
   * A block that cannot have a level: there is no such block or level, or no codes of it at that level.
   */
  CERTKV_LEVEL = -17,
  /**
   * The sequence is part of a step that is not over, or named twice in one step.
   */
  CERTKV_BUSY_SEQUENCE = -100,
  /**
   * Another thread is inside a call on the same step.
   */
  CERTKV_BUSY_STEP = -101,
  /**
   * Calls out of order: of a step, or to change the log from within it.
   */
  CERTKV_ORDER = -102,
  /**
   * Attention over no token.
   */
  CERTKV_NO_VISIBLE_TOKEN = -103,
  /**
   * An output that has no finite bound; it was not written.
   */
  CERTKV_UNCERTIFIABLE = -104,
  /**
   * The step's certificates are not in the ring yet.
   */
  CERTKV_NOT_PUBLISHED = -105,
  /**
   * A later step has taken their place in the ring.
   */
  CERTKV_OVERWRITTEN = -106,
  /**
   * The sequence is swapped out: certkv_sequence_swap_in comes first.
   */
  CERTKV_SWAPPED_OUT = -107,
  /**
   * The sequence is not swapped out.
   */
  CERTKV_NOT_SWAPPED_OUT = -108,
  /**
   * The system has no memory.
   */
  CERTKV_OUT_OF_MEMORY = -200,
  /**
   * The cache's pages of one class are used up.
   */
  CERTKV_CAPACITY = -201,
  /**
   * The cache's sequences are used up.
   */
  CERTKV_TOO_MANY_SEQUENCES = -202,
  /**
   * The capacity asked for does not fit a budget.
   */
  CERTKV_BUDGET = -203,
  /**
   * The device refused an operation.
   */
  CERTKV_DEVICE = -300,
  /**
   * Codes of a block are not those that were written: memory was damaged.
   */
  CERTKV_DAMAGED = -301,
  /**
   * A defect of the library was caught. The object is poisoned.
   */
  CERTKV_PANIC = -400,
  /**
   * A defect was caught in an earlier call on this object. It can only be destroyed.
   */
  CERTKV_POISONED = -401,
  /**
   * The library contradicted itself without panicking; please report the message.
   */
  CERTKV_INTERNAL = -402,
  /**
   * A file could not be written or read.
   */
  CERTKV_FILE = -500,
  /**
   * A file is no saved sequence, calibration or scales, or one of another version, model, geometry or format.
   */
  CERTKV_FILE_REFUSED = -501,
  /**
   * A file ends too early, is not what was written, or was written with another key.
   */
  CERTKV_FILE_DAMAGED = -502,
  /**
   * A store failed, or is gone; what is in it may be had later.
   */
  CERTKV_STORE_FAILED = -600,
  /**
   * A store did not answer in time.
   */
  CERTKV_STORE_LATE = -601,
  /**
   * A store has no room.
   */
  CERTKV_STORE_FULL = -602,
  /**
   * A store lost a record that was put there.
   */
  CERTKV_STORE_NOT_FOUND = -603,
  /**
   * What a store gave back is not what was put there.
   */
  CERTKV_STORE_DAMAGED = -604,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum certkv_status certkv_status;
#else
typedef int32_t certkv_status;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * A certified, paged, compressed KV cache. Opaque.
 */
typedef struct certkv_cache certkv_cache;

/**
 * What `certkv calibrate` found of a model's keys: formats such as ctq4 code keys by it, and formats such as s1 by what `certkv calibrate
 * --spherical` found (`config->calibration`). Opaque, and never changed: any number of caches may be made with one.
 */
typedef struct certkv_calibration certkv_calibration;

/**
 * What a recorded step holds of a cache. Opaque.
 */
typedef struct certkv_capture certkv_capture;

/**
 * Certificates of the last steps of a cache on a GPU, in memory of the host. Opaque.
 */
typedef struct certkv_ring certkv_ring;

/**
 * What `certkv calibrate --scales` found: sides with one scale per block (p8, e4m3g64) take theirs from it (`config->scales`). Opaque, and never
 * changed: any number of caches may be made with one.
 */
typedef struct certkv_scales certkv_scales;

/**
 * A step in progress. Opaque.
 */
typedef struct certkv_step certkv_step;

/**
 * A place outside the process that keeps records under keys of 32 bytes (Tier-3): originals of live sequences (`config->spill_store`) and
 * cached prefixes (certkv_cache_export_prefix). Opaque.
 *
 * One store may serve several caches, and those of other processes: no two records of different contents have one name. Every record is sealed
 * with its name and a digest, and what comes back is compared before a byte of it is used: a record that was damaged, cut, replaced by another one
 * or is of an earlier time is CERTKV_STORE_DAMAGED and never data.
 */
typedef struct certkv_store certkv_store;

/**
 * How much is said. Each level has those before it.
 */
typedef int32_t certkv_log_level;

/**
 * A host's log. `target` is the part of the library that speaks, "certkv" now; `message` is one line of English in UTF-8. Both are borrowed during
 * the call.
 *
 * It is called on the thread whose call a message is about, before that call returns, on several threads at once. No lock of the library is held:
 * it may call the library, but for certkv_log_set; what its own calls have to say is not said, and the thread's latest error stays what it was.
 * It must return, by no exception and no longjmp.
 */
typedef void (*certkv_log_callback)(void *user,
                                    certkv_log_level level,
                                    const char *target,
                                    const char *message);

/**
 * What went wrong in the calling thread's latest failed call.
 */
typedef struct certkv_error_info {
  /**
   * sizeof(certkv_error_info), set by the caller; nothing is written beyond it.
   */
  uint32_t struct_size;
  /**
   * Status of that call; CERTKV_OK if none failed yet.
   */
  certkv_status status;
  /**
   * CUresult behind it; 0 if no CUDA call was.
   */
  int32_t cuda_result;
  /**
   * 0.
   */
  uint32_t reserved;
  /**
   * Text in English, never NULL. Borrowed: valid until the thread's next call into certkv.
   */
  const char *message;
} certkv_error_info;

/**
 * Name of a record: 32 bytes that are as good as random. All of them tell it from others.
 */
typedef struct certkv_store_key {
  /**
   * The bytes.
   */
  uint8_t bytes[32];
} certkv_store_key;

/**
 * What a callback says of one item. Items are given with CERTKV_ITEM_FAILED: one that the callback does not set has failed.
 */
typedef int32_t certkv_item_result;

/**
 * A record to be stored in place of what is under its key: `head` and then `body`. It becomes visible whole or not at all.
 */
typedef struct certkv_put_item {
  /**
   * Its name.
   */
  struct certkv_store_key key;
  /**
   * The first bytes of the record.
   */
  const void *head;
  /**
   * How many.
   */
  uint64_t head_bytes;
  /**
   * The bytes behind them.
   */
  const void *body;
  /**
   * How many.
   */
  uint64_t body_bytes;
  /**
   * Set by the callback: one of the CERTKV_ITEM values.
   */
  certkv_item_result result;
  /**
   * Set by the callback, if it likes: a number for the text of an error, errno say.
   */
  int32_t code;
} certkv_put_item;

/**
 * A record to be read.
 */
typedef struct certkv_get_item {
  /**
   * Its name.
   */
  struct certkv_store_key key;
  /**
   * Where to, `head` and `body` one behind the other.
   */
  void *buffer;
  /**
   * Bytes of the buffer: no record that was put under this key by this kind of cache has more.
   */
  uint64_t capacity;
  /**
   * Set by the callback: bytes of the record.
   */
  uint64_t bytes;
  /**
   * Set by the callback: one of the CERTKV_ITEM values.
   */
  certkv_item_result result;
  /**
   * As of certkv_put_item.
   */
  int32_t code;
} certkv_get_item;

/**
 * A record to be looked for, or to be deleted.
 */
typedef struct certkv_key_item {
  /**
   * Its name.
   */
  struct certkv_store_key key;
  /**
   * Set by the callback: one of the CERTKV_ITEM values. To delete a record that is not there is CERTKV_ITEM_DONE.
   */
  certkv_item_result result;
  /**
   * As of certkv_put_item.
   */
  int32_t code;
} certkv_key_item;

/**
 * Functions of a store. Set all of it to 0 bytes, then `struct_size`, `context` and the functions.
 *
 * Each does a batch of `n` items, at least one, and blocks until it is done. The items are the library's; they and what they point to may be read,
 * and what is said to be set may be set, until the function returns, also where the call that wanted it has given up waiting.
 *
 * Threads. They are called on threads of the library, several at once, never on one of the host's. No lock of the library is held, so they may
 * call into it, for the cache that they serve too. A call that needs the store itself (to begin, attend, cut or save what has spilled) waits for
 * the call that waits for the callback, and one of the two ends with CERTKV_STORE_LATE or CERTKV_CAPACITY after `config->spill_deadline_ms`. A
 * cache must not be destroyed from within a callback of its store.
 * They must return, by no exception and no longjmp. While one of them does not, the calls that wait for it end with CERTKV_STORE_LATE, and
 * neither its thread nor `context` goes.
 */
typedef struct certkv_store_callbacks {
  /**
   * sizeof(certkv_store_callbacks) of the caller's header.
   */
  uint32_t struct_size;
  /**
   * 0.
   */
  uint32_t reserved;
  /**
   * Handed to each function.
   */
  void *context;
  /**
   * Stores records.
   */
  void (*put)(void *context, struct certkv_put_item *items, uint64_t n);
  /**
   * Reads records.
   */
  void (*get)(void *context, struct certkv_get_item *items, uint64_t n);
  /**
   * Looks for records: done, or not found.
   */
  void (*exists)(void *context, struct certkv_key_item *items, uint64_t n);
  /**
   * Deletes records.
   */
  void (*remove)(void *context, struct certkv_key_item *items, uint64_t n);
  /**
   * Called once, after all others have returned, when nobody uses the store any more: on the thread that ended its last user, or on one of the
   * library's. NULL for nothing to do.
   */
  void (*destroy)(void *context);
} certkv_store_callbacks;

/**
 * What a calibration says of itself.
 */
typedef struct certkv_calibration_info {
  /**
   * sizeof(certkv_calibration_info), set by the caller; nothing is written beyond it.
   */
  uint32_t struct_size;
  /**
   * Layers of the model that it is of; with the next three what the geometry of a cache has to be.
   */
  uint32_t layers;
  /**
   * Query heads of a layer; 0 for directions, which any number of them meets.
   */
  uint32_t q_heads;
  /**
   * Key/value heads of a layer.
   */
  uint32_t kv_heads;
  /**
   * Channels of a head.
   */
  uint32_t head_dim;
  /**
   * The first so many of them are turned by positions; 0 for directions, as the next three.
   */
  uint32_t rotary;
  /**
   * Channels that are turned together: 0 for halves of these (i and i + rotary / 2), 1 for neighbours (2i and 2i + 1).
   */
  uint32_t interleaved;
  /**
   * 1 if keys are coded around their mean.
   */
  uint32_t centred;
  /**
   * 1 if they are coded in scales that balance them with the queries.
   */
  uint32_t balanced;
  /**
   * 0; for directions 1, 2 or 3: tier b1, b2 or b3, which is that of formats s1, s2 or s3.
   */
  uint32_t tier;
  /**
   * Tokens of the text that was run.
   */
  uint64_t tokens;
  /**
   * Digest of the model: its configuration and weights.
   */
  uint8_t model[32];
  /**
   * Digest of the text.
   */
  uint8_t text[32];
  /**
   * Digest (BLAKE3) of the file: saved sequences and cached prefixes of its caches depend on it.
   */
  uint8_t digest[32];
} certkv_calibration_info;

/**
 * A sequence of one cache: its slot in the low half, which of the process's sequences it is in the high half. Valid until it is
 * released; later sequences, and those of other caches, have other numbers. Never 0.
 */
typedef uint64_t certkv_sequence;

/**
 * What certkv_sequence_control did, over all layers.
 */
typedef struct certkv_controlled {
  /**
   * sizeof(certkv_controlled), set by the caller; nothing is written beyond it.
   */
  uint32_t struct_size;
  /**
   * 0.
   */
  uint32_t reserved;
  /**
   * Layers whose levels were decided anew.
   */
  uint64_t decided;
  /**
   * Of these, layers of which not even the lowest levels fit the budget: nothing was asked for there.
   */
  uint64_t below_floor;
  /**
   * Blocks that have another level now.
   */
  uint64_t changed;
  /**
   * Blocks that keep their level although another was decided: no page at that level, or no codes.
   */
  uint64_t refused;
  /**
   * The same because the device failed.
   */
  uint64_t failed;
} certkv_controlled;

/**
 * SmartKV over `config->levels`, with blocks for items: what was attended to lately has a wide level, within a budget of bytes. Fill it with
 * certkv_control_init, then set `bytes_per_token`. Every field is taken as it is: 0 is no default.
 */
typedef struct certkv_control {
  /**
   * sizeof(certkv_control) of the caller's header.
   */
  uint32_t struct_size;
  /**
   * A block may change once its rank has been away from where it was for so many looks at it.
   */
  uint32_t checks;
  /**
   * Bytes that a token of a full block may take in one layer on average, all KV heads together: codes, scales, summaries and seals.
   */
  double bytes_per_token;
  /**
   * By how many percentile points a rank is away; finite, not negative.
   */
  double points;
  /**
   * Share of a rank that stays from look to look; at least 0, below 1.
   */
  double keep_rank;
  /**
   * Exponent of a width's worth; finite, not negative.
   */
  double alpha;
  /**
   * Divergence of scores from those of the last decision that brings the next one forward; finite, not negative.
   */
  double drift;
  /**
   * The same in percent of blocks whose rank moved by `points`.
   */
  double drift_moved;
  /**
   * Share of a block's importance that stays from step to step; at least 0, below 1.
   */
  double keep;
  /**
   * The same of a query head's concentration.
   */
  double keep_head;
  /**
   * Share of importance in a score, 0 to 1; the rest is the last step's attention.
   */
  double mix;
  /**
   * Steps in which a score falls to 1/e as its block ages; positive, may be infinite.
   */
  double life;
  /**
   * So many first blocks have the first level, always.
   */
  uint64_t protected_first;
  /**
   * And so many last ones.
   */
  uint64_t protected_last;
  /**
   * Steps between decisions of the first layers, 1 to 2^31; at least 32 are waited for.
   */
  uint64_t interval;
  /**
   * Steps between looks at the drift, 1 to 2^31.
   */
  uint64_t drift_every;
  /**
   * A gate over blocks whose rank is in danger: a block is protected from this danger on,
   */
  double gate_protect;
  /**
   * and down to this one, which is below it and not negative. Both 0, as they are filled: no gate.
   */
  double gate_release;
} certkv_control;

/**
 * What made a decision.
 */
typedef int32_t certkv_trigger;

/**
 * What a plan of levels lacks.
 */
typedef int32_t certkv_lacking;

/**
 * One layer's part, or that of one of its KV heads, of a call of certkv_sequence_control_logged: what whoever decides was told, and what was decided. Told the same, they decide the
 * same. Levels are numbers of `config->levels`, also where an array goes by level. Pointers are borrowed during the callback; NULL for what there was
 * not.
 */
typedef struct certkv_control_entry {
  /**
   * sizeof(certkv_control_entry) of the library: later ones have more fields behind these.
   */
  uint32_t struct_size;
  /**
   * The layer.
   */
  uint32_t layer;
  /**
   * Its full blocks.
   */
  uint64_t blocks;
  /**
   * Of these, the first so many are those that they were at the call before; UINT64_MAX: nothing was cut.
   */
  uint64_t kept;
  /**
   * Query heads of `attention`, `bound_loss`, `bound_shrink` and `bound_cap`.
   */
  uint32_t heads;
  /**
   * Levels: `config->n_levels`.
   */
  uint32_t n_levels;
  /**
   * Level of each block before, `blocks` of them.
   */
  const uint32_t *levels;
  /**
   * Of `config->control`: masses of the last step, heads x blocks. NULL on a GPU, where they stay there without a gate: see `scored`.
   */
  const double *attention;
  /**
   * Of `config->retention`: what each level loses of a block, blocks x levels. NULL in a step that no decision counts.
   */
  const double *loss;
  /**
   * With a gate: the danger of each block.
   */
  const double *danger;
  /**
   * Of `config->bound_budget`, as shares of the norm of a head's output: what a level adds to its bound, heads x blocks x levels, NULL in a
   * step that no plan is made of;
   */
  const double *bound_loss;
  /**
   * what it takes from the sum that the bound is divided by, in the same order;
   */
  const double *bound_shrink;
  /**
   * and what no bound of a head exceeds.
   */
  const double *bound_cap;
  /**
   * What made the decision: one of the CERTKV_TRIGGER values. CERTKV_TRIGGER_NONE: all is as it was.
   */
  certkv_trigger trigger;
  /**
   * 1 if the budget was too small for what may not fall: it was to fall.
   */
  uint32_t forced;
  /**
   * Level that each block is to have; NULL without a decision, and where not even the lowest levels fit the budget. A block that cannot have it
   * keeps its own: certkv_sequence_level says.
   */
  const uint32_t *wanted;
  /**
   * Bytes of these, with all KV heads; without them, what the budget would have to be.
   */
  double bytes;
  /**
   * Of `config->bound_budget`, all layers together: the largest bound of a head as a share of its output's norm, from codes alone.
   */
  double bound;
  /**
   * How many bytes are lacking, or which bound is left.
   */
  double lacks;
  /**
   * Which of the two: one of the CERTKV_LACKING values.
   */
  certkv_lacking lacking;
  /**
   * Where `config->levels_by_head` is 1, the KV head whose levels these are; else 0, and they are all heads'.
   */
  uint32_t kv_head;
  /**
   * Of `config->control` where masses stay on a GPU: of how many blocks scores were made there. 0 if of none.
   */
  uint64_t scored;
  /**
   * Their scores; NULL where nothing was decided.
   */
  const double *scores;
  /**
   * Where it was looked at, how far scores are from those of the last decision: their divergence, else a NaN,
   */
  double drift_divergence;
  /**
   * and the percentage of blocks whose rank has moved, else a NaN.
   */
  double drift_moved;
} certkv_control_entry;

/**
 * Told of one layer after the other, on the thread of the call. No lock of the library is held: it may call the library, for this cache too. It must
 * return, by no exception and no longjmp.
 */
typedef void (*certkv_control_log_callback)(void *user, const struct certkv_control_entry *entry);

/**
 * Which loss of a block at a level retention goes by.
 */
typedef int32_t certkv_measure;

/**
 * Rate-distortion retention over `config->levels`, with blocks of layers for items: each level counts for what it would lose in the certificates of the
 * last step, and all layers share one budget of bytes. Fill it with certkv_retention_init, then set `bytes_per_token`. Every field is taken as it
 * is: 0 is no default. Each block is coded once at every level, to see what it loses there.
 */
typedef struct certkv_retention {
  /**
   * sizeof(certkv_retention) of the caller's header.
   */
  uint32_t struct_size;
  /**
   * Which loss it goes by.
   */
  certkv_measure measure;
  /**
   * Bytes that a token of a full block may take in a layer on average over all layers, all KV heads together: codes, scales, summaries and seals.
   */
  double bytes_per_token;
  /**
   * The same on average over any one layer; infinite for no such limit, as it is filled.
   */
  double layer_bytes_per_token;
  /**
   * Share of a loss that stays from decision to decision; at least 0, below 1.
   */
  double keep;
  /**
   * A block goes down by itself if it loses at most this share of the price per byte; not negative,
   */
  double down;
  /**
   * and up if it saves at least so many times the price; above `down`, finite. Above 1 others make room for it.
   */
  double up;
  /**
   * What any change of a block counts for beside its loss, as a share of what the bytes of its first level are worth; finite, not negative.
   */
  double stick;
  /**
   * A gate over blocks whose rank is in danger: a block is protected from this danger on,
   */
  double gate_protect;
  /**
   * and down to this one, which is below it and not negative. Both 0, as they are filled: no gate.
   */
  double gate_release;
  /**
   * So many first blocks have the first level, always.
   */
  uint64_t protected_first;
  /**
   * And so many last ones.
   */
  uint64_t protected_last;
  /**
   * Steps between decisions of the first layers, 1 to 2^31.
   */
  uint64_t interval;
  /**
   * Decisions that a block rests after a change.
   */
  uint32_t cooldown;
  /**
   * 0.
   */
  uint32_t reserved;
  /**
   * The same as `layer_bytes_per_token` on average over any one KV head, all heads of the layer having as much; infinite for no such limit, as it is filled. Only where
   * `config->levels_by_head` is 1.
   */
  double head_bytes_per_token;
} certkv_retention;

/**
 * Levels from `config->levels` by the bounds that certificates would have: the fewest bytes at which every query head's would be within a tolerance;
 * where the budget is less than that, what loses least within it. Fill it with certkv_bound_budget_init, then set `bytes_per_token`. Every
 * field is taken as it is: 0 is no default. Each block is coded once at every level, to see what it loses there.
 */
typedef struct certkv_bound_budget {
  /**
   * sizeof(certkv_bound_budget) of the caller's header.
   */
  uint32_t struct_size;
  /**
   * 0.
   */
  uint32_t reserved;
  /**
   * Bytes that a token of a full block may take in a layer on average over all layers, all KV heads together: codes, scales, summaries and seals.
   */
  double bytes_per_token;
  /**
   * Bound of every query head that is asked for, as a share of the norm of its output; positive, finite.
   */
  double epsilon;
  /**
   * Share of what codes lose that a plan has to save to be made, where nothing exceeds the budget; at least 0, below 1.
   */
  double gain;
  /**
   * Steps between plans, 1 to 2^31.
   */
  uint64_t interval;
} certkv_bound_budget;

/**
 * What certkv_sequence_plan_levels found.
 */
typedef struct certkv_level_plan {
  /**
   * sizeof(certkv_level_plan), set by the caller; nothing is written beyond it.
   */
  uint32_t struct_size;
  /**
   * 1 for a plan; 0 if nothing was seen of the sequence since certkv_sequence_control looked last, and then all that follows is 0.
   */
  uint32_t planned;
  /**
   * Full blocks of a layer: `levels` has so many for each, or for each of its KV heads in turn where `config->levels_by_head` is 1.
   */
  uint64_t blocks;
  /**
   * Bytes of pages at these levels, all layers together, without padding.
   */
  double bytes;
  /**
   * The largest bound of a query head as a share of its output's norm, if every block were read from its codes.
   */
  double bound;
  /**
   * Bytes, or a bound, as `lacking` says.
   */
  double lacks;
  /**
   * What is lacking of the tolerance.
   */
  certkv_lacking lacking;
  /**
   * 0.
   */
  uint32_t reserved;
} certkv_level_plan;

/**
 * What scales say of themselves.
 */
typedef struct certkv_scales_info {
  /**
   * sizeof(certkv_scales_info), set by the caller; nothing is written beyond it.
   */
  uint32_t struct_size;
  /**
   * Layers of the model that they are of; with the next two what the geometry of a cache has to be.
   */
  uint32_t layers;
  /**
   * Key/value heads of a layer.
   */
  uint32_t kv_heads;
  /**
   * Channels of a head.
   */
  uint32_t head_dim;
  /**
   * So many elements in a hundred are within them; 100 for all that were seen.
   */
  double percentile;
  /**
   * Tokens of the text that was run.
   */
  uint64_t tokens;
  /**
   * Digest of the model: its configuration and weights.
   */
  uint8_t model[32];
  /**
   * Digest of the text.
   */
  uint8_t text[32];
} certkv_scales_info;

/**
 * Element type. A plain integer, so that any value may be passed; those without a name are refused.
 */
typedef int32_t certkv_dtype;

/**
 * How a step decides what to read exactly.
 */
typedef int32_t certkv_policy;

/**
 * Which cached prefix goes first when room is needed.
 */
typedef int32_t certkv_eviction;

/**
 * What the queries of a layer see: the last `tokens` tokens, their own among them, and the first `sinks` of the sequence. All 0 for a layer
 * without a window.
 */
typedef struct certkv_window {
  /**
   * Newest tokens that a query sees, its own among them, at most 2^31; 0 for all, and then the other fields are 0.
   */
  uint64_t tokens;
  /**
   * First tokens of the sequence that every later query sees as well, at most 2^31.
   */
  uint64_t sinks;
  /**
   * Most tokens of a sequence in one step, at most 2^31; 0 for 512.
   */
  uint64_t chunk;
} certkv_window;

/**
 * Functions for the memory in which a cache on the host has its pages: codes, originals, open blocks, scratch, and codes that are swapped out. Set all
 * of it to 0 bytes, then `struct_size`, `context` and the functions. Other memory (tables, indexes, work areas) is the system's.
 *
 * They are copied: they and `context` must stay until the cache, its steps and the calls on it are over, when as many calls of `free` have returned as
 * calls of `allocate` gave memory. certkv_cache_create calls `allocate` a few times for each run of layers of one format and window; nothing
 * is taken later.
 *
 * Threads. They are called on the thread that makes the cache, and on the one that ends its last user. No lock of the library is held: they may
 * call into it, but not for this cache. They must return, by no exception and no longjmp.
 */
typedef struct certkv_allocator {
  /**
   * sizeof(certkv_allocator) of the caller's header.
   */
  uint32_t struct_size;
  /**
   * 0.
   */
  uint32_t reserved;
  /**
   * Handed to each function.
   */
  void *context;
  /**
   * `bytes` bytes, at least 1, at a multiple of `alignment`, a power of two (64 now); nobody else's until `free`. The library fills them with 0.
   * NULL if there are none; what is not aligned goes back at once and counts as none: certkv_cache_create returns CERTKV_OUT_OF_MEMORY then.
   */
  void *(*allocate)(void *context, uint64_t bytes, uint64_t alignment);
  /**
   * Takes back what `allocate` gave for these numbers; never NULL.
   */
  void (*free)(void *context, void *memory, uint64_t bytes, uint64_t alignment);
} certkv_allocator;

/**
 * A format that full blocks can have, with pages of its own.
 */
typedef struct certkv_level {
  /**
   * As "t8-v8g64-b16": both sides coded, of calibrated keys with what they need among the calibrations. At most 63 characters.
   */
  const char *format;
  /**
   * Tokens, in each layer, that it has pages for, 1 to 2^31. What one level does not use is no other level's.
   */
  uint64_t tokens;
} certkv_level;

/**
 * A log of one cache's own (`config->log`): what calls on the cache and its steps have to say is told to it, and not to that of certkv_log_set. Set
 * all of it to 0 bytes, then the fields.
 *
 * It is copied: `callback` and `user` must stay until the cache, its steps and the calls on it are over. A call from within a callback of the
 * library is over with the call that it serves.
 */
typedef struct certkv_log {
  /**
   * sizeof(certkv_log) of the caller's header.
   */
  uint32_t struct_size;
  /**
   * Up to which level: one of the CERTKV_LOG values. CERTKV_LOG_OFF: of this cache nothing is said.
   */
  certkv_log_level level;
  /**
   * Who is told; NULL only with CERTKV_LOG_OFF.
   */
  certkv_log_callback callback;
  /**
   * Handed to it.
   */
  void *user;
} certkv_log;

/**
 * Configuration of a cache. Fill it with certkv_config_init, then set the geometry and `max_tokens`; 0 in any other
 * field means its default. Fields are added at the end only, and their 0 will mean what the library did before.
 */
typedef struct certkv_config {
  /**
   * sizeof(certkv_config) of the caller's header.
   */
  uint32_t struct_size;
  /**
   * Layers of the model, 1 to 4096.
   */
  uint32_t layers;
  /**
   * Query heads per layer: a multiple of `kv_heads`, at most 16 times as many.
   */
  uint32_t q_heads;
  /**
   * Key/value heads per layer, 1 to 1024.
   */
  uint32_t kv_heads;
  /**
   * Channels per head: 64, 96, 128 or 256.
   */
  uint32_t head_dim;
  /**
   * Type of the originals: CERTKV_F16 (default) or CERTKV_BF16.
   */
  certkv_dtype store;
  /**
   * Logit scale, from 2^-64 to 2^64; 0 for 1/sqrt(head_dim).
   */
  float scale;
  /**
   * Worker threads of the CPU kernels, 1 to 256; 0 for 1.
   */
  uint32_t threads;
  /**
   * Format of all layers, as "k8-v4g64-b64", or those of each layer with `+` between them, on a GPU all of one block size; on the host also those of each KV head of
   * each layer, layer by layer. At most 63 characters each, 4096 of them; NULL for the default. Borrowed during the call.
   */
  const char *format;
  /**
   * Tokens that all sequences together may hold, 1 to 2^31.
   */
  uint64_t max_tokens;
  /**
   * Bytes of device memory; 0 for no limit.
   */
  uint64_t device_budget;
  /**
   * Bytes of host memory for the originals; 0 for no limit.
   */
  uint64_t host_budget;
  /**
   * Exact key sides (one block of one KV head in one layer) of which copies are kept between steps in device memory, at most 2^24. On the host over
   * all layers, and 0 for none: originals are read where they lie, which is best there. On a GPU in every layer, and 0 for 11% of those that `max_tokens` tokens
   * have; 1 is as good as none.
   */
  uint64_t scratch_keys;
  /**
   * The same for exact value sides.
   */
  uint64_t scratch_values;
  /**
   * Tolerance of the certified policy relative to the norm of the output; 0 for 0.05. Other policies ignore it.
   */
  double tolerance;
  /**
   * Sequences that may live at once, 1 to 2^20, on a GPU to 4096; 0 for 16.
   */
  uint32_t max_sequences;
  /**
   * One of the CERTKV_POLICY values.
   */
  certkv_policy policy;
  /**
   * Where the cache lies: CERTKV_DEVICE_HOST, or CERTKV_DEVICE_CUDA + the number of a GPU. On a GPU there is one step at a
   * time, and `threads` are those of prefill.
   */
  uint32_t device;
  /**
   * On a GPU: steps whose certificates stay readable on the host without waiting, at most 4096; 0 for none. See certkv_ring_open.
   */
  uint32_t certificate_ring;
  /**
   * Most tokens of one sequence, on the host in whole blocks; 0 for `max_tokens`. Tables are planned for `max_sequences` sequences of that length.
   */
  uint64_t max_context;
  /**
   * On a GPU, and on the host not looked at: a folder with machine code of the kernels, where code that is compiled is kept, too; NULL for none. At most 4095
   * bytes. Borrowed during the call.
   */
  const char *kernels;
  /**
   * Tokens whose codes sequences that are swapped out may leave in host memory, at most 2^31; 0 for none. See
   * certkv_sequence_swap_out.
   */
  uint64_t swap_tokens;
  /**
   * Units (blocks of the largest size) that outlive their sequences at most, up to 2^24, for others to continue from; 0 for none. See
   * certkv_cache_publish.
   */
  uint64_t prefix_units;
  /**
   * 32 bytes from which the names of cached prefixes are made; NULL for bytes from the operating system. Borrowed during the call.
   */
  const uint8_t *prefix_secret;
  /**
   * Which cached prefix goes first when room is needed: one of the CERTKV_EVICTION values.
   */
  certkv_eviction prefix_eviction;
  /**
   * 1 if what sequences leave in memory is overwritten with zeroes before anybody else has it; 0 otherwise. Pages of codes and of originals, on the device, on the
   * host and swapped out, and sides copied to scratch: of a sequence that is released, cut or swapped out, as far as no step reads them, before that call returns, on a
   * GPU in the order of the cache's stream. Not blocks that cached prefixes keep, nor records in a store until it has deleted them, nor buffers that a call works in until the
   * next one needs them. Costs a write of each page's bytes when it is given up, on a GPU that of originals over the link.
   */
  uint32_t erase;
  /**
   * A store for the originals of live sequences for which host memory has no room; NULL for none. The cache keeps it: the handle may
   * be destroyed. What a step reads from codes costs what it did; originals that it needs and that have left are read from the store first, and
   * what the store did to them is a status of that step. On a GPU plans and repairs leave them on codes, and a step of sequences that lack some
   * waits in every layer to see whether a head needs all of them: such a step is refused when recorded or replayed (CERTKV_ORDER). certkv_cache_destroy deletes what the cache has there, as far as the store answers; a
   * process that does not get to it leaves records that nobody will ask for, so that a store for these alone can be emptied.
   */
  struct certkv_store *spill_store;
  /**
   * Tokens whose originals have room in host memory, in every layer, until the store has them: at least the longest chunk. Beside them there is
   * room for the open blocks, and, for each run of layers of one format and window, for the longest sequence in one of them: a run of few layers
   * saves little, and one of one layer nothing.
   */
  uint64_t spill_host_tokens;
  /**
   * Most bytes of records in the store; 0 for no limit.
   */
  uint64_t spill_budget;
  /**
   * Threads that call the store, at most 256; 0 for 4.
   */
  uint32_t spill_workers;
  /**
   * Records (one block in one layer) under way at once, 2 to 65536; 0 for 32. Each has a buffer in host memory.
   */
  uint32_t spill_in_flight;
  /**
   * How long a call waits for the store at most, in milliseconds, up to a day; 0 for 10 seconds.
   */
  uint32_t spill_deadline_ms;
  /**
   * Elements of `windows`: 0, 1 for all layers, or one per layer.
   */
  uint32_t n_windows;
  /**
   * What the queries of each layer see. With `spill_store` only where a layer has none. Borrowed during the call.
   */
  const struct certkv_window *windows;
  /**
   * Events of cached prefixes that stay readable, the latest so many, at most 2^24; 0 for none, which costs nothing. See certkv_cache_events.
   */
  uint64_t prefix_events;
  /**
   * Tokens behind each window whose pages stay, for sequences to be cut: so far back certkv_sequence_truncate goes; at most 2^31. 0 for a block,
   * CERTKV_NO_SLACK for none. Only with `windows`.
   */
  uint64_t window_slack;
  /**
   * On the host: whose memory the pages lie in; NULL for the system's, which is mapped when first touched. Borrowed during the call; its functions and
   * `context` are not.
   */
  const struct certkv_allocator *allocator;
  /**
   * Longest chunk of several tokens (a draft that is verified) whose outputs have certificates, at most 2^31; 0 for none. On the host longer ones are a
   * prompt's: computed from originals, CERTKV_EXACT, without a bound on their rounding, as on a GPU all are with 0. On the host every token of such a chunk is attended as a
   * decode step of its own, under the step's policy, with the bits that it would have alone: it reads codes once a token, so that from about
   * four tokens on a prompt's chunk takes less time. On a GPU chunks of up to eight tokens, where a layer has no window and its originals stay in host
   * memory, are drafts: attended at once for all sequences, every token under the policy as a step; where all layers are so, a step of drafts and single tokens
   * alone waits for nothing and can be recorded. Longer ones, a prompt's of any length, are attended there, too, so many tokens at a time: what was stored before them is read
   * from codes, under CERTKV_POLICY_CERTIFIED where that is within tolerance, else from originals, as all is under CERTKV_POLICY_DENSE. That takes device
   * memory, some 44 KB a token of 32 query heads and 8 key/value heads of 128 channels, and for drafts as much for each of up to eight tokens of every
   * sequence, with 96 bytes a query head in every layer. Beside `levels` there are no drafts on a GPU: from two tokens on chunks are longer ones.
   */
  uint64_t chunk_tokens;
  /**
   * What formats with calibrated keys (such as ctq4, gtq3 or s1) code them by; NULL where no format needs one, or where `calibrations` has it. One of directions
   * serves s1, s2 or s3, by its tier, and one without them the others. It has to be of this geometry and, which
   * certkv_calibration_open sees to, of the model whose keys these are. The cache keeps what it needs: the handle may be destroyed. Saved sequences and
   * cached prefixes are not read under another calibration.
   */
  const struct certkv_calibration *calibration;
  /**
   * Events of blocks that move that stay readable, the latest so many, at most 2^24; 0 for none, which costs nothing. See
   * certkv_cache_moves.
   */
  uint64_t move_events;
  /**
   * `n_levels` formats that full blocks can have, each with fewer bytes than the one before it, all of one block size. Every block becomes
   * full at the first, which is `format` (NULL, or the same), and can change between steps: see certkv_sequence_change_level. Not beside windows,
   * `spill_store` and `scales`. Borrowed during the call.
   */
  const struct certkv_level *levels;
  /**
   * SmartKV decides on levels when certkv_sequence_control is called; NULL for nobody, or one of `retention` and `bound_budget`. On a GPU it takes 4 bytes of
   * device memory a block and query head in each layer. Borrowed during the call.
   */
  const struct certkv_control *control;
  /**
   * Fixed scales for sides with one scale per block (p8, e4m3g64), of this geometry; NULL for the scales of each block. What a block has
   * beyond them saturates, is counted (`saturated` of certkv_snapshot), and is in its bound. The cache keeps what it needs: the handle may be
   * destroyed.
   */
  const struct certkv_scales *scales;
  /**
   * Elements of `levels`: 0 for none, or 2 to 8.
   */
  uint32_t n_levels;
  /**
   * On a GPU 1 if certkv_step_plan plans, beside what the caller's model computes, and not certkv_step_attend; 0 otherwise. It takes 4 bytes of device memory a block and
   * query head in each layer.
   */
  uint32_t plan_apart;
  /**
   * Who hears what calls on this cache have to say; NULL for the function of certkv_log_set. Borrowed during the call; its function and `user` are not.
   */
  const struct certkv_log *log;
  /**
   * As `control`: retention decides. On a GPU it takes room for 16 pages of records beside that, as `bound_budget` and a gate of `control` do, and keys of a calibration (`ctqN`,
   * `gtqN`) go beside none of other kinds.
   */
  const struct certkv_retention *retention;
  /**
   * The same: the bound's budget decides.
   */
  const struct certkv_bound_budget *bound_budget;
  /**
   * On the host, under CERTKV_POLICY_CERTIFIED, of steps with tolerances of their own, too: at most this share of a sequence's tokens is read one by one
   * from the originals where that is the cheapest way to the tolerance, 0 to 0.25; 0 for none. It reads fewer bytes and takes more time to decide: for
   * machines whose cores outrun their memory. Nothing beside `levels` and `spill_store`. Other policies ignore it.
   */
  double row_share;
  /**
   * Where formats need more than one: `n_calibrations` more of them, beside `calibration` or without. No two of one kind: at most one without directions, and
   * one of each tier. Borrowed during the call.
   */
  const struct certkv_calibration *const *calibrations;
  /**
   * Elements of `calibrations`, at most 16.
   */
  uint32_t n_calibrations;
  /**
   * On the host, with `levels`: 1 if every KV head of a block has a level of its own (certkv_sequence_head_level), 0 if all have the block's. Then each layer
   * and head has block tables of its own, and pages that hold that head alone, with a seal each.
   */
  uint32_t levels_by_head;
  /**
   * First tokens of every sequence whose blocks decode steps read from the originals, whatever the policy, at most 2^31; 0 for none. Codes are kept of them as of
   * others. On a GPU their copies take device memory in every layer for each of `max_sequences` sequences; not beside residual planes or `spill_store` there. Not
   * beside `bound_budget`.
   */
  uint64_t protect_sinks;
  /**
   * The same of the newest tokens: a query has this many protected, its own among them. Each token of a chunk that has certificates has its own on the host; on a GPU
   * drafts have what any of their tokens has, and longer chunks read what was stored before them from codes.
   */
  uint64_t protect_recent;
  /**
   * Room that cached prefixes leave at the end of every step, in tokens whose pages are free: where they are fewer than `prefix_low`, units that nobody uses go until
   * they are `prefix_high`, so that a step which needs pages seldom has to wait for that. Both 0: they go when somebody needs pages. Pages of windows and of
   * single levels do not count.
   */
  uint64_t prefix_low;
  /**
   * See `prefix_low`: from there up to `max_tokens`.
   */
  uint64_t prefix_high;
} certkv_config;

/**
 * Which of its machine codes the library runs on this CPU.
 */
typedef int32_t certkv_cpu;

/**
 * What the library can use of this machine.
 */
typedef struct certkv_capabilities {
  /**
   * sizeof(certkv_capabilities), set by the caller; nothing is written beyond it.
   */
  uint32_t struct_size;
  /**
   * Machine code for this CPU.
   */
  certkv_cpu cpu;
  /**
   * GPUs that the driver sees; 0 without a driver. certkv_gpu_describe says which of them the library runs on.
   */
  uint32_t gpus;
  /**
   * CERTKV_OK, or why no GPU can be used whatever its kind: DEVICE (no driver, one that is too old or does not start).
   */
  certkv_status cuda;
} certkv_capabilities;

/**
 * A GPU.
 */
typedef struct certkv_gpu_info {
  /**
   * sizeof(certkv_gpu_info), set by the caller; nothing is written beyond it.
   */
  uint32_t struct_size;
  /**
   * 1 if there are kernels for it, 0 if there are none: a cache there is refused.
   */
  uint32_t supported;
  /**
   * Compute capability: `capability_major`.`capability_minor`.
   */
  uint32_t capability_major;
  /**
   * See above.
   */
  uint32_t capability_minor;
  /**
   * Streaming multiprocessors.
   */
  uint32_t multiprocessors;
  /**
   * CUDA version of the driver: 1000 major + 10 minor.
   */
  uint32_t driver;
  /**
   * Bytes of device memory.
   */
  uint64_t memory;
  /**
   * Bytes of it that are free now, all processes counted.
   */
  uint64_t memory_free;
  /**
   * Its name, cut where it is longer, with a 0 behind it.
   */
  char name[CERTKV_GPU_NAME];
} certkv_gpu_info;

/**
 * What certkv_prepare found or made.
 */
typedef struct certkv_prepared {
  /**
   * sizeof(certkv_prepared), set by the caller; nothing is written beyond it.
   */
  uint32_t struct_size;
  /**
   * 0.
   */
  uint32_t reserved;
  /**
   * Kernels that a cache runs; 0 for one on the host, whose code is in the library.
   */
  uint64_t kernels;
  /**
   * Of these, those that were neither made ahead of time nor kept in `config->kernels`, and were compiled.
   */
  uint64_t compiled;
} certkv_prepared;

/**
 * What certkv_sequence_prefetch brought, in originals of one block in one layer.
 */
typedef struct certkv_prefetched {
  /**
   * sizeof(certkv_prefetched), set by the caller; nothing is written beyond it.
   */
  uint32_t struct_size;
  /**
   * 0.
   */
  uint32_t reserved;
  /**
   * What the next step is expected to read.
   */
  uint64_t wanted;
  /**
   * Of those, what came from the store; the others were there.
   */
  uint64_t fetched;
  /**
   * Of those, what host memory has no room for beside the others, and stays away.
   */
  uint64_t left;
  /**
   * Bytes that came.
   */
  uint64_t bytes;
} certkv_prefetched;

/**
 * Whose sequences files hold. Set all of it to 0 bytes, then `struct_size` and what there is to say. Borrowed during a call.
 */
typedef struct certkv_save_scope {
  /**
   * sizeof(certkv_save_scope) of the caller's header.
   */
  uint32_t struct_size;
  /**
   * 0.
   */
  uint32_t reserved;
  /**
   * What the rows depend on and the cache cannot know, by name or digest: weights, adapter, rotation of positions. A file is restored
   * under the same bytes only.
   */
  const void *model;
  /**
   * Bytes of it, at most 4096.
   */
  uint64_t model_bytes;
  /**
   * 32 bytes, the key of the digests; NULL for none. Without one they tell damage, with one forgery, too.
   */
  const uint8_t *key;
} certkv_save_scope;

/**
 * What makes a position of a prompt different from others with the same token: the digest of an image behind its placeholder, say. Prompts share
 * units only where marks are the same.
 */
typedef struct certkv_mark {
  /**
   * Position in the prompt, from 0. Several marks may stand at one. Those behind the last token are ignored.
   */
  uint64_t at;
  /**
   * What is there: any bytes, at most 4096.
   */
  const void *what;
  /**
   * Bytes of it.
   */
  uint64_t what_bytes;
} certkv_mark;

/**
 * Who may share cached prefixes, and all but the tokens that decides what a page holds: two scopes that differ in one field share nothing.
 * Set all of it to 0 bytes, then `struct_size` and what there is to say. Names are any bytes, at most 4096; longer ones by a digest.
 * Borrowed during a call.
 */
typedef struct certkv_prefix_scope {
  /**
   * sizeof(certkv_prefix_scope) of the caller's header.
   */
  uint32_t struct_size;
  /**
   * Class of tolerance, where the server keeps several.
   */
  uint32_t tolerance_class;
  /**
   * The circle of trust: a tenant, say. The server sets it, never its client: within a domain, whoever sends a prompt can tell by the
   * time it takes whether somebody sent it before.
   */
  const void *domain;
  /**
   * Bytes of it.
   */
  uint64_t domain_bytes;
  /**
   * The model's weights, with whatever else decides its rows (rotation, quantisation).
   */
  const void *model;
  /**
   * Bytes of it.
   */
  uint64_t model_bytes;
  /**
   * The adapter on top of the model; NULL for none, which is not the same as one of 0 bytes.
   */
  const void *adapter;
  /**
   * Bytes of it.
   */
  uint64_t adapter_bytes;
  /**
   * A further division; NULL for none.
   */
  const void *salt;
  /**
   * Bytes of it.
   */
  uint64_t salt_bytes;
  /**
   * Position of the first token.
   */
  uint64_t first_position;
  /**
   * What the numbers of this call's tokens do not tell; NULL for nothing. It is part of the prompt, and here because all calls with a prompt have
   * a scope.
   */
  const struct certkv_mark *marks;
  /**
   * Elements of it, at most 2^20, in ascending order of position.
   */
  uint64_t n_marks;
} certkv_prefix_scope;

/**
 * Why a publication ended before the last full unit.
 */
typedef int32_t certkv_stop;

/**
 * What a publication came to.
 */
typedef struct certkv_publication {
  /**
   * sizeof(certkv_publication), set by the caller; nothing is written beyond it.
   */
  uint32_t struct_size;
  /**
   * Why what follows is not cached: one of the CERTKV_STOP values.
   */
  certkv_stop stop;
  /**
   * Tokens of the sequence that certkv_sequence_create_from finds now.
   */
  uint64_t cached;
  /**
   * Of these, new with this call.
   */
  uint64_t added;
} certkv_publication;

/**
 * What happened to a unit of a cached prefix.
 */
typedef int32_t certkv_event_kind;

/**
 * An event of one unit: a block of the largest size of the cache's formats.
 */
typedef struct certkv_prefix_event {
  /**
   * 0 for the first event of a cache; each is one more than the one before.
   */
  uint64_t number;
  /**
   * One of the CERTKV_EVENT values.
   */
  certkv_event_kind kind;
  /**
   * Which unit of its prompt it is, from 0.
   */
  uint32_t unit;
  /**
   * 1 if marks stand in the unit (certkv_prefix_scope): tokens alone do not make its key. Otherwise 0.
   */
  uint32_t marked;
  /**
   * 0.
   */
  uint32_t reserved;
  /**
   * Its name: of the scope, all tokens before it and its own. Under this name it is in a store.
   */
  struct certkv_store_key key;
  /**
   * The name of the unit before it, or of the scope if it is the first. Zeros if `kind` is CERTKV_EVENT_EXPORTED.
   */
  struct certkv_store_key parent;
} certkv_prefix_event;

/**
 * What a read of events came to.
 */
typedef struct certkv_events_read {
  /**
   * sizeof(certkv_events_read), set by the caller; nothing is written beyond it.
   */
  uint32_t struct_size;
  /**
   * Tokens of a unit.
   */
  uint32_t unit_tokens;
  /**
   * Events that were copied, of consecutive numbers.
   */
  uint64_t read;
  /**
   * Events between the one that was asked for and the oldest that is left. If this is not 0, who kept a list begins anew
   * (certkv_cache_cached_prefixes).
   */
  uint64_t lost;
  /**
   * The number to ask for next time.
   */
  uint64_t next;
  /**
   * The number that the next event will have: `next`, if nothing is left to read.
   */
  uint64_t newest;
} certkv_events_read;

/**
 * Where a block went.
 */
typedef int32_t certkv_move_kind;

/**
 * A block that has moved, in one layer or in a run of layers that share pages.
 */
typedef struct certkv_move_event {
  /**
   * 0 for the first event of a cache; each is one more than the one before.
   */
  uint64_t number;
  /**
   * One of the CERTKV_MOVE values.
   */
  certkv_move_kind kind;
  /**
   * The first layer.
   */
  uint32_t layer;
  /**
   * How many layers from it on.
   */
  uint32_t layers;
  /**
   * Which block of the sequence; CERTKV_NO_BLOCK where `sequence` is CERTKV_NO_SEQUENCE.
   */
  uint32_t block;
  /**
   * Whose it is; CERTKV_NO_SEQUENCE where that is not known: what is spilled is a page, which forks and cached prefixes may share.
   */
  certkv_sequence sequence;
  /**
   * What the page of its originals is called, for as long as it is this block's: with `layer`, what was spilled is what is fetched.
   */
  uint64_t page;
  /**
   * Bytes that moved.
   */
  uint64_t bytes;
} certkv_move_event;

/**
 * What is wrong with a page.
 */
typedef int32_t certkv_fault;

/**
 * A page that is not what was sealed, and could not be mended.
 */
typedef struct certkv_damage {
  /**
   * The sequence that has the block, or one of them; CERTKV_NO_SEQUENCE for a cached prefix that no sequence holds.
   */
  certkv_sequence sequence;
  /**
   * Layer of the model.
   */
  uint32_t layer;
  /**
   * The first of the page's KV heads.
   */
  uint32_t kv_head;
  /**
   * Block of the sequence.
   */
  uint32_t block;
  /**
   * One of the CERTKV_FAULT values.
   */
  certkv_fault fault;
} certkv_damage;

/**
 * What certkv_cache_scrub found.
 */
typedef struct certkv_scrubbed {
  /**
   * sizeof(certkv_scrubbed), set by the caller; nothing is written beyond it.
   */
  uint32_t struct_size;
  /**
   * 1 if the last page that there is was looked at: the next call begins anew. 0 otherwise.
   */
  uint32_t complete;
  /**
   * Pages that were compared, each of one layer.
   */
  uint64_t pages;
  /**
   * Those of them that were not what was sealed, and are again.
   */
  uint64_t mended;
  /**
   * Those that could not be mended, whether `damages` had room for them or not.
   */
  uint64_t damaged;
  /**
   * Sequences that were passed over: a step holds them.
   */
  uint64_t busy;
} certkv_scrubbed;

/**
 * Whether pages suffice.
 */
typedef int32_t certkv_verdict;

/**
 * What a request would find.
 */
typedef struct certkv_admission {
  /**
   * sizeof(certkv_admission), set by the caller; nothing is written beyond it.
   */
  uint32_t struct_size;
  /**
   * One of the CERTKV_FITS values, or CERTKV_LACKS.
   */
  certkv_verdict verdict;
  /**
   * Of CERTKV_FITS_AFTER_EVICTION: units of cached prefixes to evict; 0 where pages of windows or of levels alone are short, which the step takes.
   * Else 0.
   */
  uint64_t units;
  /**
   * Of CERTKV_LACKS: pages that are short, of the class that is short first. Else 0.
   */
  uint64_t pages;
} certkv_admission;

/**
 * Tokens to append to one sequence in one step.
 */
typedef struct certkv_chunk {
  /**
   * The sequence.
   */
  certkv_sequence sequence;
  /**
   * New tokens: 1 is certified decode, and so is each of up to `config->chunk_tokens`; more is causal prefill over the originals.
   */
  uint64_t tokens;
} certkv_chunk;

/**
 * How one step decides what to read exactly. Set all of it to 0 bytes, then `struct_size` and what there is to say.
 */
typedef struct certkv_step_options {
  /**
   * sizeof(certkv_step_options) of the caller's header.
   */
  uint32_t struct_size;
  /**
   * One of the CERTKV_POLICY values. It is what is said here, not what the cache was configured with.
   */
  certkv_policy policy;
  /**
   * Tolerance of the certified policy relative to the norm of the output; 0 for 0.05. Other policies ignore it.
   */
  double tolerance;
} certkv_step_options;

/**
 * Where a buffer lies.
 */
typedef int32_t certkv_space;

/**
 * What is known about the output of one query head at one token. `bound` is at least the Euclidean distance from
 * attention in exact arithmetic over the stored 16-bit originals, in the unit of the values, if `status` is
 * CERTKV_CERTIFIED or CERTKV_EXACT; it is infinite where none was computed, as for prefill. A record that nobody
 * filled in certifies nothing: test `bound <= x`, never its negation, so that NaN fails.
 */
typedef struct certkv_certificate {
  /**
   * CERTKV_CERTIFICATE_VERSION.
   */
  uint32_t version;
  /**
   * CERTKV_UNCERTIFIED, _CERTIFIED, _EXACT or _FAILED.
   */
  uint8_t status;
  /**
   * One of CERTKV_RUNG: where the output was made.
   */
  uint8_t rung;
  /**
   * One of CERTKV_CAUSE: why it left the first rung.
   */
  uint8_t cause;
  /**
   * 0.
   */
  uint8_t reserved8;
  /**
   * Total bound: the components or the cap, whichever is less, plus the arithmetic.
   */
  double bound;
  /**
   * Absolute tolerance that was applied, to the bound without its arithmetic.
   */
  double tol;
  /**
   * Norm of the output.
   */
  double out_norm;
  /**
   * Key component.
   */
  double e_key;
  /**
   * Value component.
   */
  double e_val;
  /**
   * Component of blocks left out.
   */
  double e_drop;
  /**
   * Arithmetic of the kernel.
   */
  double e_arith;
  /**
   * Bound of the quantisation error that is independent of the components; infinite if none was computed.
   */
  double cap;
  /**
   * Key component before any repair or fallback.
   */
  double candidate_e_key;
  /**
   * Value component before any repair or fallback.
   */
  double candidate_e_val;
  /**
   * Component of blocks left out, before any repair or fallback.
   */
  double candidate_e_drop;
  /**
   * Total bound before any repair or fallback.
   */
  double candidate_bound;
  /**
   * Blocks whose keys were read exactly.
   */
  uint32_t promoted_keys;
  /**
   * Blocks whose values were read exactly.
   */
  uint32_t promoted_values;
  /**
   * Blocks left out.
   */
  uint32_t dropped;
  /**
   * Repairs made.
   */
  uint32_t repairs;
  /**
   * Bytes of packed records read for this head's group.
   */
  uint64_t packed_bytes;
  /**
   * Bytes of originals read from fast memory.
   */
  uint64_t scratch_bytes;
  /**
   * Bytes of originals fetched from the slow tier.
   */
  uint64_t host_bytes;
  /**
   * 0.
   */
  uint64_t reserved[2];
} certkv_certificate;

/**
 * Where the rows of one tensor are: channel `c` of head `h` of token `t` is element `t * token_stride + h * head_stride + c` behind `data`.
 * Nothing is guessed from shapes: tokens, heads and channels are those of the step and the cache. No element may be two.
 */
typedef struct certkv_tensor {
  /**
   * sizeof(certkv_tensor) of the caller's header.
   */
  uint32_t struct_size;
  /**
   * CERTKV_F32, CERTKV_F16 or CERTKV_BF16.
   */
  certkv_dtype dtype;
  /**
   * Where it lies.
   */
  certkv_space space;
  /**
   * 0.
   */
  uint32_t reserved;
  /**
   * The first channel of the first head of the first token. Written only where it is an output's.
   */
  void *data;
  /**
   * Elements from a token to the next; 0 for `heads * head_dim`.
   */
  uint64_t token_stride;
  /**
   * Elements from a head to the next; 0 for `head_dim`.
   */
  uint64_t head_stride;
} certkv_tensor;

/**
 * How far an output may be from exact attention before its head spends more: the larger of a share of the output's norm and a distance in the
 * unit of the values. Neither is negative, and one is positive.
 */
typedef struct certkv_tolerance {
  /**
   * Relative to the norm of the output.
   */
  double relative;
  /**
   * Whatever the norm.
   */
  double absolute;
} certkv_tolerance;

/**
 * What was published of one head's output; fields as in certkv_certificate, in single precision.
 */
typedef struct certkv_published_head {
  /**
   * Upper bound on the distance from attention over the originals; infinite where the layer was not attended.
   */
  float bound;
  /**
   * Absolute tolerance that was applied.
   */
  float tol;
  /**
   * Norm of the output.
   */
  float out_norm;
  /**
   * CERTKV_UNCERTIFIED, _CERTIFIED, _EXACT or _FAILED.
   */
  uint8_t status;
  /**
   * One of CERTKV_RUNG.
   */
  uint8_t rung;
  /**
   * 0.
   */
  uint16_t reserved;
} certkv_published_head;

/**
 * Which heads a step has: `[layers][sequences][q_heads]`, sequences being those with one new token, in the order of the step's chunks. In a step of drafts
 * (`config->chunk_tokens`) beside such, which has no other chunk, every new token counts as one, in the order of the step's rows.
 */
typedef struct certkv_published_step {
  /**
   * sizeof(certkv_published_step), set by the caller; nothing is written beyond it.
   */
  uint32_t struct_size;
  /**
   * Layers of the model.
   */
  uint32_t layers;
  /**
   * Sequences with one new token, or in a step of drafts its tokens.
   */
  uint32_t sequences;
  /**
   * Query heads of a layer.
   */
  uint32_t q_heads;
} certkv_published_step;

/**
 * What certkv_step_publish writes: this, and a certkv_published_head for each of `[layers][sequences][q_heads]` behind it.
 */
typedef struct certkv_published_memory {
  /**
   * How often steps of this cache were published so.
   */
  uint64_t number;
  /**
   * Not written.
   */
  uint64_t reserved[7];
  /**
   * `number` before the heads are written,
   */
  uint64_t begun;
  /**
   * and when they were.
   */
  uint64_t done;
  /**
   * Sequences with one new token, in the order of the step's chunks; or in a step of drafts its tokens, in the order of its rows.
   */
  uint32_t sequences;
  /**
   * Layers of the model.
   */
  uint32_t layers;
  /**
   * Query heads of a layer.
   */
  uint32_t q_heads;
  /**
   * 0 where the step makes no claim (its policy is packed), 1 where it certifies, 2 where it reads everything exactly.
   */
  uint32_t rule;
} certkv_published_memory;

/**
 * Memory of a cache at one moment, in bytes unless it says otherwise. Sequences that are part of a step are left out
 * of `tables` and `tokens`.
 */
typedef struct certkv_memory {
  /**
   * sizeof(certkv_memory), set by the caller; nothing is written beyond it.
   */
  uint32_t struct_size;
  /**
   * 0.
   */
  uint32_t reserved;
  /**
   * Tokens held by live sequences; shared blocks count for each.
   */
  uint64_t tokens;
  /**
   * Pages in use; 0 after every sequence was released and every cached prefix evicted.
   */
  uint64_t live_pages;
  /**
   * Packed pages in use: codes, scales, summaries, padding.
   */
  uint64_t packed;
  /**
   * Open blocks and exact sides in use (16-bit, device).
   */
  uint64_t scratch;
  /**
   * Block tables and per-head memory of live sequences.
   */
  uint64_t tables;
  /**
   * 16-bit originals in use, and codes of sequences that are swapped out (host).
   */
  uint64_t host;
  /**
   * Taken when the cache was made for: packed pages.
   */
  uint64_t reserved_packed;
  /**
   * The same for scratch.
   */
  uint64_t reserved_scratch;
  /**
   * The same for tables.
   */
  uint64_t reserved_tables;
  /**
   * The same for host memory.
   */
  uint64_t reserved_host;
  /**
   * Device budget; UINT64_MAX for none.
   */
  uint64_t device_limit;
  /**
   * Host budget; UINT64_MAX for none.
   */
  uint64_t host_limit;
} certkv_memory;

/**
 * Bytes of one class.
 */
typedef struct certkv_class_use {
  /**
   * Of pages, slots and sequences in use. Of tables, what is reserved for every live sequence.
   */
  uint64_t used;
  /**
   * Reserved.
   */
  uint64_t reserved;
  /**
   * The most that was ever reserved.
   */
  uint64_t peak;
} certkv_class_use;

/**
 * Bytes of one memory.
 */
typedef struct certkv_pool_use {
  /**
   * Reserved.
   */
  uint64_t reserved;
  /**
   * The most that was ever reserved.
   */
  uint64_t peak;
  /**
   * The budget; UINT64_MAX for none.
   */
  uint64_t budget;
} certkv_pool_use;

/**
 * Pages of one kind by where they are, over all groups of layers: a page has a slot in each layer of its group.
 */
typedef struct certkv_page_use {
  /**
   * Ready to be used.
   */
  uint64_t free;
  /**
   * In use.
   */
  uint64_t live;
  /**
   * Given up; something may still read them.
   */
  uint64_t retiring;
  /**
   * Never used again: 0 until one was freed 2^32 times.
   */
  uint64_t worn;
} certkv_page_use;

/**
 * Moves of one kind by what became of them. They begin with the cache and never go down.
 */
typedef struct certkv_moves {
  /**
   * Done.
   */
  uint64_t done;
  /**
   * Bytes of these.
   */
  uint64_t bytes;
  /**
   * Not begun, or given up: no room, or nothing that may be moved.
   */
  uint64_t refused;
  /**
   * The device, or the file, failed. What was to be moved is where it was.
   */
  uint64_t failed;
} certkv_moves;

/**
 * Exact sides of one kind in scratch: slots now, and what happened since the cache was made.
 */
typedef struct certkv_scratch_use {
  /**
   * Slots that are free.
   */
  uint64_t empty;
  /**
   * Slots that hold a side, or are being filled with one.
   */
  uint64_t named;
  /**
   * Slots that wait for who still reads them.
   */
  uint64_t retiring;
  /**
   * Look-ups that found their side.
   */
  uint64_t hits;
  /**
   * Look-ups that did not.
   */
  uint64_t misses;
  /**
   * Those of the misses whose side was being filled.
   */
  uint64_t pending;
  /**
   * Sides that gave way to others.
   */
  uint64_t evicted;
  /**
   * Sides that went with their page.
   */
  uint64_t invalidated;
  /**
   * Copies that are done, as far as somebody looked.
   */
  uint64_t filled;
  /**
   * Copies that found no slot.
   */
  uint64_t refused;
  /**
   * Copies that failed.
   */
  uint64_t failed;
  /**
   * Bytes that were copied.
   */
  uint64_t filled_bytes;
} certkv_scratch_use;

/**
 * A cache in numbers. Each is right at some moment of the call; two need not be of the same moment while other threads work.
 */
typedef struct certkv_snapshot {
  /**
   * sizeof(certkv_snapshot), set by the caller; nothing is written beyond it.
   */
  uint32_t struct_size;
  /**
   * 0.
   */
  uint32_t reserved;
  /**
   * Live sequences.
   */
  uint64_t sequences;
  /**
   * Of these, in a step that has not ended or in another thread's call; their tokens are not counted.
   */
  uint64_t busy;
  /**
   * Tokens of the other sequences; shared blocks count for each.
   */
  uint64_t tokens;
  /**
   * Packed pages: codes, scales, summaries.
   */
  struct certkv_class_use packed;
  /**
   * Open blocks and exact sides (16-bit, device). Bytes in use are on a GPU those of open blocks.
   */
  struct certkv_class_use scratch;
  /**
   * Block tables and what else is held for sequences, prefixes and work.
   */
  struct certkv_class_use tables;
  /**
   * 16-bit originals, and codes of sequences that are swapped out.
   */
  struct certkv_class_use host;
  /**
   * Device memory: packed, scratch and tables.
   */
  struct certkv_pool_use device_memory;
  /**
   * Host memory.
   */
  struct certkv_pool_use host_memory;
  /**
   * Pages of codes.
   */
  struct certkv_page_use packed_pages;
  /**
   * Pages of open blocks.
   */
  struct certkv_page_use open_pages;
  /**
   * Pages of originals.
   */
  struct certkv_page_use host_pages;
  /**
   * Pages of codes of sequences that are swapped out.
   */
  struct certkv_page_use swap_pages;
  /**
   * Rows of one layer of one sequence to the host; on a GPU the blocks that a step has filled, in all layers, without rows that the host has itself.
   */
  struct certkv_moves stores;
  /**
   * Open blocks of forks and cuts, copied.
   */
  struct certkv_moves copies;
  /**
   * Sequences to files.
   */
  struct certkv_moves saves;
  /**
   * Sequences from files.
   */
  struct certkv_moves restores;
  /**
   * Sequences swapped out.
   */
  struct certkv_moves swap_outs;
  /**
   * Sequences swapped in.
   */
  struct certkv_moves swap_ins;
  /**
   * Units of prefixes cached, and the most that can be; these and the following are 0 without `config->prefix_units`.
   */
  uint64_t prefix_units;
  /**
   * See `prefix_units`.
   */
  uint64_t prefix_capacity;
  /**
   * Look-ups so far, by certkv_sequence_create_from.
   */
  uint64_t prefix_lookups;
  /**
   * Full units that they asked for.
   */
  uint64_t prefix_asked;
  /**
   * Units that they found.
   */
  uint64_t prefix_hits;
  /**
   * Units published so far.
   */
  uint64_t prefix_published;
  /**
   * Units evicted so far.
   */
  uint64_t prefix_evicted;
  /**
   * Originals of one block in one layer that are in host memory alone; these and the following are 0 without `config->spill_store`.
   */
  uint64_t originals_resident;
  /**
   * In host memory and in the store.
   */
  uint64_t originals_stored;
  /**
   * In the store alone.
   */
  uint64_t originals_spilled;
  /**
   * Room of host memory that nothing is in.
   */
  uint64_t originals_free;
  /**
   * Originals of one block in one layer to the store.
   */
  struct certkv_moves spills;
  /**
   * What reads of originals lacked, from the store: each what one read brought.
   */
  struct certkv_moves fetches;
  /**
   * Records deleted so far.
   */
  uint64_t records_deleted;
  /**
   * Deletes that failed; each is tried again.
   */
  uint64_t record_delete_failures;
  /**
   * Records that wait for their delete.
   */
  uint64_t records_doomed;
  /**
   * Records in the store, `used` being what is `reserved`.
   */
  struct certkv_class_use disk;
  /**
   * The same, with `config->spill_budget`.
   */
  struct certkv_pool_use disk_memory;
  /**
   * Outputs of decode steps, one per token, layer and query head: within their tolerance. These and the following are 0 on a GPU, up to `read_host`:
   * its certificates come by certkv_ring_open.
   */
  uint64_t outputs_certified;
  /**
   * Computed from the originals.
   */
  uint64_t outputs_exact;
  /**
   * Of policies that claim nothing.
   */
  uint64_t outputs_uncertified;
  /**
   * Not given: all outputs of calls that ended with CERTKV_UNCERTIFIABLE.
   */
  uint64_t outputs_failed;
  /**
   * Given outputs by the rung on which they were made (certkv_certificate).
   */
  uint64_t outputs_by_rung[5];
  /**
   * Outputs of chunks of several tokens, which are exact.
   */
  uint64_t prompt_outputs;
  /**
   * Bytes that decode steps read, once for the query heads that share a KV head: of codes and summaries.
   */
  uint64_t read_packed;
  /**
   * Of exact sides in scratch.
   */
  uint64_t read_scratch;
  /**
   * Of originals in host memory, and of open blocks.
   */
  uint64_t read_host;
  /**
   * Exact key sides in scratch; 0 without, and on a GPU.
   */
  struct certkv_scratch_use scratch_keys;
  /**
   * Exact value sides.
   */
  struct certkv_scratch_use scratch_values;
  /**
   * Times that the host waited for the device.
   */
  uint64_t waits;
  /**
   * Nanoseconds of these.
   */
  uint64_t wait_nanoseconds;
  /**
   * Blocks coded anew at another level, each with the bytes of its page in one layer; 0 without `config->levels`.
   */
  struct certkv_moves recodes;
  /**
   * Elements that a fixed scale could not reach, each where it was coded; 0 without `config->scales`, and on a GPU, where the device counts.
   */
  uint64_t saturated;
} certkv_snapshot;

/**
 * Requests that are to live side by side, none of them sharing a block with another. Set all of it to 0 bytes, then `struct_size` and the rest.
 */
typedef struct certkv_requests {
  /**
   * sizeof(certkv_requests) of the caller's header.
   */
  uint32_t struct_size;
  /**
   * 0.
   */
  uint32_t reserved;
  /**
   * How many, at least 1.
   */
  uint64_t count;
  /**
   * Tokens of each, prompt and answer, at least 1.
   */
  uint64_t tokens;
  /**
   * Share of all key sides, and of all value sides, of which scratch keeps copies, 0 to 1.
   */
  double scratch;
} certkv_requests;

/**
 * What requests come to.
 */
typedef struct certkv_requests_plan {
  /**
   * sizeof(certkv_requests_plan), set by the caller; nothing is written beyond it.
   */
  uint32_t struct_size;
  /**
   * As `assumed` of certkv_plan.
   */
  uint32_t assumed;
  /**
   * `config->max_tokens` for them: each in whole blocks.
   */
  uint64_t max_tokens;
  /**
   * `config->max_sequences` for them.
   */
  uint64_t max_sequences;
  /**
   * The most requests of this length that fit the budgets, up to what a cache can have at all.
   */
  uint64_t most;
  /**
   * Bytes of device memory for them.
   */
  uint64_t device_bytes;
  /**
   * Bytes by which its budget is short; 0 if it suffices.
   */
  uint64_t device_lacks;
  /**
   * Bytes of host memory for them.
   */
  uint64_t host_bytes;
  /**
   * Bytes by which its budget is short; 0 if it suffices.
   */
  uint64_t host_lacks;
} certkv_requests_plan;

/**
 * What a configuration would take, in bytes: what certkv_snapshot calls reserved in a new cache.
 */
typedef struct certkv_plan {
  /**
   * sizeof(certkv_plan), set by the caller; nothing is written beyond it.
   */
  uint32_t struct_size;
  /**
   * 1 where `config->device` is a GPU and this machine has no CUDA driver: what the cache would take on an H200. Else 0.
   */
  uint32_t assumed;
  /**
   * Packed pages: codes, scales, summaries.
   */
  uint64_t packed;
  /**
   * Open blocks and exact sides (16-bit, device).
   */
  uint64_t scratch;
  /**
   * Block tables and what else is held for sequences, prefixes and work.
   */
  uint64_t tables;
  /**
   * 16-bit originals, and codes of sequences that are swapped out.
   */
  uint64_t host;
  /**
   * Device memory in all: packed, scratch and tables.
   */
  uint64_t device_bytes;
  /**
   * Its budget; UINT64_MAX for none.
   */
  uint64_t device_budget;
  /**
   * Bytes by which it is short; 0 if it suffices.
   */
  uint64_t device_lacks;
  /**
   * Host memory in all.
   */
  uint64_t host_bytes;
  /**
   * Its budget; UINT64_MAX for none.
   */
  uint64_t host_budget;
  /**
   * Bytes by which it is short; 0 if it suffices.
   */
  uint64_t host_lacks;
  /**
   * The most that cached prefixes add to the tables as they are published; those for which a budget has no room are not cached.
   */
  uint64_t later;
} certkv_plan;

/**
 * Nothing.
 */
#define CERTKV_LOG_OFF 0

/**
 * Defects of the library, and calls on what a defect has left behind.
 */
#define CERTKV_LOG_ERROR 1

/**
 * Calls that failed by the device, memory, a file or a store.
 */
#define CERTKV_LOG_WARN 2

/**
 * Caches that come and go, and what they take.
 */
#define CERTKV_LOG_INFO 3

/**
 * Moves (docs/metrics.md), with their numbers and how long they took, and all other calls that failed.
 */
#define CERTKV_LOG_DEBUG 4

/**
 * Done: the record is stored, is in its buffer, is there, is not there any more.
 */
#define CERTKV_ITEM_DONE 0

/**
 * Not done; so is any number that is none of these. What is under the key is what was there, or of a put or a delete whose answer was lost, what it
 * should be.
 */
#define CERTKV_ITEM_FAILED 1

/**
 * Of a get or an exists: there is no such record.
 */
#define CERTKV_ITEM_NOT_FOUND 2

/**
 * Of a put: there is no room. The key has what it had.
 */
#define CERTKV_ITEM_FULL 3

/**
 * Of a get: the record has more bytes than the buffer.
 */
#define CERTKV_ITEM_TOO_LARGE 4

/**
 * None was made.
 */
#define CERTKV_TRIGGER_NONE 0

/**
 * It was the first.
 */
#define CERTKV_TRIGGER_FIRST 1

/**
 * The interval was over.
 */
#define CERTKV_TRIGGER_INTERVAL 2

/**
 * Scores were no longer what they had been.
 */
#define CERTKV_TRIGGER_DRIFT 3

/**
 * Blocks that are new brought more bytes than the budget.
 */
#define CERTKV_TRIGGER_BUDGET 4

/**
 * What its terms in the certificate come to as errors become small. It tells levels apart whose bounds say no more than that an output may be
 * anything. The default.
 */
#define CERTKV_MEASURE_LINEAR 0

/**
 * The terms themselves.
 */
#define CERTKV_MEASURE_BOUND 1

/**
 * Nothing: every bound is within the tolerance.
 */
#define CERTKV_LACKING_NOTHING 0

/**
 * So many bytes more, and every bound would be.
 */
#define CERTKV_LACKING_BYTES 1

/**
 * No bytes help: at the first level of all blocks the largest bound is `lacks`.
 */
#define CERTKV_LACKING_BOUND 2

/**
 * Not even the last level fits: it takes so many bytes more. Levels are the last then.
 */
#define CERTKV_LACKING_FLOOR 3

/**
 * In a configuration: f16. Refused elsewhere.
 */
#define CERTKV_DTYPE_DEFAULT 0

/**
 * IEEE single precision.
 */
#define CERTKV_F32 1

/**
 * IEEE half precision, as 16-bit patterns.
 */
#define CERTKV_F16 2

/**
 * bfloat16, as 16-bit patterns.
 */
#define CERTKV_BF16 3

/**
 * One pass over the codes; outputs are within the tolerance or exact. The default.
 */
#define CERTKV_POLICY_CERTIFIED 0

/**
 * Codes only: the certificate is computed and reported, and nothing acts on it.
 */
#define CERTKV_POLICY_PACKED 1

/**
 * Dense attention over the originals.
 */
#define CERTKV_POLICY_DENSE 2

/**
 * Two phases, thresholds, bound and ladder of "Runtime-Certified Bounded-Error Quantized Attention".
 */
#define CERTKV_POLICY_SEED000 3

/**
 * As S3-FIFO says: prompts that come only once do not push out those that come again. The default.
 */
#define CERTKV_EVICTION_S3FIFO 0

/**
 * The one that was not used for longest.
 */
#define CERTKV_EVICTION_LRU 1

/**
 * Portable code.
 */
#define CERTKV_CPU_GENERIC 0

/**
 * AVX2, FMA and F16C.
 */
#define CERTKV_CPU_AVX2 1

/**
 * AVX-512 with VBMI and VNNI.
 */
#define CERTKV_CPU_AVX512 2

/**
 * No sequence.
 */
#define CERTKV_NO_SEQUENCE 0

/**
 * It did not.
 */
#define CERTKV_STOP_NONE 0

/**
 * The codes of what follows do not fit those of the cached unit before it, which another sequence wrote at the same time.
 */
#define CERTKV_STOP_DECLINED 1

/**
 * Another block has the same hash; it stays.
 */
#define CERTKV_STOP_COLLISION 2

/**
 * Its pages are cached already under another name: in another scope, say.
 */
#define CERTKV_STOP_ELSEWHERE 3

/**
 * Pages of the unit were given up.
 */
#define CERTKV_STOP_GONE 4

/**
 * `config->prefix_units` are cached, and all of them are in use.
 */
#define CERTKV_STOP_FULL 5

/**
 * A page could not be shared.
 */
#define CERTKV_STOP_PAGE 6

/**
 * It is in the cache now: published, or imported from a store.
 */
#define CERTKV_EVENT_STORED 1

/**
 * It is not in the cache any more.
 */
#define CERTKV_EVENT_REMOVED 2

/**
 * It is in a store, too: certkv_cache_export_prefix put it there. It stays there until the store loses it, of which there is no event.
 */
#define CERTKV_EVENT_EXPORTED 3

/**
 * Its codes left the device's memory with their sequence: certkv_sequence_swap_out.
 */
#define CERTKV_MOVE_SWAPPED_OUT 1

/**
 * Its codes are back: certkv_sequence_swap_in.
 */
#define CERTKV_MOVE_SWAPPED_IN 2

/**
 * Its originals are in `config->spill_store`, too, in one layer: they leave host memory when others need the room.
 */
#define CERTKV_MOVE_SPILLED 3

/**
 * Its originals are back in host memory, in one layer, for a step that reads them.
 */
#define CERTKV_MOVE_FETCHED 4

/**
 * Codes are not those that were sealed, and its originals do not give these: what is read of it is wrong, and no bound covers that.
 */
#define CERTKV_FAULT_CODES 1

/**
 * Codes are those that were sealed, and its originals give others: what is read exactly of it is wrong.
 */
#define CERTKV_FAULT_ORIGINALS 2

/**
 * Free pages are enough.
 */
#define CERTKV_FITS 0

/**
 * They are, with pages that are given back once work under way has passed them.
 */
#define CERTKV_FITS_SOON 1

/**
 * They are, once cached prefixes that nobody uses have gone; a step evicts them by itself.
 */
#define CERTKV_FITS_AFTER_EVICTION 2

/**
 * They are not: sequences have to end, to be cut or to be swapped out.
 */
#define CERTKV_LACKS 3

/**
 * Ordinary memory of the process.
 */
#define CERTKV_SPACE_HOST 1

/**
 * Memory of the cache's GPU; CERTKV_UNSUPPORTED for caches on the host.
 */
#define CERTKV_SPACE_DEVICE 2

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * Version of the library that is running, as CERTKV_VERSION_STRING. Static memory: never freed.
 *
 * Threads: any, at any time.
 * Stream: none.
 * Capture: safe.
 * Errors: none.
 */
const char *certkv_version(void);

/**
 * Version of the library that is running, as CERTKV_VERSION_NUMBER: major * 1000000 + minor * 1000 + patch.
 *
 * Threads: any, at any time.
 * Stream: none.
 * Capture: safe.
 * Errors: none.
 */
uint32_t certkv_version_number(void);

/**
 * Name of a status, as `"CERTKV_OK"`; `"CERTKV_?"` for a number that is none. Static memory: never freed.
 *
 * Threads: any, at any time.
 * Stream: none.
 * Capture: safe.
 * Errors: none.
 */
const char *certkv_status_name(int32_t status);

/**
 * Gives messages of the library, up to `level`, to `callback` from now on, with `user`; NULL or CERTKV_LOG_OFF ends that. One function hears all
 * caches of the process but those with a log of their own (`config->log`). When the call returns, the function that was there before is on no thread any more and is not called again: it and its
 * `user` may go. Without a function nothing is made for it.
 *
 * Threads: any, at any time, but not from within a callback. Waits for the threads that are in the function that goes.
 * Stream: none.
 * Capture: safe.
 * Errors: INVALID_ARGUMENT (`level` is no CERTKV_LOG value), NULL_POINTER (`callback` is NULL and `level` is not CERTKV_LOG_OFF), ORDER (from within a
 * callback). Nothing changed.
 */
certkv_status certkv_log_set(certkv_log_level level,
                             certkv_log_callback callback,
                             void *user);

/**
 * Fills `info` with the calling thread's latest failure. A call that succeeds, and this function, leave it as it is.
 * `info->struct_size` must be set.
 *
 * Threads: any, at any time; each thread sees its own errors.
 * Stream: none.
 * Capture: safe.
 * Errors: NULL_POINTER, MISALIGNED, STRUCT_SIZE; `info` is unchanged then.
 */
certkv_status certkv_last_error(struct certkv_error_info *info);

/**
 * Makes a store of the host's own functions. `*store` is filled; the caller ends it with certkv_store_destroy. `callbacks` is borrowed during the
 * call; `callbacks->context` is the store's until `callbacks->destroy` was called.
 *
 * Threads: any, at any time.
 * Stream: none.
 * Capture: safe.
 * Errors: NULL_POINTER (also: a function that must be there), MISALIGNED, STRUCT_SIZE, RESERVED. No function was called, `destroy` neither, and
 * `*store` is NULL if it can be written.
 */
certkv_status certkv_store_create(const struct certkv_store_callbacks *callbacks,
                                  struct certkv_store **store);

/**
 * Opens a folder as a store, or makes it: one file a record. Nothing else belongs there, and one process at a time has it open. What a crash left
 * half-written is removed, and the bytes are counted, which looks at every file. `path` is UTF-8, ends with a 0 byte, has at most 4095 others and
 * is borrowed during the call. `quota`: most bytes of all files; 0 for no limit. `flags`: CERTKV_FILES values, added. `*store` is filled; the caller
 * ends it with certkv_store_destroy.
 *
 * Threads: any, at any time.
 * Stream: none.
 * Capture: safe.
 * Errors: NULL_POINTER, MISALIGNED, INVALID_ARGUMENT, FILE (also: the folder is open already). `*store` is NULL if it can be written; the folder may
 * have been made.
 */
certkv_status certkv_store_open_files(const char *path,
                                      uint64_t quota,
                                      uint32_t flags,
                                      struct certkv_store **store);

/**
 * Makes a store in this process's memory, of at most `quota` bytes; 0 for no limit. For tests, and to measure other stores against. `*store` is
 * filled; the caller ends it with certkv_store_destroy.
 *
 * Threads: any, at any time.
 * Stream: none.
 * Capture: safe.
 * Errors: NULL_POINTER, MISALIGNED. Nothing is held then.
 */
certkv_status certkv_store_create_memory(uint64_t quota,
                                         struct certkv_store **store);

/**
 * Ends a handle. NULL is allowed. The store itself ends, and `callbacks->destroy` is called, when no cache and no call uses it any more: caches that
 * spill to it keep it until they are destroyed.
 *
 * Threads: any, at any time.
 * Stream: none.
 * Capture: safe.
 * Errors: INVALID_HANDLE, for a store that is destroyed already; nothing happened then.
 */
certkv_status certkv_store_destroy(struct certkv_store *store);

/**
 * Reads a calibration from a file of `certkv calibrate`, with `--spherical` or without. `path` is UTF-8, ends with a 0 byte and has at most 4095 others. `model`: 32 bytes, the
 * digest of the model whose keys these will be, which the file has to name; NULL for that of any model. Both are borrowed during the call.
 * `*calibration` is filled; the caller ends it with certkv_calibration_destroy.
 *
 * Threads: any, at any time.
 * Stream: none.
 * Capture: safe.
 * Errors: NULL_POINTER, MISALIGNED, INVALID_ARGUMENT (`path`), FILE (it could not be read), FILE_REFUSED (it is no calibration, or one of another
 * version or model), FILE_DAMAGED (it is cut, longer, or not what was written). `*calibration` is NULL if it can be written.
 */
certkv_status certkv_calibration_open(const char *path,
                                      const uint8_t *model,
                                      struct certkv_calibration **calibration);

/**
 * As certkv_calibration_open from the `n_bytes` bytes of such a file, borrowed during the call.
 *
 * Threads: any, at any time.
 * Stream: none.
 * Capture: safe.
 * Errors: NULL_POINTER, MISALIGNED, INVALID_ARGUMENT (`bytes` beyond memory), FILE_REFUSED (no calibration, or one of another version or model),
 * FILE_DAMAGED (cut, longer, or not what was written). `*calibration` is NULL if it can be written.
 */
certkv_status certkv_calibration_read(const void *bytes,
                                      uint64_t n_bytes,
                                      const uint8_t *model,
                                      struct certkv_calibration **calibration);

/**
 * Fills `*info`, whose `struct_size` must be set, with what a calibration says of itself.
 *
 * Threads: any, at any time.
 * Stream: none.
 * Capture: safe.
 * Errors: NULL_POINTER, MISALIGNED, STRUCT_SIZE, INVALID_HANDLE; `*info` is unchanged then.
 */
certkv_status certkv_calibration_describe(const struct certkv_calibration *calibration,
                                          struct certkv_calibration_info *info);

/**
 * Ends a handle. NULL is allowed. Caches that were made with it keep what they need.
 *
 * Threads: any, at any time.
 * Stream: none.
 * Capture: safe.
 * Errors: INVALID_HANDLE, for one that is destroyed already; nothing happened then.
 */
certkv_status certkv_calibration_destroy(struct certkv_calibration *calibration);

/**
 * Which of `config->levels` full block number `block` of a sequence has in `layer`; `*level` is filled, with 0 where the cache has no levels.
 *
 * Threads: any, at any time.
 * Stream: none.
 * Capture: safe.
 * Errors: NULL_POINTER, MISALIGNED, INVALID_HANDLE, UNKNOWN_SEQUENCE, BUSY_SEQUENCE, LAYER, LEVEL (the block is not full), INVALID_ARGUMENT (heads have
 * levels of their own: `config->levels_by_head`), BUSY_STEP (on a GPU, while a step is open), POISONED. `*level` is unchanged then.
 */
certkv_status certkv_sequence_level(const struct certkv_cache *cache,
                                    certkv_sequence sequence,
                                    uint32_t layer,
                                    uint64_t block,
                                    uint32_t *level);

/**
 * Codes full block number `block` of a sequence anew in one layer, from its originals, at another of `config->levels`: the next step reads it so.
 * Sequences that share the block keep it as it was. Costs reading the block's originals and coding them, which on a GPU is enqueued on the cache's stream and not waited for.
 *
 * Threads: any, at any time; waits for other calls that move blocks.
 * Stream: none.
 * Capture: safe.
 * Errors: NULL_POINTER, INVALID_HANDLE, UNKNOWN_SEQUENCE, BUSY_SEQUENCE, LAYER, LEVEL (no such level, a block that is not full, or one that no scales
 * hold), CAPACITY (of that level's pages), INVALID_ARGUMENT (heads have levels of their own), SWAPPED_OUT, BUSY_STEP (on a GPU, while a step is open), OUT_OF_MEMORY, DEVICE, POISONED. Nothing changed: the block has the level that it had.
 */
certkv_status certkv_sequence_change_level(struct certkv_cache *cache,
                                           certkv_sequence sequence,
                                           uint32_t layer,
                                           uint64_t block,
                                           uint32_t level);

/**
 * As certkv_sequence_level of one KV head, by its number in the model: where `config->levels_by_head` is 1, and of a block's one level where it is not.
 *
 * Threads: any, at any time.
 * Stream: none.
 * Capture: safe.
 * Errors: as certkv_sequence_level, and SHAPE (no such head). `*level` is unchanged then.
 */
certkv_status certkv_sequence_head_level(const struct certkv_cache *cache,
                                         certkv_sequence sequence,
                                         uint32_t layer,
                                         uint32_t kv_head,
                                         uint64_t block,
                                         uint32_t *level);

/**
 * As certkv_sequence_change_level of one KV head, by its number in the model: of that head alone where `config->levels_by_head` is 1, and of the whole
 * block where it is not.
 *
 * Threads: any, at any time; waits for other calls that move blocks.
 * Stream: none.
 * Capture: safe.
 * Errors: as certkv_sequence_change_level, and SHAPE (no such head). Nothing changed: it has the level that it had.
 */
certkv_status certkv_sequence_change_head_level(struct certkv_cache *cache,
                                                certkv_sequence sequence,
                                                uint32_t layer,
                                                uint32_t kv_head,
                                                uint64_t block,
                                                uint32_t level);

/**
 * Gives full blocks of a sequence other levels, all at once, as certkv_sequence_plan_levels fills `levels`: layer by layer, of each KV head of a layer where
 * `config->levels_by_head` is 1, the level of each of its first blocks, as many everywhere. Blocks behind those stay as they are. Those that fall go first, as they leave pages
 * to those that rise; a block for which there is no page, or that a level cannot hold, stays as it is and is counted. `controlled` is NULL or has its `struct_size` set, and is filled: blocks that
 * have another level now, and those that do not although another was asked for. Costs what certkv_sequence_change_level costs for each of them; on a GPU a fifth of that, as
 * blocks are coded together.
 *
 * Threads: any, at any time; waits for other calls that move blocks.
 * Stream: none.
 * Capture: safe.
 * Errors: NULL_POINTER, MISALIGNED, STRUCT_SIZE, OVERLAP, INVALID_HANDLE, UNKNOWN_SEQUENCE, BUSY_SEQUENCE, SHAPE (`n_levels` is no whole number of lists), LEVEL (no such level, or more blocks
 * than are full), SWAPPED_OUT, BUSY_STEP (on a GPU, while a step is open), OUT_OF_MEMORY, DEVICE, POISONED. Nothing changed.
 */
certkv_status certkv_sequence_set_levels(struct certkv_cache *cache,
                                         certkv_sequence sequence,
                                         const uint32_t *levels,
                                         uint64_t n_levels,
                                         struct certkv_controlled *controlled);

/**
 * Fills `control` with the parameters of the source, and no budget: `bytes_per_token` is 0, which certkv_cache_create refuses. `struct_size` is the
 * caller's sizeof(certkv_control); nothing is written beyond it.
 *
 * Threads: any, at any time.
 * Stream: none.
 * Capture: safe.
 * Errors: NULL_POINTER, MISALIGNED, STRUCT_SIZE; `control` is unchanged then.
 */
certkv_status certkv_control_init(struct certkv_control *control,
                                  uint32_t struct_size);

/**
 * Lets who decides on levels (`config->control`, `retention` or `bound_budget`) look at what the last step said of each block of a sequence, and change
 * levels where that is decided. To be called between steps, after each of them or fewer: steps in between are not seen. Fills `controlled`, whose
 * `struct_size` must be set; it may be NULL. Where nobody decides nothing happens, and every count is 0. A block that cannot have the level that was
 * decided keeps its own, and is counted. On a GPU to be called behind a step that the sequence has been in with one token, before the next begins: nothing is seen of others; it
 * waits for the device.
 *
 * Threads: any, at any time; waits for other calls that move blocks.
 * Stream: none.
 * Capture: safe.
 * Errors: NULL_POINTER (`cache`), MISALIGNED, STRUCT_SIZE, INVALID_HANDLE, UNKNOWN_SEQUENCE, BUSY_SEQUENCE (a step holds it), SWAPPED_OUT,
 * BUSY_STEP (on a GPU, while a step is open), OUT_OF_MEMORY, DEVICE, POISONED. Nothing changed.
 */
certkv_status certkv_sequence_control(struct certkv_cache *cache,
                                      certkv_sequence sequence,
                                      struct certkv_controlled *controlled);

/**
 * As certkv_sequence_control, and then tells `log` of each layer, in their order: what whoever decides was told, and what they decided. `user` is
 * handed to it. It is not called where nobody decides, nor when the call fails. Entries are made anew in each call.
 *
 * Threads: any, at any time; waits for other calls that move blocks.
 * Stream: none.
 * Capture: safe.
 * Errors: as certkv_sequence_control, and NULL_POINTER (`log`). Nothing changed.
 */
certkv_status certkv_sequence_control_logged(struct certkv_cache *cache,
                                             certkv_sequence sequence,
                                             certkv_control_log_callback log,
                                             void *user,
                                             struct certkv_controlled *controlled);

/**
 * Fills `retention` with the defaults, and no budget: `bytes_per_token` is 0, which certkv_cache_create refuses. `struct_size` is the caller's
 * sizeof(certkv_retention); nothing is written beyond it.
 *
 * Threads: any, at any time.
 * Stream: none.
 * Capture: safe.
 * Errors: NULL_POINTER, MISALIGNED, STRUCT_SIZE; `retention` is unchanged then.
 */
certkv_status certkv_retention_init(struct certkv_retention *retention,
                                    uint32_t struct_size);

/**
 * Fills `budget` with the defaults, and no bytes: `bytes_per_token` is 0, which certkv_cache_create refuses. `struct_size` is the caller's
 * sizeof(certkv_bound_budget); nothing is written beyond it.
 *
 * Threads: any, at any time.
 * Stream: none.
 * Capture: safe.
 * Errors: NULL_POINTER, MISALIGNED, STRUCT_SIZE; `budget` is unchanged then.
 */
certkv_status certkv_bound_budget_init(struct certkv_bound_budget *budget,
                                       uint32_t struct_size);

/**
 * Levels that the full blocks of a sequence could have: the fewest bytes, at most `bytes` (UINT64_MAX for no limit) in all layers together, at which the
 * bound of every query head of the last step's outputs would be at most `epsilon` of the output's norm, read from codes alone. Where `bytes` are too
 * few, what loses least within them, and how many are lacking. Nothing moves: certkv_sequence_set_levels does that, or certkv_sequence_control
 * under `config->bound_budget`. `levels` is filled layer by layer with the level of each block, if it has room (`n_levels`, at least layers x
 * blocks); with `levels` NULL and 0 `n_levels` only `plan` is, whose `struct_size` must be set. Blocks that are new are coded once at every level. On a GPU
 * behind a step that the sequence has been in with one token, before the next begins; it waits for the device.
 *
 * Threads: any, at any time; waits for other calls that move blocks.
 * Stream: none.
 * Capture: safe.
 * Errors: NULL_POINTER, MISALIGNED, STRUCT_SIZE, INVALID_ARGUMENT (`epsilon`; a cache where neither retention nor the bound's budget decides, nor
 * SmartKV with a gate), SHAPE (`n_levels`), INVALID_HANDLE, UNKNOWN_SEQUENCE, BUSY_SEQUENCE (a step holds it), SWAPPED_OUT, BUSY_STEP (on a GPU, while
 * a step is open), OUT_OF_MEMORY, DEVICE, POISONED. Nothing changed, and neither `levels` nor `plan`.
 */
certkv_status certkv_sequence_plan_levels(struct certkv_cache *cache,
                                          certkv_sequence sequence,
                                          double epsilon,
                                          uint64_t bytes,
                                          uint32_t *levels,
                                          uint64_t n_levels,
                                          struct certkv_level_plan *plan);

/**
 * Reads fixed scales from a file of `certkv calibrate --scales`. `path` is UTF-8, ends with a 0 byte and has at most 4095 others. `model`: 32 bytes,
 * the digest of the model whose keys and values these will be, which the file has to name; NULL for that of any model. Both are borrowed during the
 * call. `*scales` is filled; the caller ends it with certkv_scales_destroy.
 *
 * Threads: any, at any time.
 * Stream: none.
 * Capture: safe.
 * Errors: NULL_POINTER, MISALIGNED, INVALID_ARGUMENT (`path`), FILE (it could not be read), FILE_REFUSED (it holds no scales, or those of another
 * version or model), FILE_DAMAGED (it is cut, longer, or not what was written). `*scales` is NULL if it can be written.
 */
certkv_status certkv_scales_open(const char *path,
                                 const uint8_t *model,
                                 struct certkv_scales **scales);

/**
 * As certkv_scales_open from the `n_bytes` bytes of such a file, borrowed during the call.
 *
 * Threads: any, at any time.
 * Stream: none.
 * Capture: safe.
 * Errors: NULL_POINTER, MISALIGNED, INVALID_ARGUMENT (`bytes` beyond memory), FILE_REFUSED (no scales, or those of another version or model),
 * FILE_DAMAGED (cut, longer, or not what was written). `*scales` is NULL if it can be written.
 */
certkv_status certkv_scales_read(const void *bytes,
                                 uint64_t n_bytes,
                                 const uint8_t *model,
                                 struct certkv_scales **scales);

/**
 * Fills `*info`, whose `struct_size` must be set, with what scales say of themselves.
 *
 * Threads: any, at any time.
 * Stream: none.
 * Capture: safe.
 * Errors: NULL_POINTER, MISALIGNED, STRUCT_SIZE, INVALID_HANDLE; `*info` is unchanged then.
 */
certkv_status certkv_scales_describe(const struct certkv_scales *scales,
                                     struct certkv_scales_info *info);

/**
 * Ends a handle. NULL is allowed. Caches that were made with it keep what they need.
 *
 * Threads: any, at any time.
 * Stream: none.
 * Capture: safe.
 * Errors: INVALID_HANDLE, for one that is destroyed already; nothing happened then.
 */
certkv_status certkv_scales_destroy(struct certkv_scales *scales);

/**
 * Fills `config` with the defaults. `struct_size` is the caller's sizeof(certkv_config); nothing is written beyond it.
 *
 * Threads: any, at any time.
 * Stream: none.
 * Capture: safe.
 * Errors: NULL_POINTER, MISALIGNED, STRUCT_SIZE; `config` is unchanged then.
 */
certkv_status certkv_config_init(struct certkv_config *config,
                                 uint32_t struct_size);

/**
 * Fills `capabilities`, whose `struct_size` must be set. That there is no GPU is no error.
 *
 * Threads: any, at any time.
 * Stream: none.
 * Capture: not allowed: the driver may be started.
 * Errors: NULL_POINTER, MISALIGNED, STRUCT_SIZE; `capabilities` is unchanged then.
 */
certkv_status certkv_capabilities_describe(struct certkv_capabilities *capabilities);

/**
 * Fills `info`, whose `struct_size` must be set, with what the GPU of a `config->device` is: CERTKV_DEVICE_CUDA, CERTKV_DEVICE_CUDA + 1 and so on. Opens it,
 * which takes 0.1 s the first time; the calling thread's current CUDA context stays what it is.
 *
 * Threads: any, at any time.
 * Stream: none.
 * Capture: not allowed.
 * Errors: NULL_POINTER, MISALIGNED, STRUCT_SIZE, INVALID_ARGUMENT (`device` is the host), DEVICE (no driver, no such GPU, one older than any that there are
 * kernels for). `info` is unchanged then.
 */
certkv_status certkv_gpu_describe(uint32_t device,
                                  struct certkv_gpu_info *info);

/**
 * Finds or compiles every kernel that a cache of this configuration runs on its GPU, and loads each once, before anybody waits for it: with `config->kernels`,
 * in which compiled code is kept, certkv_cache_create then compiles nothing, in this process or another. Takes no memory that stays; milliseconds
 * where nothing is compiled, else seconds to minutes. Of a configuration for the host it checks what certkv_cache_create checks before it takes memory. `config` is
 * borrowed during the call. Fills `prepared`, whose `struct_size` must be set; it may be NULL.
 *
 * Threads: any, at any time.
 * Stream: none.
 * Capture: not allowed.
 * Errors: as certkv_cache_create, but BUDGET and OUT_OF_MEMORY. Nothing changed; what was compiled stays kept.
 */
certkv_status certkv_prepare(const struct certkv_config *config,
                             struct certkv_prepared *prepared);

/**
 * Makes a cache and takes all its memory (on the host, mapped when first touched). `*cache` is filled; the caller ends it with
 * certkv_cache_destroy. `config` is borrowed during the call. On a GPU (`config->device`) its kernels are loaded, or compiled
 * first, which takes seconds; the calling thread's current CUDA context stays what it is.
 *
 * Threads: any, at any time.
 * Stream: none.
 * Capture: not allowed.
 * Errors: NULL_POINTER, MISALIGNED, STRUCT_SIZE, RESERVED, INVALID_ARGUMENT, INVALID_HANDLE (of `config->spill_store`,
 * `config->calibration` or `config->scales`), UNSUPPORTED, FORMAT, FILE_REFUSED (a calibration or scales of another geometry), POLICY, BUDGET, OUT_OF_MEMORY, DEVICE (also: no driver, no such GPU, no kernels for it). Nothing is held then, and `*cache` is NULL if it can be written.
 */
certkv_status certkv_cache_create(const struct certkv_config *config,
                                  struct certkv_cache **cache);

/**
 * Ends a cache and its sequences. NULL is allowed. Calls and steps under way keep its memory until they are over. What it has in
 * `config->spill_store` is deleted, which waits for the store, at most as long as `config->spill_deadline_ms` says and once more for its threads.
 *
 * Threads: any, at any time.
 * Stream: none.
 * Capture: not allowed.
 * Errors: INVALID_HANDLE, for a cache that is destroyed already; nothing happened then.
 */
certkv_status certkv_cache_destroy(struct certkv_cache *cache);

/**
 * Makes an empty sequence; `*sequence` is filled.
 *
 * Threads: any, at any time.
 * Stream: none.
 * Capture: not allowed.
 * Errors: NULL_POINTER, MISALIGNED, INVALID_HANDLE, TOO_MANY_SEQUENCES, OUT_OF_MEMORY, POISONED; on a GPU DEVICE, and BUSY_STEP
 * while a step is open, as of every call on its sequences. Nothing changed, and `*sequence` is CERTKV_NO_SEQUENCE if it can be written.
 */
certkv_status certkv_sequence_create(struct certkv_cache *cache,
                                     certkv_sequence *sequence);

/**
 * Makes a sequence with the tokens of `parent`; `*fork` is filled. Full blocks are shared, an open block is copied.
 *
 * Threads: any, at any time.
 * Stream: none.
 * Capture: not allowed.
 * Errors: as certkv_sequence_create; UNKNOWN_SEQUENCE, BUSY_SEQUENCE, SWAPPED_OUT, CAPACITY, DEVICE. Nothing changed, and `*fork`
 * is CERTKV_NO_SEQUENCE if it can be written.
 */
certkv_status certkv_sequence_fork(struct certkv_cache *cache,
                                   certkv_sequence parent,
                                   certkv_sequence *fork);

/**
 * Cuts a sequence to its first `length` tokens, also one that is swapped out.
 *
 * Threads: any, at any time.
 * Stream: none.
 * Capture: not allowed.
 * Errors: NULL_POINTER, INVALID_HANDLE, UNKNOWN_SEQUENCE, BUSY_SEQUENCE, LENGTH, CAPACITY, POISONED; of originals of the block that is cut and
 * that are spilled, STORE_FAILED, STORE_LATE, STORE_NOT_FOUND, STORE_DAMAGED: nothing changed.
 * DEVICE, OUT_OF_MEMORY: the sequence may have been cut to whole blocks instead; certkv_sequence_length says.
 */
certkv_status certkv_sequence_truncate(struct certkv_cache *cache,
                                       certkv_sequence sequence,
                                       uint64_t length);

/**
 * Ends a sequence. Pages that it shared stay with the others.
 *
 * Threads: any, at any time.
 * Stream: none.
 * Capture: not allowed.
 * Errors: NULL_POINTER, INVALID_HANDLE, UNKNOWN_SEQUENCE, BUSY_SEQUENCE, POISONED. Nothing changed.
 */
certkv_status certkv_sequence_release(struct certkv_cache *cache, certkv_sequence sequence);

/**
 * Tokens of a sequence, without those of a step that is not finished; `*length` is filled.
 *
 * Threads: any, at any time.
 * Stream: none.
 * Capture: not allowed.
 * Errors: NULL_POINTER, MISALIGNED, INVALID_HANDLE, UNKNOWN_SEQUENCE, BUSY_SEQUENCE, POISONED. `*length` is unchanged.
 */
certkv_status certkv_sequence_length(const struct certkv_cache *cache,
                                     certkv_sequence sequence,
                                     uint64_t *length);

/**
 * Reads originals of a sequence back from `config->spill_store`, ahead of its next step, which waits for the store only for what else it needs. On the host those that
 * it reads first if it attends as the last one did, under CERTKV_POLICY_DENSE all; on a GPU all of the layers in which heads needed every block in the last step that
 * found some away (of every layer, before one has). As far as `config->spill_host_tokens` have room; they stay until others need it, so call it soon before the step. Does nothing without a store. `prefetched`, whose
 * `struct_size` must be set, is filled; it may be NULL.
 *
 * Threads: any, at any time; blocks while the store answers, at most `config->spill_deadline_ms` a layer. On the host steps of other sequences go on meanwhile.
 * Stream: on a GPU the cache's own; blocks until its work is done where something is missing.
 * Capture: not allowed.
 * Errors: MISALIGNED, STRUCT_SIZE, NULL_POINTER (`cache`), INVALID_HANDLE, UNKNOWN_SEQUENCE, BUSY_SEQUENCE, STORE_FAILED, STORE_LATE, STORE_NOT_FOUND, STORE_DAMAGED, CAPACITY (of host
 * memory: too much is on its way), DEVICE, OUT_OF_MEMORY, POISONED; on a GPU BUSY_STEP while a step is open. What came stays; `prefetched` is unchanged, and the
 * sequence may be stepped.
 */
certkv_status certkv_sequence_prefetch(struct certkv_cache *cache,
                                       certkv_sequence sequence,
                                       struct certkv_prefetched *prefetched);

/**
 * Takes a sequence's codes out of device memory into room that `config->swap_tokens` gave them, so that others find pages. Until
 * certkv_sequence_swap_in it has its tokens and may be cut, saved and released, and neither stepped nor forked nor published. Pages that forks
 * or cached prefixes share stay with them. `*bytes` is filled with the bytes moved; `bytes` may be NULL.
 *
 * Threads: any, at any time; on the host other calls go on between the sequence's blocks, on a GPU they wait.
 * Stream: on a GPU the cache's own; blocks until its work is done.
 * Capture: not allowed.
 * Errors: MISALIGNED, NULL_POINTER (`cache`), INVALID_HANDLE, UNKNOWN_SEQUENCE, BUSY_SEQUENCE, SWAPPED_OUT (already), CAPACITY (of
 * `config->swap_tokens`), DAMAGED, DEVICE, OUT_OF_MEMORY, POISONED; on a GPU BUSY_STEP while a step is open. The sequence is where it
 * was, and `*bytes` is unchanged.
 */
certkv_status certkv_sequence_swap_out(struct certkv_cache *cache,
                                       certkv_sequence sequence,
                                       uint64_t *bytes);

/**
 * Brings a sequence back. On the host its next outputs and certificates are those that it would have had without leaving, on a GPU too
 * for formats with residual planes; others choose anew there what is read exactly, under the same tolerance. `*bytes` is filled with the
 * bytes moved; `bytes` may be NULL.
 *
 * Threads: as certkv_sequence_swap_out.
 * Stream: on a GPU the cache's own; blocks until its work is done.
 * Capture: not allowed.
 * Errors: MISALIGNED, NULL_POINTER (`cache`), INVALID_HANDLE, UNKNOWN_SEQUENCE, BUSY_SEQUENCE, NOT_SWAPPED_OUT, CAPACITY (cached prefixes
 * have given way by then), DAMAGED (the codes are not what left), DEVICE, OUT_OF_MEMORY, POISONED; on a GPU BUSY_STEP while a step is open.
 * The sequence stays swapped out, and `*bytes` is unchanged.
 */
certkv_status certkv_sequence_swap_in(struct certkv_cache *cache,
                                      certkv_sequence sequence,
                                      uint64_t *bytes);

/**
 * Whether a sequence is swapped out; `*swapped_out` is filled with 1 or 0.
 *
 * Threads: any, at any time.
 * Stream: none.
 * Capture: not allowed.
 * Errors: NULL_POINTER, MISALIGNED, INVALID_HANDLE, UNKNOWN_SEQUENCE, BUSY_SEQUENCE, POISONED; on a GPU BUSY_STEP while a step is open.
 * `*swapped_out` is unchanged.
 */
certkv_status certkv_sequence_is_swapped_out(const struct certkv_cache *cache,
                                             certkv_sequence sequence,
                                             uint32_t *swapped_out);

/**
 * Writes a sequence to a file that appears under its name when it is whole and on the disk, in place of one that was there. The sequence
 * is unchanged; one that is swapped out is saved as any other. `path` is UTF-8, ends with a 0 byte and has at most 4095 others; `scope` and
 * `path` are borrowed during the call. `*bytes` is filled with the bytes written; `bytes` may be NULL.
 *
 * Threads: any, at any time; the sequence is busy meanwhile. On the host other calls go on between its blocks, on a GPU they wait.
 * Stream: on a GPU the cache's own; blocks until its work is done.
 * Capture: not allowed.
 * Errors: NULL_POINTER, MISALIGNED, STRUCT_SIZE, RESERVED, INVALID_ARGUMENT, INVALID_HANDLE, UNKNOWN_SEQUENCE, BUSY_SEQUENCE, FILE, DEVICE,
 * OUT_OF_MEMORY, POISONED; of originals that are spilled, STORE_FAILED, STORE_LATE, STORE_NOT_FOUND, STORE_DAMAGED, CAPACITY; on a GPU
 * BUSY_STEP while a step is open, NOT_FINITE and OVERFLOW (a row from device memory that was refused, see certkv_step_append). A file of that name is as it was, and
 * `*bytes` is unchanged.
 */
certkv_status certkv_sequence_save(struct certkv_cache *cache,
                                   certkv_sequence sequence,
                                   const struct certkv_save_scope *scope,
                                   const char *path,
                                   uint64_t *bytes);

/**
 * Makes a sequence from a file that certkv_sequence_save wrote: in this cache, or in another one of the same geometry and formats on the
 * same kind of machine (codes lie in another order on a GPU). `*sequence` is filled. What the sequence would have returned next, it
 * returns; on a GPU formats without residual planes choose anew what is read exactly, under the same tolerance. `scope` and `path`: as
 * certkv_sequence_save.
 *
 * Threads: any, at any time; on a GPU other calls wait.
 * Stream: on a GPU the cache's own; blocks until its work is done.
 * Capture: not allowed.
 * Errors: NULL_POINTER, MISALIGNED, STRUCT_SIZE, RESERVED, INVALID_ARGUMENT, INVALID_HANDLE, FILE, FILE_REFUSED, FILE_DAMAGED (also: another
 * key), TOO_MANY_SEQUENCES, LENGTH, CAPACITY, DEVICE, OUT_OF_MEMORY, POISONED; on a GPU BUSY_STEP while a step is open. Nothing changed, and
 * `*sequence` is CERTKV_NO_SEQUENCE if it can be written.
 */
certkv_status certkv_sequence_restore(struct certkv_cache *cache,
                                      const struct certkv_save_scope *scope,
                                      const char *path,
                                      certkv_sequence *sequence);

/**
 * Caches the full blocks of a sequence, so that others may continue from them (certkv_sequence_create_from), now and after it was released.
 * `tokens` are the numbers of the tokens that it holds, from its first on: they may be fewer, and those behind its end are ignored. Calling it
 * again as the sequence grows adds what is new. Of layers with a window (`config->windows`) there is what the next query sees: a prompt is found
 * again at lengths at which a sequence was published, so publish it when its prompt is in and at its end. `scope` and `tokens` are borrowed during the call. `*published`, whose `struct_size` must be
 * set, is filled; `published` may be NULL.
 *
 * Threads: any, at any time.
 * Stream: on a GPU the cache's own; blocks until its work is done if there is a full block.
 * Capture: not allowed.
 * Errors: NULL_POINTER, MISALIGNED, STRUCT_SIZE, INVALID_ARGUMENT, LENGTH (`n_tokens` beyond 2^31), INVALID_HANDLE, UNSUPPORTED (the cache keeps
 * no prefixes), UNKNOWN_SEQUENCE, BUSY_SEQUENCE, SWAPPED_OUT, DEVICE, OUT_OF_MEMORY, POISONED; on a GPU BUSY_STEP while a step is open, NOT_FINITE and
 * OVERFLOW (a row from device memory that was refused, see certkv_step_append). Nothing was cached, and `*published` is unchanged.
 */
certkv_status certkv_cache_publish(struct certkv_cache *cache,
                                   certkv_sequence sequence,
                                   const struct certkv_prefix_scope *scope,
                                   const uint32_t *tokens,
                                   uint64_t n_tokens,
                                   struct certkv_publication *published);

/**
 * Makes a sequence that holds the longest cached prefix of the prompt `tokens`; the caller appends what follows. Its pages are shared, none is
 * copied. `*sequence` is filled, and `*found` with the tokens that it holds, 0 if nothing was cached; `found` may be NULL. A prompt that is
 * cached whole is found whole: who needs the last token's output gives the prompt without it. `scope` and `tokens` are borrowed during the
 * call.
 *
 * Threads: any, at any time.
 * Stream: none; on a GPU the cache's own, not waited for.
 * Capture: not allowed.
 * Errors: NULL_POINTER, MISALIGNED, STRUCT_SIZE, INVALID_ARGUMENT, LENGTH (`n_tokens` beyond 2^31), INVALID_HANDLE, UNSUPPORTED (the cache keeps
 * no prefixes), TOO_MANY_SEQUENCES, DEVICE, OUT_OF_MEMORY, POISONED; on a GPU BUSY_STEP while a step is open. Nothing changed, `*found` neither,
 * and `*sequence` is CERTKV_NO_SEQUENCE if it can be written.
 */
certkv_status certkv_sequence_create_from(struct certkv_cache *cache,
                                          const struct certkv_prefix_scope *scope,
                                          const uint32_t *tokens,
                                          uint64_t n_tokens,
                                          certkv_sequence *sequence,
                                          uint64_t *found);

/**
 * Forgets up to `units` cached units that no sequence uses, UINT64_MAX for all of them; `*evicted` is filled with how many, and `evicted`
 * may be NULL. The cache does it by itself where pages run out; a server that wants pages free ahead of time, or has new weights, calls it.
 *
 * Threads: any, at any time.
 * Stream: none.
 * Capture: not allowed.
 * Errors: MISALIGNED, NULL_POINTER (`cache`), INVALID_HANDLE, UNSUPPORTED (the cache keeps no prefixes), DEVICE, POISONED; on a GPU BUSY_STEP
 * while a step is open. `*evicted` is unchanged.
 */
certkv_status certkv_cache_evict_prefixes(struct certkv_cache *cache,
                                          uint64_t units,
                                          uint64_t *evicted);

/**
 * Puts cached units of the prompt `tokens` into a store, from unit number `first_unit` on: a unit is a block of the largest size of the cache's
 * formats, 64 tokens by default. What is under their names is replaced. After certkv_cache_publish, units before
 * `(published.cached - published.added)` tokens went there with an earlier call. Names depend on `config->prefix_secret`: a cache that is to find
 * these units has the same. `scope` and `tokens` as certkv_cache_publish. `timeout_ms`: how long the call waits for the store in all; 0 for 10
 * seconds. `*exported` is filled with the units that are in the store by this call; `exported` may be NULL.
 *
 * Threads: any, at any time; the store is called on threads of the library. On the host other calls go on between blocks, on a GPU they wait while
 * units are copied, and not while the store has them.
 * Stream: on a GPU the cache's own; blocks until its work is done.
 * Capture: not allowed.
 * Errors: NULL_POINTER, MISALIGNED, STRUCT_SIZE, INVALID_ARGUMENT (with `config->levels`, too), LENGTH (`n_tokens` beyond 2^31), INVALID_HANDLE,
 * UNSUPPORTED (the cache keeps
 * no prefixes), STORE_FAILED, STORE_LATE, STORE_FULL, DAMAGED, DEVICE, OUT_OF_MEMORY, POISONED; on a GPU BUSY_STEP while a step is open; where
 * originals are spilled what reading them can say (certkv_sequence_save), too. The cache is unchanged and so is `*exported`; units may be in the
 * store, each whole.
 */
certkv_status certkv_cache_export_prefix(struct certkv_cache *cache,
                                         struct certkv_store *store,
                                         const struct certkv_prefix_scope *scope,
                                         const uint32_t *tokens,
                                         uint64_t n_tokens,
                                         uint64_t first_unit,
                                         uint32_t timeout_ms,
                                         uint64_t *exported);

/**
 * Says what of a prompt is not cached: `*missing` is filled with its full units that the cache lacks, with those that lack pages of windows which
 * the next query sees, and `*stored` with how many of these the store
 * has, from the first of them on without a gap: so many certkv_cache_import_prefix will find, unless one is damaged. `missing` and `stored` may be
 * NULL; `store` too if `stored` is. Other arguments as certkv_cache_export_prefix.
 *
 * Threads: as certkv_cache_export_prefix.
 * Stream: none.
 * Capture: not allowed.
 * Errors: NULL_POINTER, MISALIGNED, STRUCT_SIZE, INVALID_ARGUMENT (with `config->levels`, too), LENGTH (`n_tokens` beyond 2^31), INVALID_HANDLE,
 * UNSUPPORTED (the cache keeps
 * no prefixes), STORE_FAILED, STORE_LATE, OUT_OF_MEMORY, POISONED; on a GPU BUSY_STEP while a step is open. Nothing changed, neither `*missing` nor
 * `*stored`.
 */
certkv_status certkv_cache_missing_prefix(struct certkv_cache *cache,
                                          struct certkv_store *store,
                                          const struct certkv_prefix_scope *scope,
                                          const uint32_t *tokens,
                                          uint64_t n_tokens,
                                          uint32_t timeout_ms,
                                          uint64_t *missing,
                                          uint64_t *stored);

/**
 * Caches units of a prompt that a store has and the cache lacks, up to the first that is in neither: certkv_sequence_create_from finds them then.
 * Outputs and certificates over them are those of the cache that wrote them. Units come from the kind of machine that wrote them (codes lie in
 * another order on a GPU). One for which there is no room, or whose codes do not fit the unit before it, ends it, and that is no error. `*cached` is
 * filled with the tokens of the prompt that are cached now; `cached` may be NULL. Other arguments as certkv_cache_export_prefix.
 *
 * Threads: as certkv_cache_export_prefix.
 * Stream: on a GPU the cache's own; blocks until its work is done.
 * Capture: not allowed.
 * Errors: NULL_POINTER, MISALIGNED, STRUCT_SIZE, INVALID_ARGUMENT (with `config->levels`, too), LENGTH (`n_tokens` beyond 2^31), INVALID_HANDLE,
 * UNSUPPORTED (the cache keeps
 * no prefixes), STORE_FAILED, STORE_LATE, STORE_DAMAGED, DEVICE, OUT_OF_MEMORY, POISONED; on a GPU BUSY_STEP while a step is open. Units before the
 * one that was not to be had may be cached; `*cached` is unchanged.
 */
certkv_status certkv_cache_import_prefix(struct certkv_cache *cache,
                                         struct certkv_store *store,
                                         const struct certkv_prefix_scope *scope,
                                         const uint32_t *tokens,
                                         uint64_t n_tokens,
                                         uint32_t timeout_ms,
                                         uint64_t *cached);

/**
 * Copies events of cached prefixes from number `from` on, or from the oldest that is left, to `events`, as many as there are and have room, and
 * fills `*read`, whose `struct_size` must be set. `tokens` gets the tokens of each, `read->unit_tokens` for event 0, as many for event 1 and so on;
 * only those of CERTKV_EVENT_STORED have any, for the others there are zeros. Then there are no more events than `n_tokens` has whole units;
 * `tokens` may be NULL with 0 `n_tokens` for none. With 0 `n_events` nothing is copied, and `*read` says what there is. Reading removes
 * nothing: any number of readers ask for any number.
 *
 * A router begins with certkv_cache_cached_prefixes, then calls this with the last `read->next` from time to time, and begins again if `read->lost`
 * is not 0. The cache keeps the latest `config->prefix_events` events.
 *
 * Threads: any, at any time, on a GPU also while a step is open; waits for nobody but other readers and who adds an event.
 * Stream: none.
 * Capture: safe.
 * Errors: NULL_POINTER, MISALIGNED, STRUCT_SIZE, OVERLAP, INVALID_ARGUMENT (an array beyond memory, or `from` beyond the next event: it is of another
 * cache), SHAPE (`n_tokens` is not 0 and less than a unit's), INVALID_HANDLE, UNSUPPORTED (the cache keeps no events), POISONED. Nothing changed.
 */
certkv_status certkv_cache_events(const struct certkv_cache *cache,
                                  uint64_t from,
                                  struct certkv_prefix_event *events,
                                  uint64_t n_events,
                                  uint32_t *tokens,
                                  uint64_t n_tokens,
                                  struct certkv_events_read *read);

/**
 * Copies all units that are cached now to `events`, each as if it were stored now, a unit before those that follow it, with their tokens as
 * certkv_cache_events; `read->read` says how many, and `read->next`, which is their number, which event comes after this moment. For a router that
 * begins, or that lost events. `config->prefix_units` events have room always. With 0 `n_events` nothing is copied, and `*read` says what
 * there is.
 *
 * Threads: any, at any time. Look-ups wait while all units are copied.
 * Stream: none.
 * Capture: safe.
 * Errors: NULL_POINTER, MISALIGNED, STRUCT_SIZE, OVERLAP, INVALID_ARGUMENT, INVALID_HANDLE, UNSUPPORTED (the cache keeps no events), OUT_OF_MEMORY,
 * POISONED; on a GPU BUSY_STEP while a step is open: nothing changed. SHAPE (too little room, in `events` or in `tokens`): `*read` says how many there
 * are, `events` and `tokens` are unchanged.
 */
certkv_status certkv_cache_cached_prefixes(const struct certkv_cache *cache,
                                           struct certkv_prefix_event *events,
                                           uint64_t n_events,
                                           uint32_t *tokens,
                                           uint64_t n_tokens,
                                           struct certkv_events_read *read);

/**
 * Fills `*key` with what events call the last full unit of the prompt `tokens`, whether it is cached or not; of a prompt without a full unit, with
 * what they call the scope. So a router names its own prompts, and a host its scopes. `scope` and `tokens` are borrowed during the call.
 *
 * Threads: any, at any time.
 * Stream: none.
 * Capture: safe.
 * Errors: NULL_POINTER, MISALIGNED, STRUCT_SIZE, INVALID_ARGUMENT, LENGTH (`n_tokens` beyond 2^31), INVALID_HANDLE, UNSUPPORTED (the cache keeps no
 * prefixes), POISONED; on a GPU BUSY_STEP while a step is open. Nothing changed.
 */
certkv_status certkv_cache_prefix_key(const struct certkv_cache *cache,
                                      const struct certkv_prefix_scope *scope,
                                      const uint32_t *tokens,
                                      uint64_t n_tokens,
                                      struct certkv_store_key *key);

/**
 * Copies events of blocks that moved from number `from` on, or from the oldest that is left, to `events`, as many as there are and have room, and
 * fills `*read`, whose `struct_size` must be set; `read->unit_tokens` is 0. With 0 `n_events` nothing is copied, and `*read` says what there is. Reading
 * removes nothing: any number of readers ask for any number. The cache keeps the latest `config->move_events` events.
 *
 * Threads: any, at any time; waits for nobody but other readers and who adds an event.
 * Stream: none.
 * Capture: safe.
 * Errors: NULL_POINTER, MISALIGNED, STRUCT_SIZE, OVERLAP, INVALID_ARGUMENT (an array beyond memory, or `from` beyond the next event: it is of another
 * cache), INVALID_HANDLE, UNSUPPORTED (the cache keeps no moves), POISONED. Nothing changed.
 */
certkv_status certkv_cache_moves(const struct certkv_cache *cache,
                                 uint64_t from,
                                 struct certkv_move_event *events,
                                 uint64_t n_events,
                                 struct certkv_events_read *read);

/**
 * Compares the next pages of codes with their seals, `pages` of them at least as blocks are looked at whole, those of sequences on the device and
 * swapped out and those of cached prefixes, and codes those again from their originals that are not what was sealed: what is mended has the bits that it had. On a GPU pages have no
 * seals while they lie there: the first call that looks at one remembers its digest, later ones compare it, and what differs is mended if coding it again
 * gives what was seen first; the first of all takes 16 bytes of host memory a page and layer. With 1 for
 * `originals` (0 otherwise) originals in host memory are compared too, which costs what coding costs. Calls go on where the last one ended, each page once a round. A server
 * calls it between steps to find out of memory that somebody else wrote to, or that rotted. The first `n_damages` pages that could not be mended are
 * described; `*scrubbed`, whose `struct_size` must be set, is filled.
 *
 * Threads: any, at any time; other calls on the cache wait until it is done, half a clock for each byte of codes. Sequences that a step holds are passed over.
 * Stream: on a GPU the cache's own; blocks until its work is done.
 * Capture: not allowed.
 * Errors: NULL_POINTER, MISALIGNED, STRUCT_SIZE, OVERLAP, INVALID_ARGUMENT (an array beyond memory, another number for `originals`), INVALID_HANDLE, BUDGET (the digests'), OUT_OF_MEMORY,
 * DEVICE, POISONED; on a GPU BUSY_STEP while a step is open. What was mended by then is; `damages` and `*scrubbed` are unchanged.
 */
certkv_status certkv_cache_scrub(struct certkv_cache *cache,
                                 uint64_t pages,
                                 uint32_t originals,
                                 struct certkv_damage *damages,
                                 uint64_t n_damages,
                                 struct certkv_scrubbed *scrubbed);

/**
 * Counts the bytes that are not zero in memory that nobody holds: in free pages of all kinds, and free scratch. With `config->erase` that is 0, but for what was given up and is
 * still read. Reads all of it: for audits and tests.
 *
 * Threads: any, at any time; other calls on the cache wait until it is done.
 * Stream: on a GPU the cache's own; blocks until its work is done.
 * Capture: not allowed.
 * Errors: NULL_POINTER, MISALIGNED, INVALID_HANDLE, DEVICE, OUT_OF_MEMORY, POISONED; on a GPU BUSY_STEP while a step is open. `*bytes` is unchanged.
 */
certkv_status certkv_cache_residue(struct certkv_cache *cache,
                                   uint64_t *bytes);

/**
 * Whether `tokens` more tokens of `sequence`, or of a new sequence where it is CERTKV_NO_SEQUENCE, would find their pages now; of a
 * sequence that is swapped out, with those of its return. Nothing is reserved: the answer is old as soon as another thread takes pages.
 * `admission`, whose `struct_size` must be set, is filled.
 *
 * Threads: any, at any time.
 * Stream: none.
 * Capture: not allowed.
 * Errors: NULL_POINTER, MISALIGNED, STRUCT_SIZE, INVALID_HANDLE, UNKNOWN_SEQUENCE, BUSY_SEQUENCE, LENGTH (no cache of this configuration
 * would have room), OUT_OF_MEMORY, POISONED; on a GPU BUSY_STEP while a step is open. `admission` is unchanged.
 */
certkv_status certkv_cache_admit(const struct certkv_cache *cache,
                                 certkv_sequence sequence,
                                 uint64_t tokens,
                                 struct certkv_admission *admission);

/**
 * Starts a step: reserves every page that the new tokens can need, or none. `chunks` is borrowed during the call; rows
 * of later calls are in its order. `*step` is filled; certkv_step_finish or certkv_step_abort ends it. The sequences
 * are busy until then.
 *
 * Threads: any, at any time.
 * Stream: none.
 * Capture: not allowed.
 * Errors: NULL_POINTER, MISALIGNED, INVALID_ARGUMENT, INVALID_HANDLE, SHAPE (no chunk, or one without tokens),
 * UNKNOWN_SEQUENCE, BUSY_SEQUENCE, SWAPPED_OUT, LENGTH, CAPACITY (also: `config->spill_store` took no originals to make room, or not in
 * time), OUT_OF_MEMORY, POISONED. Nothing changed, and `*step` is NULL if it can be written.
 */
certkv_status certkv_step_begin(struct certkv_cache *cache,
                                const struct certkv_chunk *chunks,
                                uint64_t n_chunks,
                                struct certkv_step **step);

/**
 * As certkv_step_begin with a policy of the step's own, from `options`, which is borrowed during the call: requests of one cache may have their own
 * tolerances, in steps of their own.
 *
 * Threads: any, at any time.
 * Stream: none.
 * Capture: not allowed.
 * Errors: as certkv_step_begin, and STRUCT_SIZE, POLICY (a tolerance out of range, or a policy that a GPU does not have). Nothing changed, and `*step`
 * is NULL if it can be written.
 */
certkv_status certkv_step_begin_with(struct certkv_cache *cache,
                                     const struct certkv_chunk *chunks,
                                     uint64_t n_chunks,
                                     const struct certkv_step_options *options,
                                     struct certkv_step **step);

/**
 * Writes the new tokens' keys (after RoPE) and values of one layer, `[tokens][kv_heads * head_dim]` each, `elements`
 * numbers in each buffer. Once per layer. They are rounded to the cache's 16-bit type. The buffers are borrowed during
 * the call. `dtype` is CERTKV_F32, CERTKV_F16 or CERTKV_BF16. With CERTKV_SPACE_DEVICE both are device memory, 16-byte aligned.
 * In a step of one token per sequence, and of drafts (`config->chunk_tokens`) beside such, they must stay as they are until the work is done, and nothing is waited for.
 * A row that is not finite, or that 16 bits do not hold, is refused then: zeros stand in its place, and results are NOT_FINITE or OVERFLOW, in this step and in all others of the
 * sequence, and of forks of it, until it is truncated to a length without that row, or the step is aborted. With another chunk the call waits; without `config->chunk_tokens` rows go by way of the host.
 *
 * Threads: one at a time per step.
 * Stream: host memory none; device memory the cache's own, see certkv_step_after_stream.
 * Capture: safe with device memory, see certkv_step_captured; host memory and certificates not allowed.
 * Errors: NULL_POINTER, MISALIGNED, INVALID_ARGUMENT, UNSUPPORTED, INVALID_HANDLE, BUSY_STEP, LAYER, SHAPE, ORDER,
 * NOT_FINITE, OVERFLOW, OUT_OF_MEMORY, POISONED: nothing was written. DEVICE: the layer counts as not appended and may
 * be appended again.
 */
certkv_status certkv_step_append(struct certkv_step *step,
                                 uint32_t layer,
                                 const void *keys,
                                 const void *values,
                                 uint64_t elements,
                                 certkv_dtype dtype,
                                 certkv_space space);

/**
 * Attention of the new tokens' queries (after RoPE) over everything up to and including themselves, for a layer that
 * was appended. `queries` is borrowed and `out` filled during the call: `[tokens][q_heads * head_dim]` f32 each,
 * `elements` numbers in each buffer. `certificates` is filled too, `[tokens][q_heads]`, or NULL with a count of 0. With
 * CERTKV_SPACE_DEVICE queries and out are device memory, 16-byte aligned, which does not overlap and must stay
 * until the work is done. In a step of one token per sequence, and of drafts (`config->chunk_tokens`) beside such, nothing is waited for but certificates, which are
 * host memory always and say what `out` is worth: certkv_step_certificates reads them later. With another chunk the call waits; without `config->chunk_tokens` they go by way of the host.
 *
 * Threads: one at a time per step.
 * Stream: host memory none; device memory the cache's own, see certkv_step_after_stream.
 * Capture: safe with device memory, see certkv_step_captured; host memory and certificates not allowed.
 * Errors: NULL_POINTER, MISALIGNED, OVERLAP, UNSUPPORTED, INVALID_HANDLE, BUSY_STEP, LAYER, SHAPE, ORDER, NOT_FINITE, OVERFLOW (on a GPU),
 * NO_VISIBLE_TOKEN, UNCERTIFIABLE, OUT_OF_MEMORY, DEVICE, PANIC, POISONED; of originals that it needs and that are spilled, STORE_FAILED,
 * STORE_LATE, STORE_NOT_FOUND, STORE_DAMAGED, CAPACITY (a later try may succeed). `out` is unchanged, and the step as it was.
 * The certificates are CERTKV_UNCERTIFIED, or unchanged if the step, their pointer or their count was refused, or if they overlap `queries` or `out`.
 */
certkv_status certkv_step_attend(struct certkv_step *step,
                                 uint32_t layer,
                                 const float *queries,
                                 float *out,
                                 uint64_t elements,
                                 struct certkv_certificate *certificates,
                                 uint64_t n_certificates,
                                 certkv_space space);

/**
 * Certificates of a layer that was attended in this step, on a GPU: `[tokens][q_heads]` are filled. Waits for them.
 *
 * Threads: one at a time per step.
 * Stream: the cache's own; blocks until its work so far is done.
 * Capture: not allowed.
 * Errors: NULL_POINTER, MISALIGNED, INVALID_HANDLE, BUSY_STEP, UNSUPPORTED (the cache is on the host), LAYER, SHAPE, ORDER,
 * NOT_FINITE and OVERFLOW (rows from device memory that were refused), UNCERTIFIABLE, DEVICE, POISONED. The certificates are
 * CERTKV_UNCERTIFIED, or unchanged if the step, their pointer or their count was refused.
 */
certkv_status certkv_step_certificates(struct certkv_step *step,
                                       uint32_t layer,
                                       struct certkv_certificate *certificates,
                                       uint64_t n_certificates);

/**
 * What the step enqueues from now on comes after what `stream` (a CUstream or cudaStream_t; NULL for the default stream) was
 * given so far. Nobody blocks.
 *
 * Threads: one at a time per step.
 * Stream: `stream` is only marked.
 * Capture: safe; a stream that records makes the other one record.
 * Errors: NULL_POINTER, INVALID_HANDLE, BUSY_STEP, UNSUPPORTED (the cache is on the host), DEVICE (also: a stream of another
 * context), POISONED. Nothing was ordered then.
 */
certkv_status certkv_step_after_stream(struct certkv_step *step,
                                       void *stream);

/**
 * What `stream` (as in certkv_step_after_stream) is given from now on comes after what the step enqueued so far. Nobody blocks.
 *
 * Threads: one at a time per step.
 * Stream: `stream` waits.
 * Capture: safe; a stream that records makes the other one record.
 * Errors: as certkv_step_after_stream.
 */
certkv_status certkv_step_before_stream(struct certkv_step *step,
                                        void *stream);

/**
 * Chooses what the next step reads exactly in a layer, from what this step's attention of it has weighed, and copies that to scratch, where `config->plan_apart`
 * leaves it to this call. Both run beside what the caller enqueues next, so that the best place for it is before the layer's other kernels: the end of the step waits for
 * them, and so does attention of the same layer. A layer that is not planned reads what it has read in this step. Does nothing where attention itself plans: without
 * `config->plan_apart`, on the host, for formats with residual planes, in layers whose originals may lie in `config->spill_store`, and under policies that promote nothing; nor when called again.
 *
 * Threads: one at a time per step.
 * Stream: one of the cache's own, behind what the step has enqueued so far; nobody blocks.
 * Capture: safe; it is part of what is recorded.
 * Errors: NULL_POINTER, INVALID_HANDLE, BUSY_STEP, LAYER, ORDER (the layer was not attended), POISONED: nothing changed. DEVICE: what was begun is finished
 * before the layer is attended again, or in the next step.
 */
certkv_status certkv_step_plan(struct certkv_step *step,
                               uint32_t layer);

/**
 * Makes the new tokens part of their sequences and ends the step.
 *
 * Threads: one at a time per step.
 * Stream: none.
 * Capture: not allowed.
 * Errors: ORDER (a layer was not appended), DEVICE, INTERNAL: the step is rolled back and its handle ends all the
 * same. NULL_POINTER, INVALID_HANDLE, BUSY_STEP, PANIC, POISONED: nothing changed; certkv_step_abort still is due.
 */
certkv_status certkv_step_finish(struct certkv_step *step);

/**
 * Ends a step without a trace: the sequences are as before. NULL is allowed.
 *
 * Threads: one at a time per step.
 * Stream: none.
 * Capture: not allowed.
 * Errors: INVALID_HANDLE, for a step that is over already; BUSY_STEP. Nothing changed then.
 */
certkv_status certkv_step_abort(struct certkv_step *step);

/**
 * As certkv_step_append from tensors of `kv_heads` heads, each of its own type and strides. Both are in one place; in device memory
 * `data` is 16-byte aligned and strides are multiples of 8 below 2^32: slices of a buffer of queries, keys and values, or heads outside tokens.
 *
 * Threads: one at a time per step.
 * Stream: host memory none; device memory the cache's own, see certkv_step_after_stream.
 * Capture: safe with device memory, see certkv_step_captured; host memory not allowed.
 * Errors: as certkv_step_append, and STRUCT_SIZE, RESERVED, SHAPE (rows that overlap). What has changed is as there.
 */
certkv_status certkv_step_append_tensors(struct certkv_step *step,
                                         uint32_t layer,
                                         const struct certkv_tensor *keys,
                                         const struct certkv_tensor *values);

/**
 * As certkv_step_attend from and to tensors of `q_heads` heads, each of its own type and strides; they may overlap: everything is read before
 * anything is written. The bound of a certificate is that of what is written: rounding to 16 bits counts under `e_arith`. Both are in one place; in
 * device memory as for certkv_step_append_tensors, and no row of one shares a byte with one of the other's. In a
 * step of one token per sequence an output that its type cannot hold is uncertified there.
 *
 * Threads: one at a time per step.
 * Stream: host memory none; device memory the cache's own, see certkv_step_after_stream.
 * Capture: safe with device memory, see certkv_step_captured; host memory and certificates not allowed.
 * Errors: as certkv_step_attend, and STRUCT_SIZE, RESERVED, INVALID_ARGUMENT, SHAPE (rows that overlap), OVERFLOW (an output that the type of `out`
 * cannot hold). What has changed is as there: nothing was written to `out`, nor to certificates that overlap it or `queries`.
 */
certkv_status certkv_step_attend_tensors(struct certkv_step *step,
                                         uint32_t layer,
                                         const struct certkv_tensor *queries,
                                         const struct certkv_tensor *out,
                                         struct certkv_certificate *certificates,
                                         uint64_t n_certificates);

/**
 * Tolerances of the attend calls that follow in this step, in place of that of its policy: one for all query heads, or `q_heads`, one for each of a
 * layer; with 0 `n_tolerances` (and `tolerances` NULL, if wanted) that of the policy again. `tolerances` is borrowed during the call. `tol` of each
 * certificate says what its output was held to. On a GPU they are rounded down to single precision, and a step with its own is neither recorded
 * nor replayed: certkv_step_attend says CERTKV_ORDER on a stream that records, certkv_step_replayed CERTKV_POLICY.
 *
 * Threads: one at a time per step.
 * Stream: none of the caller's; work that was enqueued before keeps its tolerances. On a GPU those of `q_heads` go to the device on the cache's own.
 * Capture: not allowed.
 * Errors: NULL_POINTER, MISALIGNED, INVALID_ARGUMENT (an array beyond memory), INVALID_HANDLE, BUSY_STEP, SHAPE (neither 0 nor 1 nor `q_heads`), POLICY
 * (one out of range, or a step of another policy than the certified one), ORDER (one for each head while a GPU's stream is recorded), a driver's,
 * POISONED. Nothing changed.
 */
certkv_status certkv_step_set_tolerances(struct certkv_step *step,
                                         const struct certkv_tolerance *tolerances,
                                         uint64_t n_tolerances);

/**
 * Ends the cache's part of a recording that `stream` began: between certkv_step_after_stream, by which the cache's stream joined it, and this
 * call, certkv_step_append and certkv_step_attend with device memory went into the graph, beside the caller's own kernels. `stream` waits for the
 * cache's and may end the recording. The step is over without a trace, as after certkv_step_abort. `*capture` is filled; the caller ends it with
 * certkv_capture_destroy, after the graph, whose memory it keeps.
 *
 * The graph then runs any step of as many sequences, however long, with one token each, or with drafts of as many tokens each (`config->chunk_tokens`): certkv_step_begin; certkv_step_before_stream; the launch on the stream;
 * certkv_step_after_stream; certkv_step_replayed; certificates if wanted; certkv_step_finish.
 *
 * Threads: one at a time per step; the thread that began to record, unless it did so in relaxed mode.
 * Stream: `stream` waits for the cache's, in the recording.
 * Capture: required.
 * Errors: NULL_POINTER, MISALIGNED, INVALID_HANDLE, BUSY_STEP, UNSUPPORTED (the cache is on the host), ORDER (the cache's stream is not recording,
 * or a layer was not appended, or the step has a chunk of several tokens, but for drafts of one length), DEVICE, POISONED. `*capture` is NULL if it can be written, and
 * certkv_step_abort still is due; what was recorded so far is of no use.
 */
certkv_status certkv_step_captured(struct certkv_step *step,
                                   void *stream,
                                   struct certkv_capture **capture);

/**
 * Says that a graph with `capture` was launched for this step: behind what the step enqueued in certkv_step_begin, and with the cache's stream
 * behind it. All layers count as appended, and as attended where the recording attended them.
 *
 * Threads: one at a time per step.
 * Stream: none.
 * Capture: not allowed.
 * Errors: NULL_POINTER, INVALID_HANDLE, BUSY_STEP, UNSUPPORTED (the cache is on the host), ORDER (a layer was appended already, the capture is
 * another cache's, or the step has a chunk of several tokens, but for drafts of one length), SHAPE (another number of sequences, or of tokens each), POLICY,
 * POISONED. Nothing changed.
 */
certkv_status certkv_step_replayed(struct certkv_step *step,
                                   const struct certkv_capture *capture);

/**
 * Ends a capture; its graph must not run any more. NULL is allowed.
 *
 * Threads: any, at any time.
 * Stream: none.
 * Capture: not allowed.
 * Errors: INVALID_HANDLE, for a capture that has ended already. Nothing changed then.
 */
certkv_status certkv_capture_destroy(struct certkv_capture *capture);

/**
 * Opens the ring of a cache whose `config->certificate_ring` is not 0. `*ring` is filled; the caller ends it with certkv_ring_destroy. It
 * stays readable, also while a step is open, and when the cache is destroyed.
 *
 * Threads: any, at any time. Reads of one ring take turns: give each thread its own.
 * Stream: none.
 * Capture: safe.
 * Errors: NULL_POINTER, MISALIGNED, INVALID_HANDLE, UNSUPPORTED (the cache is on the host, or has no ring), POISONED. `*ring` is NULL if it
 * can be written.
 */
certkv_status certkv_ring_open(const struct certkv_cache *cache,
                               struct certkv_ring **ring);

/**
 * Fills `*steps` with the number of steps that the GPU has published so far: the newest that can be read is one less. Neither waits nor calls
 * the driver.
 *
 * Threads: any, at any time.
 * Stream: none.
 * Capture: safe.
 * Errors: NULL_POINTER, MISALIGNED, INVALID_HANDLE. Nothing changed.
 */
certkv_status certkv_ring_published(const struct certkv_ring *ring,
                                    uint64_t *steps);

/**
 * Copies what step `number` published to `heads`, `[layers][sequences][q_heads]`, and fills `step`, whose `struct_size` must be set. What is
 * copied is of that step and whole. `capacity`: heads that there is room for. Neither waits nor calls the driver.
 *
 * Threads: any; calls on one ring take turns.
 * Stream: none.
 * Capture: safe.
 * Errors: NULL_POINTER, MISALIGNED, STRUCT_SIZE, OVERLAP, INVALID_ARGUMENT, INVALID_HANDLE; NOT_PUBLISHED, OVERWRITTEN (a later step has taken its place):
 * nothing changed. SHAPE (`capacity` is too small): `step` says how many there are, `heads` is unchanged.
 */
certkv_status certkv_ring_read(const struct certkv_ring *ring,
                               uint64_t number,
                               struct certkv_published_head *heads,
                               uint64_t capacity,
                               struct certkv_published_step *step);

/**
 * Ends a ring handle. NULL is allowed.
 *
 * Threads: any, at any time.
 * Stream: none.
 * Capture: safe.
 * Errors: INVALID_HANDLE, for a ring that has ended already. Nothing changed then.
 */
certkv_status certkv_ring_destroy(struct certkv_ring *ring);

/**
 * Fills `*number` with the number under which the step's certificates will be in the ring, once it is finished or replayed. A step that is
 * aborted does not use its number up.
 *
 * Threads: one at a time per step.
 * Stream: none.
 * Capture: safe.
 * Errors: NULL_POINTER, MISALIGNED, INVALID_HANDLE, BUSY_STEP, UNSUPPORTED (the cache is on the host), POISONED. Nothing changed.
 */
certkv_status certkv_step_number(const struct certkv_step *step,
                                 uint64_t *number);

/**
 * Enqueues that the certificates of the layers attended so far in a step on a GPU go to device memory of the caller: a certkv_published_memory, then the heads.
 * Kernels that come behind it, on the cache's stream or on one that waits for it (certkv_step_before_stream), read them without the host. `memory` has `bytes` bytes,
 * at least sizeof(certkv_published_memory) + 16 * layers * sequences * q_heads, from a multiple of 16 on, and stays until the work is done; sequences are those of
 * certkv_published_step. Of chunks that are longer than drafts there is nothing. `status` of a head is that of a certificate, or CERTKV_ABSENT.
 *
 * Threads: one at a time per step.
 * Stream: enqueued on the cache's own.
 * Capture: safe, see certkv_step_captured: each run publishes its own.
 * Errors: NULL_POINTER, INVALID_HANDLE, BUSY_STEP, SHAPE (`bytes`), MISALIGNED, INVALID_ARGUMENT (memory of the host or of another GPU), UNSUPPORTED (a cache on
 * the host), DEVICE (also: more than 256 layers), POISONED. Nothing changed.
 */
certkv_status certkv_step_publish(struct certkv_step *step,
                                  struct certkv_published_memory *memory,
                                  uint64_t bytes);

/**
 * Fills `memory`, whose `struct_size` must be set, with what the cache holds now; on a GPU while a step is open, with what it held when that began.
 *
 * Threads: any, at any time; figures of a cache at work may be a moment apart.
 * Stream: none.
 * Capture: not allowed.
 * Errors: NULL_POINTER, MISALIGNED, STRUCT_SIZE, INVALID_HANDLE, POISONED. `memory` is unchanged.
 */
certkv_status certkv_cache_memory(const struct certkv_cache *cache,
                                  struct certkv_memory *memory);

/**
 * Fills `snapshot`, whose `struct_size` must be set, with the cache in numbers. Waits for nobody but the holders of short locks: neither
 * for a step on the host nor for the device. On a GPU while a step is open, the numbers are those when it began.
 *
 * Threads: any, at any time.
 * Stream: none.
 * Capture: not allowed.
 * Errors: NULL_POINTER, MISALIGNED, STRUCT_SIZE, INVALID_HANDLE, POISONED. `snapshot` is unchanged.
 */
certkv_status certkv_cache_snapshot(const struct certkv_cache *cache,
                                    struct certkv_snapshot *snapshot);

/**
 * Writes the numbers of docs/metrics.md to `text`, in the format that Prometheus reads (text, version 0.0.4), each with the label `cache`, whose
 * value is `name`, `name_bytes` bytes of UTF-8, at most 4096. `*bytes` is filled with the bytes of the text, which ends with a 0 byte that is not
 * counted: `capacity` has room for that, too. With 0 `capacity` nothing is written; the text grows as
 * things happen, so give more than was said then. For once a second, not once a step. `name` is borrowed during the call.
 *
 * Threads: any, at any time; waits as certkv_cache_snapshot, and says what it says.
 * Stream: none.
 * Capture: not allowed.
 * Errors: NULL_POINTER, MISALIGNED, INVALID_ARGUMENT, OVERLAP, INVALID_HANDLE, POISONED: nothing changed. SHAPE (`capacity` is too small): `*bytes`
 * says how many there are, `text` is unchanged.
 */
certkv_status certkv_cache_metrics(const struct certkv_cache *cache,
                                   const void *name,
                                   uint64_t name_bytes,
                                   char *text,
                                   uint64_t capacity,
                                   uint64_t *bytes);

/**
 * Fills `answer`, whose `struct_size` must be set, with what so many requests of one length take in a cache of this configuration, whether the budgets
 * have it, and how many they would have. `config->max_tokens`, `max_sequences`, `max_context`, `scratch_keys` and `scratch_values` do not count, and
 * `max_tokens` may be 0: a cache of that size has `max_tokens` and `max_sequences` of the answer, and `requests->tokens` for its `max_context`. Nothing is taken. `config`
 * and `requests` are borrowed during the call.
 *
 * Threads: any, at any time.
 * Stream: none.
 * Capture: not allowed.
 * Errors: as certkv_config_plan; RESERVED and INVALID_ARGUMENT also of `requests`. `answer` is unchanged.
 */
certkv_status certkv_config_plan_requests(const struct certkv_config *config,
                                          const struct certkv_requests *requests,
                                          struct certkv_requests_plan *answer);

/**
 * Fills `plan`, whose `struct_size` must be set, with what certkv_cache_create would take for `config`. Nothing is taken, and a budget that
 * is short is no error. `config` is borrowed during the call. Where `config->device` is a GPU of this machine, its driver is started if
 * nothing else has (0.1 s); what the driver takes for itself is no part of the plan.
 *
 * Threads: any, at any time.
 * Stream: none.
 * Capture: not allowed.
 * Errors: NULL_POINTER, MISALIGNED, STRUCT_SIZE, RESERVED, INVALID_ARGUMENT, INVALID_HANDLE (of a handle in `config`), UNSUPPORTED, FORMAT, FILE_REFUSED, POLICY,
 * DEVICE (no such GPU, or one without kernels). `plan` is unchanged.
 */
certkv_status certkv_config_plan(const struct certkv_config *config,
                                 struct certkv_plan *plan);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* CERTKV_H */
