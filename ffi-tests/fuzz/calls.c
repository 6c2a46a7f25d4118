/* Long because it has every function of the header, each with its wrong arguments.
 *
 * Random calls with hostile arguments: NULL, odd and foreign pointers, stale and foreign handles, sizes near the largest, structs of wrong
 * sizes and versions, callbacks that fail. Every answer is a status that the header names, never a caught defect; nothing is left at the end.
 * Arguments: a folder to write to; a seed; a number of calls. What cannot be checked by the library, a size that is
 * larger than the buffer and still plausible, is not given. */
#define _POSIX_C_SOURCE 200112L
#include "../calibration.h"
#include "../check.h"
#include <stdlib.h>
#include <time.h>

/* Defects of this program that its ends must show: 1 is a store that stays, 2 memory that is lost, 3 an answer that no header names. */
#ifndef PLANT
#define PLANT 0
#endif

enum { CACHES = 3, SEQUENCES = 6, STEPS = 3, STORES = 3, CALIBRATIONS = 2, SCALES = 2, MOST = 200 };

static uint64_t state, calls, seen[1024];
static certkv_cache *caches[CACHES];
static certkv_sequence sequences[SEQUENCES];
static certkv_step *steps[STEPS];
static certkv_store *stores[STORES];
static certkv_calibration *calibrations[CALIBRATIONS];
static certkv_scales *scales[SCALES];
static certkv_ring *ring[1];
static certkv_capture *capture[1];
static char folder[4096], path[4200], calibration_path[4200], scales_path[4200];
static float wide[MOST * Q], other[MOST * Q], out[MOST * Q];
static certkv_certificate certificates[MOST * Q_HEADS];
static uint32_t prompt[4 * MOST];
static certkv_prefix_event prefix_events[8];
static certkv_move_event move_events[8];
static certkv_damage damages[4];
static uint64_t words[512];
static long held_bytes, held_stores;

static uint64_t draw(void)
{
    uint64_t z = (state += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

static uint64_t below(uint64_t n)
{
    return draw() % n;
}

/* One in `n`. */
static int rarely(uint64_t n)
{
    return below(n) == 0;
}

static const uint64_t extremes[] = {0,          1,          2,          63,
                                    64,         UINT32_MAX, (uint64_t)UINT32_MAX + 1, (uint64_t)1 << 31,
                                    UINT64_MAX, INT64_MAX,  (uint64_t)1 << 62, UINT64_MAX - 7};

static uint64_t extreme(void)
{
    return extremes[below(sizeof extremes / sizeof *extremes)];
}

/* A size of an array of `real` elements: no more, or one that no memory has. */
static uint64_t size(uint64_t real)
{
    if (rarely(12)) {
        return rarely(2) ? UINT64_MAX : (uint64_t)1 << 63;
    }
    return rarely(6) ? below(real + 1) : real;
}

/* A pointer, or one that must be refused. */
static void *pointer(void *real)
{
    switch (below(40)) {
    case 0:
        return NULL;
    case 1:
        return (char *)real + 1;
    default:
        return real;
    }
}

/* A handle of a list, live, stale, of another kind or made up. */
static void *handle(void **list, uint64_t n)
{
    switch (below(30)) {
    case 0:
        return NULL;
    case 1:
        return FOREIGN(void);
    case 2:
        return (void *)(uintptr_t)draw();
    case 3:
        return caches[below(CACHES)];
    case 4:
        return stores[below(STORES)];
    case 5:
        return steps[below(STEPS)];
    default:
        return list[below(n)];
    }
}
#define HANDLE(type, list) ((type *)handle((void **)(void *)(list), sizeof(list) / sizeof *(list)))
#define CACHE HANDLE(certkv_cache, caches)
#define STEP HANDLE(certkv_step, steps)
#define STORE HANDLE(certkv_store, stores)

static certkv_sequence sequence(void)
{
    return rarely(12) ? (rarely(2) ? draw() : extreme()) : sequences[below(SEQUENCES)];
}

/* sizeof a struct, or a wrong one. */
static uint32_t struct_size(size_t real)
{
    return rarely(20) ? (uint32_t)extreme() % 4096 % (uint32_t)(real + 1) : (uint32_t)real;
}


/* The store's functions run on threads of the library: no state of this program is touched but the count. */
static void puts_items(void *context, certkv_put_item *items, uint64_t n)
{
    uint64_t i;
    (void)context;
    for (i = 0; i < n; i++) {
        const unsigned char *head = (const unsigned char *)items[i].head;
        items[i].result = head[0] % 3 == 0 ? CERTKV_ITEM_FULL : head[0] % 3 == 1 ? 99 : CERTKV_ITEM_DONE;
    }
}

static void gets_items(void *context, certkv_get_item *items, uint64_t n)
{
    uint64_t i;
    (void)context;
    for (i = 0; i < n; i++) {
        /* Lies about lengths, and pages of nothing. */
        items[i].bytes = items[i].key.bytes[0] % 2 ? items[i].capacity : UINT64_MAX;
        memset(items[i].buffer, 0, (size_t)items[i].capacity);
        items[i].result = items[i].key.bytes[1] % 4 ? CERTKV_ITEM_DONE : CERTKV_ITEM_TOO_LARGE;
    }
}

static void looks(void *context, certkv_key_item *items, uint64_t n)
{
    uint64_t i;
    (void)context;
    for (i = 0; i < n; i++) {
        items[i].result = items[i].key.bytes[0] % 5;
    }
}

static void destroys(void *context)
{
    __atomic_sub_fetch((long *)context, PLANT != 1, __ATOMIC_SEQ_CST);
}

static void *allocates(void *context, uint64_t bytes, uint64_t alignment)
{
    void *made = NULL;
    (void)context;
    if (rarely(10) || posix_memalign(&made, (size_t)alignment, (size_t)bytes) != 0) {
        return NULL;
    }
    held_bytes += (long)bytes;
    memset(made, 0, (size_t)bytes);
    return made;
}

static void frees(void *context, void *memory, uint64_t bytes, uint64_t alignment)
{
    (void)context;
    (void)alignment;
    held_bytes -= (long)bytes;
    if (PLANT != 2) {
        free(memory);
    }
}

static void logs(void *user, certkv_log_level level, const char *target, const char *message)
{
    if (user != &calls || level < CERTKV_LOG_ERROR || strlen(target) + strlen(message) == 0) {
        abort();
    }
}

static void answered(int32_t status)
{
    calls++;
    status = PLANT == 3 && calls == 2000 ? 1 : status;
    if (strcmp(certkv_status_name(status), "CERTKV_?") == 0 || status == CERTKV_PANIC || status == CERTKV_POISONED ||
        status == CERTKV_INTERNAL) {
        certkv_error_info info;
        memset(&info, 0, sizeof info);
        info.struct_size = (uint32_t)sizeof info;
        certkv_last_error(&info);
        printf("call %llu: %s: %s\n", (unsigned long long)calls, certkv_status_name(status), info.message);
        failed++;
    }
    seen[(-status) & 1023]++;
}

static certkv_prefix_scope scope(void)
{
    certkv_prefix_scope made;
    memset(&made, 0, sizeof made);
    made.struct_size = struct_size(sizeof made);
    made.domain = pointer(folder);
    made.domain_bytes = rarely(20) ? extreme() % 5000 % sizeof folder : below(3);
    made.model_bytes = rarely(30) ? UINT64_MAX : 0;
    made.first_position = rarely(20) ? extreme() : 0;
    return made;
}

static void create(void)
{
    certkv_config config;
    certkv_allocator allocator;
    certkv_level levels[3];
    certkv_control control;
    certkv_retention retention;
    certkv_bound_budget bound_budget;
    certkv_log own;
    uint64_t at = below(CACHES);
    static uint8_t secret[32];
    memset(&allocator, 0, sizeof allocator);
    memset(&own, 0, sizeof own);
    answered(certkv_config_init((certkv_config *)pointer(&config), struct_size(sizeof config)));
    memset(&config, 0, sizeof config);
    certkv_config_init(&config, (uint32_t)sizeof config);
    config.layers = 2;
    config.q_heads = Q_HEADS;
    config.kv_heads = KV_HEADS;
    config.head_dim = DIM;
    config.max_tokens = 96;
    config.max_sequences = 4;
    config.format = rarely(3) ? "ctq4-v4g32-b16" : rarely(2) ? "tq4-tq4-b16" : rarely(2) ? "k4-v4g32-b16-r4.4" : "k8-v4g32-b16";
    if (rarely(4)) {
        /* Heads of one layer in formats of their own. */
        config.format = "k8-v4g32-b16+tq4-tq4-b32+k4-v4g32-b16-r4.4+k8-v4g32-b16";
    }
    config.row_share = rarely(2) ? 0.25 : 0;
    config.protect_sinks = rarely(3) ? (rarely(8) ? extreme() : 5) : 0;
    config.protect_recent = rarely(3) ? (rarely(8) ? extreme() : 20) : 0;
    config.calibration = config.format[0] == 'c' ? HANDLE(certkv_calibration, calibrations) : NULL;
    if (rarely(4)) {
        config.format = "p8-e4m3-b16";
        config.scales = rarely(3) ? NULL : HANDLE(certkv_scales, scales);
    }
    config.swap_tokens = rarely(2) ? 64 : 0;
    config.prefix_units = rarely(2) ? 4 : 0;
    config.prefix_events = config.prefix_units && rarely(2) ? 5 : 0;
    config.prefix_low = config.prefix_units && rarely(2) ? (rarely(8) ? extreme() : 20) : 0;
    config.prefix_high = config.prefix_low && rarely(2) ? (rarely(8) ? extreme() : 40) : config.prefix_low;
    config.move_events = rarely(2) ? 5 : 0;
    config.prefix_secret = secret;
    config.chunk_tokens = rarely(2) ? below(12) : 0;
    config.policy = (int32_t)below(4);
    config.scratch_keys = config.scratch_values = rarely(3) ? 4 : 0;
    if (rarely(4)) {
        config.spill_store = STORE;
        config.spill_host_tokens = 48;
        config.spill_deadline_ms = 50;
    }
    if (rarely(3)) {
        /* Beside what does not go with them, too. */
        levels[0].format = "t8-v8g64-b16";
        levels[1].format = rarely(20) ? (rarely(2) ? NULL : "t8") : "t4-v4g64-b16";
        levels[2].format = "t2-v2g64-b16";
        levels[0].tokens = levels[1].tokens = rarely(20) ? extreme() % 4096 : 96;
        levels[2].tokens = rarely(30) ? UINT64_MAX : 96;
        config.format = NULL;
        config.calibration = NULL;
        config.scales = rarely(8) ? config.scales : NULL;
        config.swap_tokens = rarely(8) ? 64 : 0;
        config.prefix_units = config.prefix_events = config.prefix_low = config.prefix_high = 0;
        config.spill_store = NULL;
        config.levels = (certkv_level *)pointer(levels);
        config.n_levels = rarely(20) ? (uint32_t)extreme() : 3;
        config.levels_by_head = rarely(3) ? (rarely(8) ? (uint32_t)extreme() : 1) : 0;
        if (config.n_levels > 3 && config.n_levels <= 8) {
            config.n_levels = 2;
        }
    }
    if (rarely(2)) {
        double *fields[] = {&control.points, &control.keep_rank, &control.alpha, &control.drift, &control.drift_moved,
                            &control.keep,   &control.keep_head, &control.mix,   &control.life};
        answered(certkv_control_init((certkv_control *)pointer(&control), struct_size(sizeof control)));
        certkv_control_init(&control, (uint32_t)sizeof control);
        control.bytes_per_token = rarely(10) ? 0.0 : 160.0 + (double)below(200);
        if (rarely(8)) {
            *fields[below(sizeof fields / sizeof *fields)] = rarely(2) ? NAN : rarely(2) ? -1.0 : INFINITY;
        }
        control.interval = rarely(20) ? extreme() : 1;
        control.drift_every = rarely(20) ? extreme() : 1;
        control.protected_first = rarely(20) ? extreme() : 0;
        control.struct_size = rarely(30) ? 8 : (uint32_t)sizeof control;
        config.control = config.levels == NULL && !rarely(8) ? NULL : (certkv_control *)pointer(&control);
    } else if (rarely(2)) {
        double *fields[] = {&retention.layer_bytes_per_token, &retention.keep,         &retention.down, &retention.up, &retention.stick,
                            &retention.gate_protect,          &retention.gate_release};
        answered(certkv_retention_init((certkv_retention *)pointer(&retention), struct_size(sizeof retention)));
        certkv_retention_init(&retention, (uint32_t)sizeof retention);
        retention.bytes_per_token = rarely(10) ? 0.0 : 160.0 + (double)below(200);
        retention.interval = rarely(20) ? extreme() : 1;
        retention.measure = rarely(20) ? (int32_t)extreme() : (int32_t)below(2);
        if (rarely(8)) {
            *fields[below(sizeof fields / sizeof *fields)] = rarely(2) ? NAN : rarely(2) ? -1.0 : INFINITY;
        }
        config.retention = config.levels == NULL && !rarely(8) ? NULL : (certkv_retention *)pointer(&retention);
    }
    if (rarely(4)) {
        answered(certkv_bound_budget_init((certkv_bound_budget *)pointer(&bound_budget), struct_size(sizeof bound_budget)));
        certkv_bound_budget_init(&bound_budget, (uint32_t)sizeof bound_budget);
        bound_budget.bytes_per_token = rarely(10) ? NAN : 160.0 + (double)below(200);
        bound_budget.epsilon = rarely(10) ? -1.0 : 0.05;
        bound_budget.interval = rarely(20) ? extreme() : 1;
        config.bound_budget = config.levels == NULL && !rarely(8) ? NULL : (certkv_bound_budget *)pointer(&bound_budget);
        config.control = rarely(8) ? config.control : NULL;
        config.retention = rarely(8) ? config.retention : NULL;
    }
    if (rarely(3)) {
        allocator.struct_size = struct_size(sizeof allocator);
        allocator.allocate = rarely(20) ? NULL : allocates;
        allocator.free = frees;
        config.allocator = &allocator;
    }
    if (rarely(3)) {
        own.struct_size = struct_size(sizeof own);
        own.level = rarely(8) ? (int32_t)extreme() : (int32_t)below(5);
        own.callback = rarely(8) ? NULL : logs;
        own.user = &calls;
        config.log = (certkv_log *)pointer(&own);
    }
    if (rarely(3)) {
        /* Any field but the pointers, which are followed. */
        const size_t fields[] = {offsetof(certkv_config, struct_size),    offsetof(certkv_config, layers),
                                 offsetof(certkv_config, q_heads),        offsetof(certkv_config, kv_heads),
                                 offsetof(certkv_config, head_dim),       offsetof(certkv_config, store),
                                 offsetof(certkv_config, scale),          offsetof(certkv_config, threads),
                                 offsetof(certkv_config, tolerance),      offsetof(certkv_config, policy),
                                 offsetof(certkv_config, max_sequences),  offsetof(certkv_config, prefix_eviction),
                                 offsetof(certkv_config, erase),       offsetof(certkv_config, spill_workers),
                                 offsetof(certkv_config, spill_in_flight), offsetof(certkv_config, device)};
        uint64_t value = extreme();
        memcpy((char *)&config + fields[below(sizeof fields / sizeof *fields)], &value, sizeof(uint32_t));
        /* A cache of a million sequences would take its memory. */
        if (config.max_sequences > 64 && config.max_sequences <= 1 << 20) {
            config.max_sequences = 0;
        }
        if (config.struct_size > sizeof config && config.struct_size <= 4096) {
            config.struct_size = (uint32_t)sizeof config;
        }
        if (config.threads > 4 && config.threads <= 256) {
            config.threads = 2;
        }
        if (config.layers > 4 && config.layers <= 4096) {
            config.layers = 3;
        }
    }
    if (rarely(12)) {
        config.max_tokens = rarely(2) ? UINT64_MAX : 0;
    }
    if (caches[at] == NULL || rarely(30)) {
        certkv_cache *made = NULL;
        certkv_plan plan;
        memset(&plan, 0, sizeof plan);
        plan.struct_size = struct_size(sizeof plan);
        answered(certkv_config_plan(&config, (certkv_plan *)pointer(&plan)));
        if (rarely(4)) {
            certkv_prepared prepared;
            certkv_capabilities seen;
            certkv_gpu_info info;
            memset(&prepared, 0, sizeof prepared);
            prepared.struct_size = struct_size(sizeof prepared);
            seen.struct_size = struct_size(sizeof seen);
            info.struct_size = struct_size(sizeof info);
            answered(certkv_prepare((certkv_config *)pointer(&config), (certkv_prepared *)pointer(&prepared)));
            answered(certkv_capabilities_describe((certkv_capabilities *)pointer(&seen)));
            answered(certkv_gpu_describe((uint32_t)below(3), (certkv_gpu_info *)pointer(&info)));
        }
        answered(certkv_cache_create((certkv_config *)pointer(&config), &made));
        if (made != NULL && caches[at] != NULL) {
            answered(certkv_cache_destroy(caches[at]));
        }
        if (made != NULL) {
            caches[at] = made;
        }
    } else {
        answered(certkv_cache_create(&config, (certkv_cache **)(rarely(2) ? NULL : (void *)((char *)words + 1))));
    }
}

static void open_store(void)
{
    uint64_t at = below(STORES);
    certkv_store *made = NULL;
    if (stores[at] != NULL) {
        if (rarely(8)) {
            answered(certkv_store_destroy(stores[at]));
            if (rarely(2)) {
                stores[at] = NULL; /* Else it is used after its end. */
            }
        }
        return;
    }
    switch (below(3)) {
    case 0: {
        certkv_store_callbacks callbacks;
        memset(&callbacks, 0, sizeof callbacks);
        callbacks.struct_size = struct_size(sizeof callbacks);
        callbacks.context = &held_stores;
        callbacks.put = rarely(20) ? NULL : puts_items;
        callbacks.get = gets_items;
        callbacks.exists = looks;
        callbacks.remove = looks;
        callbacks.destroy = destroys;
        answered(certkv_store_create((certkv_store_callbacks *)pointer(&callbacks), &made));
        if (made != NULL && callbacks.struct_size == sizeof callbacks) {
            __atomic_add_fetch(&held_stores, 1, __ATOMIC_SEQ_CST);
        }
        break;
    }
    case 1:
        snprintf(path, sizeof path, "%s/store%llu", folder, (unsigned long long)at);
        answered(certkv_store_open_files(rarely(20) ? "" : path, rarely(3) ? 5000 : 0, rarely(10) ? 77 : 0, &made));
        break;
    default:
        answered(certkv_store_create_memory(rarely(3) ? 5000 : 0, (certkv_store **)pointer(&made)));
    }
    stores[at] = made;
}

static void calibrate(void)
{
    uint64_t at = below(CALIBRATIONS);
    certkv_calibration *made = NULL;
    certkv_calibration_info info;
    memset(&info, 0, sizeof info);
    info.struct_size = struct_size(sizeof info);
    answered(certkv_calibration_describe(HANDLE(certkv_calibration, calibrations), (certkv_calibration_info *)pointer(&info)));
    if (rarely(2)) {
        answered(certkv_calibration_read(pointer(wide), size(sizeof wide), NULL, &made));
        return;
    }
    if (calibrations[at] != NULL) {
        answered(certkv_calibration_destroy(HANDLE(certkv_calibration, calibrations)));
        if (rarely(2)) {
            answered(certkv_calibration_destroy(calibrations[at]));
            calibrations[at] = NULL;
        }
        return;
    }
    answered(certkv_calibration_open(calibration_path, rarely(10) ? (const uint8_t *)words : NULL, &made));
    calibrations[at] = made;
}

static void scale(void)
{
    uint64_t at = below(SCALES);
    certkv_scales *made = NULL;
    certkv_scales_info info;
    memset(&info, 0, sizeof info);
    info.struct_size = struct_size(sizeof info);
    answered(certkv_scales_describe(HANDLE(certkv_scales, scales), (certkv_scales_info *)pointer(&info)));
    if (rarely(2)) {
        answered(certkv_scales_read(pointer(wide), size(sizeof wide), NULL, &made));
    } else if (scales[at] != NULL) {
        answered(certkv_scales_destroy(HANDLE(certkv_scales, scales)));
        if (rarely(2)) {
            answered(certkv_scales_destroy(scales[at]));
            scales[at] = NULL;
        }
    } else {
        answered(certkv_scales_open(rarely(10) ? calibration_path : scales_path, rarely(10) ? (const uint8_t *)words : NULL, &made));
        scales[at] = made;
    }
}

static void begin_step(void)
{
    certkv_chunk chunks[3];
    certkv_step_options options;
    certkv_step *made = NULL;
    uint64_t n = 1 + below(2), i, at = below(STEPS);
    memset(&options, 0, sizeof options);
    options.struct_size = struct_size(sizeof options);
    options.policy = rarely(10) ? 9 : (int32_t)below(4);
    options.tolerance = rarely(10) ? NAN : rarely(2) ? 0.05 : 0.5;
    for (i = 0; i < 3; i++) {
        chunks[i].sequence = sequence();
        chunks[i].tokens = rarely(15) ? extreme() : 1 + below(rarely(3) ? 20 : 3);
    }
    if (steps[at] != NULL && !rarely(3)) {
        answered(certkv_step_abort(steps[at]));
        steps[at] = rarely(2) ? NULL : steps[at];
        return;
    }
    n = rarely(20) ? size(3) : n;
    if (rarely(2)) {
        answered(certkv_step_begin(CACHE, (certkv_chunk *)pointer(chunks), n, &made));
    } else {
        answered(certkv_step_begin_with(CACHE, chunks, n, (certkv_step_options *)pointer(&options), &made));
    }
    if (made != NULL) {
        if (steps[at] != NULL) {
            answered(certkv_step_abort(steps[at]));
        }
        steps[at] = made;
    }
}

static certkv_tensor tensor(void *data)
{
    certkv_tensor made;
    memset(&made, 0, sizeof made);
    made.struct_size = struct_size(sizeof made);
    made.dtype = rarely(20) ? (int32_t)extreme() : 1 + (int32_t)below(3);
    made.space = rarely(20) ? (int32_t)extreme() : CERTKV_SPACE_HOST;
    made.reserved = rarely(40);
    made.data = pointer(data);
    made.head_stride = rarely(10) ? UINT64_MAX : 0;
    made.token_stride = rarely(10) ? below(100) : 0;
    return made;
}

/* Counts that are right for a step of some tokens, mostly. */
static void in_step(void)
{
    certkv_step *step = STEP;
    uint64_t tokens = 1 + below(rarely(2) ? 40 : 3);
    uint32_t layer = rarely(20) ? (uint32_t)extreme() : (uint32_t)below(2);
    int32_t dtype = rarely(20) ? (int32_t)extreme() : 1 + (int32_t)below(3);
    int32_t space = rarely(20) ? (int32_t)extreme() : CERTKV_SPACE_HOST;
    certkv_tensor a = tensor(wide), b = tensor(other), c = tensor(out);
    /* Strides of a step of more tokens than there is room for would be a lie. */
    int fits = a.token_stride == 0 && b.token_stride == 0 && c.token_stride == 0;
    uint64_t number = 0;
    switch (below(14)) {
    case 0:
    case 1:
        answered(certkv_step_append(step, layer, pointer(wide), pointer(other), rarely(30) ? extreme() : tokens * KV, dtype, space));
        break;
    case 2:
    case 3:
        answered(certkv_step_attend(step, layer, (float *)pointer(wide), (float *)pointer(out), rarely(30) ? extreme() : tokens * Q,
                                    rarely(2) ? NULL : (certkv_certificate *)pointer(certificates),
                                    rarely(2) ? 0 : rarely(30) ? extreme() : tokens * Q_HEADS, space));
        break;
    case 4:
        answered(certkv_step_append_tensors(fits ? step : NULL, layer, (certkv_tensor *)pointer(&a), (certkv_tensor *)pointer(&b)));
        break;
    case 5:
        answered(certkv_step_attend_tensors(fits ? step : NULL, layer, (certkv_tensor *)pointer(&a), (certkv_tensor *)pointer(&c), NULL, 0));
        break;
    case 6:
    case 7:
        answered(certkv_step_finish(step));
        break;
    case 8:
        answered(certkv_step_certificates(step, layer, (certkv_certificate *)pointer(certificates), size(MOST * Q_HEADS)));
        break;
    case 9:
        answered(rarely(2) ? certkv_step_publish(step, (certkv_published_memory *)pointer(words), size(sizeof words)) : certkv_step_number(step, (uint64_t *)pointer(&number)));
        break;
    case 10:
        answered(rarely(2) ? certkv_step_after_stream(step, words) : certkv_step_before_stream(step, words));
        break;
    case 11: {
        static certkv_tolerance each[Q_HEADS];
        for (number = 0; number < Q_HEADS; number++) {
            each[number].relative = rarely(30) ? NAN : rarely(4) ? 1.0 : 0.05;
            each[number].absolute = rarely(30) ? -1.0 : rarely(2) ? 0.0 : 1.0;
        }
        answered(certkv_step_set_tolerances(step, (certkv_tolerance *)pointer(each), size(Q_HEADS)));
        break;
    }
    case 12:
        answered(certkv_step_plan(step, layer));
        break;
    default:
        answered(rarely(2) ? certkv_step_captured(step, words, &capture[0]) : certkv_step_replayed(step, HANDLE(certkv_capture, capture)));
    }
}

/* Reads all that it is told. */
static double sum;
static void decided(void *user, const certkv_control_entry *entry)
{
    const uint64_t per_head = entry->heads * entry->blocks, cells = entry->blocks * entry->n_levels;
    const struct {
        const double *values;
        uint64_t n;
    } all[] = {{entry->attention, per_head}, {entry->loss, cells}, {entry->danger, entry->blocks},
               {entry->bound_loss, entry->heads * cells}, {entry->bound_shrink, entry->heads * cells}, {entry->bound_cap, entry->heads}};
    uint64_t i, at;
    (void)user;
    for (i = 0; i < sizeof all / sizeof *all; i++) {
        for (at = 0; all[i].values != NULL && at < all[i].n; at++) {
            sum += all[i].values[at];
        }
    }
    for (at = 0; at < entry->blocks; at++) {
        sum += entry->levels[at] + (entry->wanted != NULL ? entry->wanted[at] : 0u);
    }
}

static void of_sequence(void)
{
    certkv_cache *cache = CACHE;
    certkv_sequence id = sequence(), *made = &sequences[below(SEQUENCES)];
    certkv_save_scope saved;
    certkv_controlled controlled;
    certkv_prefetched prefetched;
    certkv_level_plan plan;
    uint32_t planned[16];
    uint64_t number = 0;
    uint32_t is = 0;
    memset(&saved, 0, sizeof saved);
    saved.struct_size = struct_size(sizeof saved);
    saved.reserved = rarely(30);
    saved.model_bytes = rarely(20) ? UINT64_MAX : 0;
    snprintf(path, sizeof path, "%s/saved%llu", folder, (unsigned long long)below(3));
    switch (below(20)) {
    case 19:
        memset(&controlled, 0, sizeof controlled);
        controlled.struct_size = struct_size(sizeof controlled);
        for (size_t i = 0; i < 16; i++) planned[i] = rarely(40) ? (uint32_t)extreme() : (uint32_t)below(3);
        answered(certkv_sequence_set_levels(cache, id, (const uint32_t *)pointer(planned), rarely(3) ? below(16) : 2 * below(5),
                                            rarely(4) ? NULL : (certkv_controlled *)pointer(&controlled)));
        break;
    case 15:
        memset(&plan, 0, sizeof plan);
        plan.struct_size = struct_size(sizeof plan);
        answered(certkv_sequence_plan_levels(cache, id, rarely(10) ? NAN : 0.05, rarely(2) ? UINT64_MAX : below(100000),
                                             (uint32_t *)pointer(planned), rarely(10) ? below(16) : 16, (certkv_level_plan *)pointer(&plan)));
        break;
    case 12:
        answered(certkv_sequence_level(cache, id, rarely(20) ? (uint32_t)extreme() : (uint32_t)below(2),
                                       rarely(20) ? extreme() : below(4), (uint32_t *)pointer(&is)));
        break;
    case 13:
        answered(certkv_sequence_change_level(cache, id, rarely(20) ? (uint32_t)extreme() : (uint32_t)below(2),
                                              rarely(20) ? extreme() : below(4), rarely(20) ? (uint32_t)extreme() : (uint32_t)below(3)));
        break;
    case 17:
        answered(certkv_sequence_head_level(cache, id, rarely(20) ? (uint32_t)extreme() : (uint32_t)below(2), (uint32_t)below(3),
                                            rarely(20) ? extreme() : below(4), (uint32_t *)pointer(&is)));
        break;
    case 18:
        answered(certkv_sequence_change_head_level(cache, id, rarely(20) ? (uint32_t)extreme() : (uint32_t)below(2), (uint32_t)below(3),
                                                   rarely(20) ? extreme() : below(4), rarely(20) ? (uint32_t)extreme() : (uint32_t)below(3)));
        break;
    case 16:
        memset(&prefetched, 0, sizeof prefetched);
        prefetched.struct_size = struct_size(sizeof prefetched);
        answered(certkv_sequence_prefetch(cache, id, (certkv_prefetched *)pointer(&prefetched)));
        break;
    case 14:
        memset(&controlled, 0, sizeof controlled);
        controlled.struct_size = struct_size(sizeof controlled);
        if (rarely(2)) {
            answered(certkv_sequence_control_logged(cache, id, rarely(10) ? NULL : decided, &calls, (certkv_controlled *)pointer(&controlled)));
        } else {
            answered(certkv_sequence_control(cache, id, (certkv_controlled *)pointer(&controlled)));
        }
        break;
    case 0:
    case 1:
        /* A number that is written over is a sequence that stays until its cache ends. */
        if (certkv_sequence_length(cache, *made, &number) != CERTKV_OK) {
            answered(certkv_sequence_create(cache, (certkv_sequence *)pointer(made)));
        }
        break;
    case 2:
        answered(certkv_sequence_fork(cache, id, (certkv_sequence *)pointer(made)));
        break;
    case 3:
        answered(certkv_sequence_truncate(cache, id, rarely(2) ? below(60) : extreme()));
        break;
    case 4:
    case 5:
        answered(certkv_sequence_release(cache, id));
        break;
    case 6:
        answered(certkv_sequence_length(cache, id, (uint64_t *)pointer(&number)));
        break;
    case 7:
        answered(certkv_sequence_swap_out(cache, id, rarely(2) ? NULL : (uint64_t *)pointer(&number)));
        break;
    case 8:
        answered(certkv_sequence_swap_in(cache, id, rarely(2) ? NULL : (uint64_t *)pointer(&number)));
        break;
    case 9:
        answered(certkv_sequence_is_swapped_out(cache, id, (uint32_t *)pointer(&is)));
        break;
    case 10:
        if (rarely(10)) { /* Files reach the disk. */
            answered(certkv_sequence_save(cache, id, (certkv_save_scope *)pointer(&saved), rarely(10) ? NULL : path, NULL));
        }
        break;
    default:
        answered(certkv_sequence_restore(cache, (certkv_save_scope *)pointer(&saved), rarely(10) ? "" : path, made));
    }
}

static void of_prefixes(void)
{
    certkv_cache *cache = CACHE;
    certkv_prefix_scope whose = scope();
    certkv_prefix_scope *given = (certkv_prefix_scope *)pointer(&whose);
    uint32_t *tokens = (uint32_t *)pointer(prompt);
    uint64_t n = rarely(12) ? UINT64_MAX : below(4 * MOST), number = 0, more = 0;
    certkv_publication published;
    certkv_events_read read;
    certkv_store_key key;
    memset(&published, 0, sizeof published);
    published.struct_size = struct_size(sizeof published);
    memset(&read, 0, sizeof read);
    read.struct_size = struct_size(sizeof read);
    switch (below(10)) {
    case 0:
    case 1:
        answered(certkv_cache_publish(cache, sequence(), given, tokens, n, (certkv_publication *)pointer(&published)));
        break;
    case 2:
    case 3:
        answered(certkv_sequence_create_from(cache, given, tokens, n, &sequences[below(SEQUENCES)], rarely(2) ? NULL : &number));
        break;
    case 4:
        answered(certkv_cache_evict_prefixes(cache, extreme(), rarely(2) ? NULL : (uint64_t *)pointer(&number)));
        break;
    case 5:
        answered(certkv_cache_export_prefix(cache, STORE, given, tokens, n, extreme() % 5, 20, rarely(2) ? NULL : &number));
        break;
    case 6:
        answered(certkv_cache_missing_prefix(cache, STORE, given, tokens, n, 20, (uint64_t *)pointer(&number), (uint64_t *)pointer(&more)));
        break;
    case 7:
        answered(certkv_cache_import_prefix(cache, STORE, given, tokens, n, 20, rarely(2) ? NULL : &number));
        break;
    case 8:
        answered(certkv_cache_events(cache, rarely(2) ? 0 : extreme(), (certkv_prefix_event *)pointer(prefix_events), size(8),
                                     rarely(2) ? NULL : tokens, rarely(2) ? 0 : size(4 * MOST), (certkv_events_read *)pointer(&read)));
        break;
    default:
        if (rarely(2)) {
            answered(certkv_cache_cached_prefixes(cache, prefix_events, size(8), tokens, size(4 * MOST), (certkv_events_read *)pointer(&read)));
        } else {
            answered(certkv_cache_prefix_key(cache, given, tokens, n, (certkv_store_key *)pointer(&key)));
        }
    }
}

static void of_cache(void)
{
    certkv_cache *cache = CACHE;
    certkv_snapshot snapshot;
    certkv_memory memory;
    certkv_admission admission;
    certkv_events_read read;
    certkv_error_info info;
    certkv_scrubbed scrubbed;
    uint64_t length = 0;
    memset(&snapshot, 0, sizeof snapshot);
    snapshot.struct_size = struct_size(sizeof snapshot);
    memset(&memory, 0, sizeof memory);
    memory.struct_size = struct_size(sizeof memory);
    memset(&admission, 0, sizeof admission);
    admission.struct_size = struct_size(sizeof admission);
    memset(&read, 0, sizeof read);
    read.struct_size = struct_size(sizeof read);
    memset(&info, 0, sizeof info);
    info.struct_size = struct_size(sizeof info);
    switch (below(11)) {
    case 8:
        memset(&scrubbed, 0, sizeof scrubbed);
        scrubbed.struct_size = struct_size(sizeof scrubbed);
        answered(certkv_cache_scrub(cache, rarely(2) ? extreme() : below(20), rarely(20) ? (uint32_t)extreme() : (uint32_t)below(2),
                                    (certkv_damage *)pointer(damages), size(4), (certkv_scrubbed *)pointer(&scrubbed)));
        break;
    case 9:
        answered(certkv_cache_residue(cache, (uint64_t *)pointer(&length)));
        break;
    case 0:
        answered(certkv_cache_snapshot(cache, (certkv_snapshot *)pointer(&snapshot)));
        break;
    case 1:
        answered(certkv_cache_memory(cache, (certkv_memory *)pointer(&memory)));
        break;
    case 2:
        answered(certkv_cache_admit(cache, rarely(3) ? 0 : sequence(), extreme(), (certkv_admission *)pointer(&admission)));
        break;
    case 3:
        answered(certkv_cache_moves(cache, rarely(2) ? 0 : extreme(), (certkv_move_event *)pointer(move_events), size(8),
                                    (certkv_events_read *)pointer(&read)));
        break;
    case 4:
        answered(certkv_last_error((certkv_error_info *)pointer(&info)));
        break;
    case 5:
        answered(certkv_cache_metrics(cache, pointer(folder), rarely(20) ? UINT64_MAX : below(3), (char *)words,
                                      rarely(2) ? sizeof words : below(sizeof words), (uint64_t *)pointer(&length)));
        break;
    case 6:
        answered(certkv_ring_open(cache, &ring[0]));
        answered(certkv_ring_destroy(HANDLE(certkv_ring, ring)));
        answered(certkv_capture_destroy(HANDLE(certkv_capture, capture)));
        break;
    case 7:
        answered(certkv_log_set(rarely(3) ? (int32_t)extreme() : (int32_t)below(5), rarely(3) ? NULL : logs, &calls));
        break;
    default:
        if (rarely(20)) {
            uint64_t at = below(CACHES);
            answered(certkv_cache_destroy(caches[at]));
            if (rarely(2)) {
                caches[at] = NULL;
            }
        }
    }
}

int main(int count, char **given)
{
    uint64_t wanted, i, met = 0;
    if (count != 4) {
        return 2;
    }
    snprintf(folder, sizeof folder, "%s", given[1]);
    snprintf(calibration_path, sizeof calibration_path, "%s/calibration", folder);
    snprintf(scales_path, sizeof scales_path, "%s/scales", folder);
    if (!sealed_file(calibration_path, calibration_bytes) || !sealed_file(scales_path, scales_bytes)) {
        return 2;
    }
    state = strtoull(given[2], NULL, 10);
    wanted = strtoull(given[3], NULL, 10);
    for (i = 0; i < MOST * Q; i++) {
        wide[i] = other[i] = (float)(i * 7919 % 257) / 256.0f - 0.5f;
    }
    while (calls < wanted && failed == 0) {
        switch (below(16)) {
        case 0:
            create();
            break;
        case 1:
            open_store();
            break;
        case 2:
            if (rarely(2)) {
                calibrate();
            } else {
                scale();
            }
            break;
        case 3:
        case 4:
            begin_step();
            break;
        case 5:
        case 6:
        case 7:
        case 8:
        case 9:
            in_step();
            break;
        case 10:
        case 11:
        case 12:
            of_sequence();
            break;
        case 13:
            of_prefixes();
            break;
        default:
            of_cache();
        }
        if (rarely(64)) {
            wide[below(MOST * Q)] = rarely(3) ? (rarely(2) ? NAN : INFINITY) : 0.25f;
            wide[below(MOST * Q)] = 0.5f;
        }
    }
    for (i = 0; i < STEPS; i++) {
        certkv_step_abort(steps[i]);
    }
    for (i = 0; i < CACHES; i++) {
        certkv_cache_destroy(caches[i]);
    }
    for (i = 0; i < STORES; i++) {
        certkv_store_destroy(stores[i]);
    }
    for (i = 0; i < CALIBRATIONS; i++) {
        certkv_calibration_destroy(calibrations[i]);
    }
    for (i = 0; i < SCALES; i++) {
        certkv_scales_destroy(scales[i]);
    }
    certkv_ring_destroy(ring[0]);
    certkv_capture_destroy(capture[0]);
    certkv_log_set(CERTKV_LOG_OFF, NULL, NULL);
    /* The threads that a store was called on let it go when they end. */
    for (i = 0; i < 500 && __atomic_load_n(&held_stores, __ATOMIC_SEQ_CST) != 0; i++) {
        struct timespec wait = {0, 10000000};
        nanosleep(&wait, NULL);
    }
    for (i = 0; i < 1024; i++) {
        met += seen[i] != 0;
    }
    printf("calls %llu failed %d statuses %llu ok %llu bytes %ld stores %ld\n", (unsigned long long)calls, failed,
           (unsigned long long)met, (unsigned long long)seen[0], held_bytes, held_stores);
    return failed != 0 || held_bytes != 0 || held_stores != 0;
}
