/* Everything a careless or hostile caller can hand in, and the status that it must get. Prints what differs. */
#include "check.h"

static float k[KV], v[KV], q[Q], out[Q];
static certkv_certificate certs[Q_HEADS + 1];

static int32_t create(const certkv_config *config)
{
    certkv_cache *cache = FOREIGN(certkv_cache);
    int32_t status = certkv_cache_create(config, &cache);
    TRUE((cache != NULL) == (status == CERTKV_OK));
    if (status == CERTKV_OK) {
        EXPECT(CERTKV_OK, certkv_cache_destroy(cache));
    }
    return status;
}

/* One field set to a value that must be refused. */
#define REFUSED(want, field, value)      \
    do {                                 \
        certkv_config config_ = small(); \
        config_.field = (value);         \
        EXPECT(want, create(&config_));  \
    } while (0)

static int32_t windowed(uint64_t tokens, uint64_t sinks, uint64_t chunk)
{
    certkv_config config = small();
    certkv_window window;
    window.tokens = tokens;
    window.sinks = sinks;
    window.chunk = chunk;
    config.windows = &window;
    config.n_windows = 1;
    return create(&config);
}

static void windows(void)
{
    certkv_config config = small();
    certkv_window each[3] = {{16, 2, 0}, {0, 0, 0}, {1, 1, 1}};
    const uint64_t many = ((uint64_t)1 << 31) + 1;
    EXPECT(CERTKV_OK, windowed(0, 0, 0));
    EXPECT(CERTKV_OK, windowed(1, 0, 0));
    EXPECT(CERTKV_OK, windowed(many - 1, many - 1, many - 1));
    EXPECT(CERTKV_INVALID_ARGUMENT, windowed(0, 1, 0));
    EXPECT(CERTKV_INVALID_ARGUMENT, windowed(0, 0, 1));
    EXPECT(CERTKV_INVALID_ARGUMENT, windowed(many, 0, 0));
    EXPECT(CERTKV_INVALID_ARGUMENT, windowed(1, many, 0));
    EXPECT(CERTKV_INVALID_ARGUMENT, windowed(1, 0, many));
    EXPECT(CERTKV_INVALID_ARGUMENT, windowed(UINT64_MAX, UINT64_MAX, UINT64_MAX));
    config.windows = each;
    EXPECT(CERTKV_OK, create(&config)); /* None are read. */
    config.n_windows = 2;
    EXPECT(CERTKV_OK, create(&config)); /* One per layer. */
    config.prefix_units = 4;
    EXPECT(CERTKV_OK, create(&config)); /* Beside cached prefixes. */
    config.prefix_units = 0;
    config.n_windows = 3;
    EXPECT(CERTKV_INVALID_ARGUMENT, create(&config));
    config.n_windows = UINT32_MAX;
    config.windows = (const certkv_window *)(uintptr_t)(UINT64_MAX - 7);
    EXPECT(CERTKV_INVALID_ARGUMENT, create(&config));
    config.windows = ODD(const certkv_window, each);
    EXPECT(CERTKV_MISALIGNED, create(&config));
    config.windows = NULL;
    EXPECT(CERTKV_NULL_POINTER, create(&config));
}

static void configurations(void)
{
    struct {
        certkv_config config;
        uint64_t tail[2];
    } newer;
    certkv_config config = small();
    certkv_cache *cache = NULL;
    uint64_t prefix[sizeof config / 8];
    char long_format[65];

    EXPECT(CERTKV_NULL_POINTER, certkv_config_init(NULL, (uint32_t)sizeof config));
    EXPECT(CERTKV_MISALIGNED, certkv_config_init(ODD(certkv_config, &newer), (uint32_t)sizeof config));
    EXPECT(CERTKV_STRUCT_SIZE, certkv_config_init(&config, 0));
    EXPECT(CERTKV_STRUCT_SIZE, certkv_config_init(&config, UINT32_MAX));
    memset(prefix, 0xee, sizeof prefix);
    EXPECT(CERTKV_OK, certkv_config_init((certkv_config *)(void *)prefix, 32));
    TRUE(prefix[4] == 0xeeeeeeeeeeeeeeeeu && prefix[0] != 0xeeeeeeeeeeeeeeeeu);

    EXPECT(CERTKV_NULL_POINTER, certkv_cache_create(&config, NULL));
    EXPECT(CERTKV_MISALIGNED, certkv_cache_create(&config, ODD(certkv_cache *, &newer)));
    EXPECT(CERTKV_NULL_POINTER, create(NULL));
    EXPECT(CERTKV_MISALIGNED, create(ODD(const certkv_config, &newer)));
    EXPECT(CERTKV_OK, create(&config));

    REFUSED(CERTKV_STRUCT_SIZE, struct_size, 0);
    REFUSED(CERTKV_STRUCT_SIZE, struct_size, 4);
    REFUSED(CERTKV_STRUCT_SIZE, struct_size, 4097);
    REFUSED(CERTKV_STRUCT_SIZE, struct_size, UINT32_MAX);
    REFUSED(CERTKV_INVALID_ARGUMENT, struct_size, offsetof(certkv_config, scale)); /* No max_tokens. */
    REFUSED(CERTKV_OK, struct_size, offsetof(certkv_config, tolerance));           /* An older header. */
    REFUSED(CERTKV_OK, struct_size, offsetof(certkv_config, prefix_units));
    memset(&newer, 0, sizeof newer);
    newer.config = small();
    newer.config.struct_size = (uint32_t)sizeof newer;
    EXPECT(CERTKV_OK, create(&newer.config));
    newer.tail[1] = 1;
    EXPECT(CERTKV_STRUCT_SIZE, create(&newer.config));

    REFUSED(CERTKV_INVALID_ARGUMENT, layers, 0);
    REFUSED(CERTKV_INVALID_ARGUMENT, layers, UINT32_MAX);
    REFUSED(CERTKV_INVALID_ARGUMENT, q_heads, 0);
    REFUSED(CERTKV_INVALID_ARGUMENT, q_heads, 5);
    REFUSED(CERTKV_INVALID_ARGUMENT, q_heads, UINT32_MAX);
    REFUSED(CERTKV_INVALID_ARGUMENT, kv_heads, 0);
    REFUSED(CERTKV_INVALID_ARGUMENT, kv_heads, UINT32_MAX);
    REFUSED(CERTKV_INVALID_ARGUMENT, head_dim, 0);
    REFUSED(CERTKV_INVALID_ARGUMENT, head_dim, 65);
    REFUSED(CERTKV_INVALID_ARGUMENT, head_dim, UINT32_MAX);
    REFUSED(CERTKV_INVALID_ARGUMENT, store, CERTKV_F32);
    REFUSED(CERTKV_INVALID_ARGUMENT, store, -1);
    REFUSED(CERTKV_INVALID_ARGUMENT, store, INT32_MAX);
    REFUSED(CERTKV_INVALID_ARGUMENT, scale, -1.0f);
    REFUSED(CERTKV_INVALID_ARGUMENT, scale, (float)NAN);
    REFUSED(CERTKV_INVALID_ARGUMENT, scale, (float)INFINITY);
    REFUSED(CERTKV_INVALID_ARGUMENT, threads, 257);
    REFUSED(CERTKV_INVALID_ARGUMENT, threads, UINT32_MAX);
    REFUSED(CERTKV_INVALID_ARGUMENT, max_tokens, 0);
    REFUSED(CERTKV_INVALID_ARGUMENT, max_tokens, UINT64_MAX);
    REFUSED(CERTKV_INVALID_ARGUMENT, max_sequences, UINT32_MAX);
    REFUSED(CERTKV_BUDGET, device_budget, 1);
    REFUSED(CERTKV_BUDGET, host_budget, 1);
    REFUSED(CERTKV_INVALID_ARGUMENT, policy, -1);
    REFUSED(CERTKV_INVALID_ARGUMENT, policy, 4);
    REFUSED(CERTKV_POLICY, tolerance, -0.5);
    REFUSED(CERTKV_POLICY, tolerance, NAN);
    REFUSED(CERTKV_POLICY, tolerance, INFINITY);
    REFUSED(CERTKV_INVALID_ARGUMENT, erase, 2);
    REFUSED(CERTKV_INVALID_ARGUMENT, swap_tokens, UINT64_MAX);
    REFUSED(CERTKV_INVALID_ARGUMENT, swap_tokens, ((uint64_t)1 << 31) + 1);
    REFUSED(CERTKV_OK, swap_tokens, 1);
    REFUSED(CERTKV_INVALID_ARGUMENT, prefix_units, UINT64_MAX);
    REFUSED(CERTKV_INVALID_ARGUMENT, prefix_units, (1 << 24) + 1);
    REFUSED(CERTKV_OK, prefix_units, 4);
    REFUSED(CERTKV_INVALID_ARGUMENT, prefix_eviction, 2);
    REFUSED(CERTKV_INVALID_ARGUMENT, prefix_eviction, -1);
    REFUSED(CERTKV_OK, prefix_eviction, CERTKV_EVICTION_LRU);
    config.prefix_units = 4;
    config.prefix_secret = (const uint8_t *)(uintptr_t)UINT64_MAX; /* 32 bytes that end behind the last address. */
    EXPECT(CERTKV_INVALID_ARGUMENT, create(&config));
    config = small();
    REFUSED(CERTKV_OK, struct_size, offsetof(certkv_config, spill_store));
    REFUSED(CERTKV_INVALID_HANDLE, spill_store, FOREIGN(certkv_store));
    REFUSED(CERTKV_OK, spill_host_tokens, UINT64_MAX); /* Without a store. */
    REFUSED(CERTKV_OK, spill_workers, UINT32_MAX);
    windows();
    REFUSED(CERTKV_UNSUPPORTED, certificate_ring, 1);
    REFUSED(CERTKV_INVALID_ARGUMENT, chunk_tokens, UINT64_MAX);
    REFUSED(CERTKV_INVALID_ARGUMENT, chunk_tokens, ((uint64_t)1 << 31) + 1);
    REFUSED(CERTKV_OK, chunk_tokens, 8);
    REFUSED(CERTKV_INVALID_ARGUMENT, move_events, UINT64_MAX);
    REFUSED(CERTKV_INVALID_ARGUMENT, move_events, (1 << 24) + 1);
    REFUSED(CERTKV_OK, move_events, 1);
    REFUSED(CERTKV_INVALID_ARGUMENT, prefix_low, 1); /* No prefixes are cached. */
    REFUSED(CERTKV_INVALID_ARGUMENT, prefix_high, 1);
    REFUSED(CERTKV_INVALID_ARGUMENT, protect_sinks, UINT64_MAX);
    REFUSED(CERTKV_INVALID_ARGUMENT, protect_recent, ((uint64_t)1 << 31) + 1);
    REFUSED(CERTKV_OK, protect_recent, (uint64_t)1 << 31);
    REFUSED(CERTKV_POLICY, row_share, 0.26);
    REFUSED(CERTKV_POLICY, row_share, -1);
    REFUSED(CERTKV_OK, row_share, 0.25);
    REFUSED(CERTKV_INVALID_HANDLE, calibration, FOREIGN(certkv_calibration));
    REFUSED(CERTKV_DEVICE, device, UINT32_MAX); /* No driver, or no such GPU. */
    REFUSED(CERTKV_FORMAT, format, "");
    REFUSED(CERTKV_FORMAT, format, "k8");
    REFUSED(CERTKV_FORMAT, format, "k99-v99-b7");
    REFUSED(CERTKV_INVALID_ARGUMENT, format, "ctq4-v4g32-b32"); /* Without a calibration. */
    REFUSED(CERTKV_INVALID_ARGUMENT, format, "gtq3-tq3-b32");
    REFUSED(CERTKV_FORMAT, format, "\xff\xfe");
    memset(long_format, 'k', sizeof long_format); /* Not terminated: no more than 64 characters may be read. */
    REFUSED(CERTKV_FORMAT, format, long_format);
    REFUSED(CERTKV_FORMAT, format, "k8-v8g32-b16+");
    REFUSED(CERTKV_INVALID_ARGUMENT, format, "k8-v8g32-b16+k8-v8g32-b16+k8-v8g32-b16+k8-v8g32-b16+k8-v8g32-b16");
    REFUSED(CERTKV_OK, format, "k8-v8g32-b16");
    REFUSED(CERTKV_OK, format, "k8-v8g32-b16+k8-v4g32-b16"); /* One per layer. */
    REFUSED(CERTKV_OK, format, NULL);
    REFUSED(CERTKV_OK, policy, CERTKV_POLICY_SEED000);

    EXPECT(CERTKV_OK, certkv_cache_destroy(NULL));
    EXPECT(CERTKV_INVALID_HANDLE, certkv_cache_destroy(FOREIGN(certkv_cache)));
    EXPECT(CERTKV_OK, certkv_cache_create(&config, &cache));
    EXPECT(CERTKV_OK, certkv_cache_destroy(cache));
    EXPECT(CERTKV_INVALID_HANDLE, certkv_cache_destroy(cache));
}

static void sequences(certkv_cache *cache)
{
    certkv_sequence a = 1, b = 1, c = 1, d = 1;
    uint64_t length = 7, words[2];
    certkv_sequence hostile[] = {0, 1, UINT64_MAX, (uint64_t)1 << 63, 0xffffffff00000000u};
    size_t i;

    EXPECT(CERTKV_NULL_POINTER, certkv_sequence_create(NULL, &a));
    TRUE(a == CERTKV_NO_SEQUENCE);
    EXPECT(CERTKV_INVALID_HANDLE, certkv_sequence_create(FOREIGN(certkv_cache), &a));
    EXPECT(CERTKV_NULL_POINTER, certkv_sequence_create(cache, NULL));
    EXPECT(CERTKV_MISALIGNED, certkv_sequence_create(cache, ODD(certkv_sequence, words)));
    EXPECT(CERTKV_OK, certkv_sequence_create(cache, &a));
    EXPECT(CERTKV_OK, certkv_sequence_fork(cache, a, &b));
    EXPECT(CERTKV_OK, certkv_sequence_create(cache, &c));
    TRUE(a != b && b != c && a != c && a && b && c);
    EXPECT(CERTKV_TOO_MANY_SEQUENCES, certkv_sequence_create(cache, &d));
    TRUE(d == CERTKV_NO_SEQUENCE);
    EXPECT(CERTKV_TOO_MANY_SEQUENCES, certkv_sequence_fork(cache, a, &d));
    EXPECT(CERTKV_NULL_POINTER, certkv_sequence_fork(cache, a, NULL));
    EXPECT(CERTKV_NULL_POINTER, certkv_sequence_length(cache, a, NULL));
    EXPECT(CERTKV_MISALIGNED, certkv_sequence_length(cache, a, ODD(uint64_t, words)));
    EXPECT(CERTKV_LENGTH, certkv_sequence_truncate(cache, a, 1));
    EXPECT(CERTKV_LENGTH, certkv_sequence_truncate(cache, a, UINT64_MAX));
    EXPECT(CERTKV_OK, certkv_sequence_truncate(cache, a, 0));
    EXPECT(CERTKV_OK, certkv_sequence_length(cache, a, &length));
    TRUE(length == 0);
    EXPECT(CERTKV_OK, certkv_sequence_release(cache, b));
    EXPECT(CERTKV_UNKNOWN_SEQUENCE, certkv_sequence_release(cache, b));
    EXPECT(CERTKV_OK, certkv_sequence_create(cache, &d));
    TRUE(d != b); /* The slot is another's now, and the old number is still refused. */
    EXPECT(CERTKV_UNKNOWN_SEQUENCE, certkv_sequence_length(cache, b, &length));
    for (i = 0; i < sizeof hostile / sizeof *hostile; i++) {
        EXPECT(CERTKV_UNKNOWN_SEQUENCE, certkv_sequence_length(cache, hostile[i], &length));
        EXPECT(CERTKV_UNKNOWN_SEQUENCE, certkv_sequence_truncate(cache, hostile[i], 0));
        EXPECT(CERTKV_UNKNOWN_SEQUENCE, certkv_sequence_release(cache, hostile[i]));
        EXPECT(CERTKV_UNKNOWN_SEQUENCE, certkv_sequence_fork(cache, hostile[i], &b));
    }
    EXPECT(CERTKV_OK, certkv_sequence_release(cache, a));
    EXPECT(CERTKV_OK, certkv_sequence_release(cache, c));
    EXPECT(CERTKV_OK, certkv_sequence_release(cache, d));
}

static void beginnings(certkv_cache *cache)
{
    certkv_sequence a = 0;
    certkv_step *step = NULL, *second = NULL;
    certkv_chunk chunks[2];
    uint64_t words[3], length = 0;

    EXPECT(CERTKV_OK, certkv_sequence_create(cache, &a));
    chunks[0].sequence = chunks[1].sequence = a;
    chunks[0].tokens = chunks[1].tokens = 1;
    EXPECT(CERTKV_NULL_POINTER, begin(NULL, a, 1, &step));
    EXPECT(CERTKV_INVALID_HANDLE, begin(FOREIGN(certkv_cache), a, 1, &step));
    EXPECT(CERTKV_NULL_POINTER, begin(cache, a, 1, NULL));
    EXPECT(CERTKV_MISALIGNED, begin(cache, a, 1, ODD(certkv_step *, words)));
    EXPECT(CERTKV_NULL_POINTER, certkv_step_begin(cache, NULL, 1, &step));
    EXPECT(CERTKV_SHAPE, certkv_step_begin(cache, NULL, 0, &step));
    EXPECT(CERTKV_INVALID_ARGUMENT, certkv_step_begin(cache, chunks, UINT64_MAX, &step));
    EXPECT(CERTKV_INVALID_ARGUMENT, certkv_step_begin(cache, chunks, (uint64_t)1 << 60, &step));
    EXPECT(CERTKV_MISALIGNED, certkv_step_begin(cache, ODD(const certkv_chunk, words), 1, &step));
    EXPECT(CERTKV_BUSY_SEQUENCE, certkv_step_begin(cache, chunks, 2, &step));
    EXPECT(CERTKV_SHAPE, begin(cache, a, 0, &step));
    EXPECT(CERTKV_LENGTH, begin(cache, a, UINT64_MAX, &step));
    EXPECT(CERTKV_LENGTH, begin(cache, a, 1000, &step));
    EXPECT(CERTKV_UNKNOWN_SEQUENCE, begin(cache, a + 1, 1, &step));
    TRUE(step == NULL);
    EXPECT(CERTKV_OK, begin(cache, a, 1, &step));
    EXPECT(CERTKV_BUSY_SEQUENCE, begin(cache, a, 1, &second));
    EXPECT(CERTKV_BUSY_SEQUENCE, certkv_sequence_length(cache, a, &length));
    EXPECT(CERTKV_BUSY_SEQUENCE, certkv_sequence_truncate(cache, a, 0));
    EXPECT(CERTKV_BUSY_SEQUENCE, certkv_sequence_release(cache, a));
    EXPECT(CERTKV_BUSY_SEQUENCE, certkv_sequence_fork(cache, a, &a));
    a = chunks[0].sequence;
    EXPECT(CERTKV_ORDER, certkv_step_finish(step)); /* No layer was appended: rolled back, and over. */
    EXPECT(CERTKV_INVALID_HANDLE, certkv_step_abort(step));
    EXPECT(CERTKV_OK, certkv_sequence_length(cache, a, &length));
    TRUE(length == 0);
    EXPECT(CERTKV_OK, certkv_sequence_release(cache, a));
}

#define APPEND(step, layer, k, v, n, dtype, space) certkv_step_append(step, layer, k, v, n, dtype, space)
#define HOST CERTKV_SPACE_HOST
#define F32 CERTKV_F32

static void appends(certkv_cache *cache, certkv_step *step)
{
    uint16_t bits[KV];
    EXPECT(CERTKV_NULL_POINTER, APPEND(NULL, 0, k, v, KV, F32, HOST));
    EXPECT(CERTKV_INVALID_HANDLE, APPEND(FOREIGN(certkv_step), 0, k, v, KV, F32, HOST));
    EXPECT(CERTKV_INVALID_HANDLE, APPEND((certkv_step *)(void *)cache, 0, k, v, KV, F32, HOST));
    EXPECT(CERTKV_UNSUPPORTED, APPEND(step, 0, k, v, KV, F32, CERTKV_SPACE_DEVICE));
    EXPECT(CERTKV_UNSUPPORTED, certkv_step_after_stream(step, NULL));
    EXPECT(CERTKV_UNSUPPORTED, certkv_step_before_stream(step, NULL));
    EXPECT(CERTKV_NULL_POINTER, certkv_step_after_stream(NULL, NULL));
    EXPECT(CERTKV_NULL_POINTER, certkv_step_before_stream(NULL, NULL));
    {
        certkv_capture *capture = FOREIGN(certkv_capture), *none = NULL;
        EXPECT(CERTKV_UNSUPPORTED, certkv_step_captured(step, NULL, &capture));
        TRUE(capture == NULL);
        EXPECT(CERTKV_NULL_POINTER, certkv_step_captured(step, NULL, NULL));
        EXPECT(CERTKV_MISALIGNED, certkv_step_captured(step, NULL, ODD(certkv_capture *, &capture)));
        EXPECT(CERTKV_NULL_POINTER, certkv_step_captured(NULL, NULL, &capture));
        EXPECT(CERTKV_NULL_POINTER, certkv_step_replayed(step, NULL));
        EXPECT(CERTKV_INVALID_HANDLE, certkv_step_replayed(step, (certkv_capture *)(void *)step));
        EXPECT(CERTKV_OK, certkv_capture_destroy(none));
        EXPECT(CERTKV_INVALID_HANDLE, certkv_capture_destroy((certkv_capture *)(void *)step));
    }
    {
        certkv_ring *ring = FOREIGN(certkv_ring), *none = NULL;
        certkv_published_head heads[4];
        certkv_published_step shape = {sizeof shape, 1, 2, 3};
        uint64_t words[2] = {7, 7};
        certkv_published_memory *memory = (certkv_published_memory *)(void *)words;
        EXPECT(CERTKV_UNSUPPORTED, certkv_ring_open(cache, &ring));
        TRUE(ring == NULL);
        EXPECT(CERTKV_NULL_POINTER, certkv_ring_open(NULL, &ring));
        EXPECT(CERTKV_NULL_POINTER, certkv_ring_open(cache, NULL));
        EXPECT(CERTKV_MISALIGNED, certkv_ring_open(cache, ODD(certkv_ring *, words)));
        EXPECT(CERTKV_INVALID_HANDLE, certkv_ring_open((certkv_cache *)(void *)step, &ring));
        EXPECT(CERTKV_NULL_POINTER, certkv_ring_published(NULL, words));
        EXPECT(CERTKV_NULL_POINTER, certkv_ring_published(FOREIGN(certkv_ring), NULL));
        EXPECT(CERTKV_MISALIGNED, certkv_ring_published(FOREIGN(certkv_ring), ODD(uint64_t, words)));
        EXPECT(CERTKV_INVALID_HANDLE, certkv_ring_published(FOREIGN(certkv_ring), words));
        EXPECT(CERTKV_INVALID_HANDLE, certkv_ring_read(FOREIGN(certkv_ring), 0, heads, 4, &shape));
        EXPECT(CERTKV_NULL_POINTER, certkv_ring_read(FOREIGN(certkv_ring), 0, NULL, 4, &shape));
        EXPECT(CERTKV_NULL_POINTER, certkv_ring_read(FOREIGN(certkv_ring), 0, heads, 4, NULL));
        EXPECT(CERTKV_NULL_POINTER, certkv_ring_read(NULL, 0, heads, 4, &shape));
        EXPECT(CERTKV_MISALIGNED, certkv_ring_read(FOREIGN(certkv_ring), 0, ODD(certkv_published_head, heads), 2, &shape));
        EXPECT(CERTKV_MISALIGNED, certkv_ring_read(FOREIGN(certkv_ring), 0, heads, 4, ODD(certkv_published_step, words)));
        EXPECT(CERTKV_INVALID_ARGUMENT, certkv_ring_read(FOREIGN(certkv_ring), 0, heads, UINT64_MAX, &shape));
        shape.struct_size = 8;
        EXPECT(CERTKV_STRUCT_SIZE, certkv_ring_read(FOREIGN(certkv_ring), 0, heads, 4, &shape));
        shape.struct_size = sizeof shape;
        memcpy(heads, &shape, sizeof shape);
        EXPECT(CERTKV_OVERLAP, certkv_ring_read(FOREIGN(certkv_ring), 0, heads, 4, (certkv_published_step *)(void *)heads));
        TRUE(words[0] == 7 && words[1] == 7 && shape.layers == 1 && shape.sequences == 2 && shape.q_heads == 3);
        EXPECT(CERTKV_OK, certkv_ring_destroy(none));
        EXPECT(CERTKV_INVALID_HANDLE, certkv_ring_destroy(FOREIGN(certkv_ring)));
        EXPECT(CERTKV_UNSUPPORTED, certkv_step_publish(step, memory, sizeof words));
        EXPECT(CERTKV_NULL_POINTER, certkv_step_publish(NULL, memory, sizeof words));
        EXPECT(CERTKV_NULL_POINTER, certkv_step_publish(step, NULL, sizeof words));
        EXPECT(CERTKV_INVALID_HANDLE, certkv_step_publish(FOREIGN(certkv_step), memory, sizeof words));
        EXPECT(CERTKV_UNSUPPORTED, certkv_step_number(step, words));
        EXPECT(CERTKV_NULL_POINTER, certkv_step_number(NULL, words));
        EXPECT(CERTKV_NULL_POINTER, certkv_step_number(step, NULL));
        EXPECT(CERTKV_MISALIGNED, certkv_step_number(step, ODD(uint64_t, words)));
    }
    EXPECT(CERTKV_NULL_POINTER, certkv_step_certificates(NULL, 0, NULL, 0));
    EXPECT(CERTKV_UNSUPPORTED, certkv_step_certificates(step, 0, NULL, 0));
    EXPECT(CERTKV_UNSUPPORTED, APPEND(step, 0, k, v, KV, F32, 0));
    EXPECT(CERTKV_UNSUPPORTED, APPEND(step, 0, k, v, KV, F32, INT32_MIN));
    EXPECT(CERTKV_SHAPE, APPEND(step, 0, k, v, 0, F32, HOST));
    EXPECT(CERTKV_SHAPE, APPEND(step, 0, k, v, KV - 1, F32, HOST));
    EXPECT(CERTKV_SHAPE, APPEND(step, 0, k, v, UINT64_MAX, F32, HOST));
    EXPECT(CERTKV_SHAPE, APPEND(step, 0, k, v, (uint64_t)KV << 32, F32, HOST));
    EXPECT(CERTKV_NULL_POINTER, APPEND(step, 0, NULL, v, KV, F32, HOST));
    EXPECT(CERTKV_NULL_POINTER, APPEND(step, 0, k, NULL, KV, F32, HOST));
    EXPECT(CERTKV_MISALIGNED, APPEND(step, 0, ODD(float, k), v, KV, F32, HOST));
    EXPECT(CERTKV_MISALIGNED, APPEND(step, 0, k, ODD(uint16_t, v), KV, CERTKV_F16, HOST));
    EXPECT(CERTKV_INVALID_ARGUMENT, APPEND(step, 0, k, v, KV, CERTKV_DTYPE_DEFAULT, HOST));
    EXPECT(CERTKV_INVALID_ARGUMENT, APPEND(step, 0, k, v, KV, -1, HOST));
    EXPECT(CERTKV_INVALID_ARGUMENT, APPEND(step, 0, k, v, KV, 4, HOST));
    EXPECT(CERTKV_LAYER, APPEND(step, 2, k, v, KV, F32, HOST));
    EXPECT(CERTKV_LAYER, APPEND(step, UINT32_MAX, k, v, KV, F32, HOST));
    k[3] = (float)NAN;
    EXPECT(CERTKV_NOT_FINITE, APPEND(step, 0, k, v, KV, F32, HOST));
    k[3] = 1e9f;
    EXPECT(CERTKV_OVERFLOW, APPEND(step, 0, k, v, KV, F32, HOST));
    k[3] = 0.0f;
    v[KV - 1] = (float)-INFINITY;
    EXPECT(CERTKV_NOT_FINITE, APPEND(step, 0, k, v, KV, F32, HOST));
    v[KV - 1] = 0.0f;
    memset(bits, 0, sizeof bits);
    bits[5] = 0x7f80; /* bf16 infinity */
    EXPECT(CERTKV_NOT_FINITE, APPEND(step, 0, bits, bits, KV, CERTKV_BF16, HOST));
    bits[5] = 0x7f00; /* bf16 1.7e38, beyond f16 */
    EXPECT(CERTKV_OVERFLOW, APPEND(step, 0, bits, bits, KV, CERTKV_BF16, HOST));
    bits[5] = 0x7c00; /* f16 infinity */
    EXPECT(CERTKV_NOT_FINITE, APPEND(step, 0, bits, bits, KV, CERTKV_F16, HOST));
}

static int32_t attend(certkv_step *step, uint32_t layer, const float *from, float *to, uint64_t n, uint64_t n_certs)
{
    return certkv_step_attend(step, layer, from, to, n, certs, n_certs, HOST);
}

/* Certificates that overlap a buffer of their call: whatever else is wrong with it, not a byte of either changes. */
static void overlapping(certkv_step *step)
{
    static union {
        certkv_certificate records[Q_HEADS + Q * sizeof(float)];
        float rows[2 * Q];
        char bytes[1];
    } both;
    static char before[sizeof both];
    const size_t behind = (Q_HEADS * sizeof *both.records) / sizeof(float) - 1; /* Their last bytes and its first. */
    const struct {
        const float *queries;
        float *out;
        uint64_t elements;
        certkv_space space;
        certkv_status want;
    } calls[] = {
        {q, both.rows, Q, CERTKV_SPACE_HOST, CERTKV_OVERLAP},
        {q, both.rows + behind, Q, CERTKV_SPACE_HOST, CERTKV_OVERLAP},
        {both.rows + behind, out, Q, CERTKV_SPACE_HOST, CERTKV_OVERLAP},
        {NULL, both.rows, Q, CERTKV_SPACE_HOST, CERTKV_OVERLAP},
        {q, both.rows, Q + 1, CERTKV_SPACE_HOST, CERTKV_SHAPE},
        {q, both.rows, UINT64_MAX, CERTKV_SPACE_HOST, CERTKV_SHAPE},
        {q, both.rows, 1, CERTKV_SPACE_HOST, CERTKV_SHAPE},
        {q, both.rows, Q, CERTKV_SPACE_DEVICE, CERTKV_UNSUPPORTED},
        {q, both.rows, Q, 9, CERTKV_UNSUPPORTED},
    };
    size_t i;
    memset(&both, 1, sizeof both);
    memcpy(before, &both, sizeof both);
    for (i = 0; i < sizeof calls / sizeof *calls; i++) {
        EXPECT(calls[i].want, certkv_step_attend(step, 0, calls[i].queries, calls[i].out, calls[i].elements, both.records, Q_HEADS,
                                                 calls[i].space));
        TRUE(memcmp(before, &both, sizeof both) == 0);
    }
    /* Beside each other they are written: the comparison sees it. */
    EXPECT(CERTKV_NULL_POINTER, certkv_step_attend(step, 0, NULL, both.rows + behind + 1, Q, both.records, Q_HEADS, CERTKV_SPACE_HOST));
    TRUE(memcmp(before, &both, sizeof both) != 0 && both.records[Q_HEADS - 1].status == CERTKV_UNCERTIFIED);
    TRUE(memcmp(before, both.rows + behind + 1, Q * sizeof(float)) == 0);
}

static void attends(certkv_step *step)
{
    uint64_t words[2 * Q];
    float *inside = (float *)(void *)&certs[1];
    size_t i;
    EXPECT(CERTKV_ORDER, attend(step, 0, q, out, Q, Q_HEADS));
    EXPECT(CERTKV_OK, APPEND(step, 0, k, v, KV, F32, HOST));
    EXPECT(CERTKV_ORDER, APPEND(step, 0, k, v, KV, F32, HOST));
    EXPECT(CERTKV_NULL_POINTER, attend(NULL, 0, q, out, Q, Q_HEADS));
    EXPECT(CERTKV_INVALID_HANDLE, attend(FOREIGN(certkv_step), 0, q, out, Q, Q_HEADS));
    EXPECT(CERTKV_LAYER, attend(step, 2, q, out, Q, Q_HEADS));
    EXPECT(CERTKV_LAYER, attend(step, UINT32_MAX, q, out, Q, Q_HEADS));
    EXPECT(CERTKV_ORDER, attend(step, 1, q, out, Q, Q_HEADS));
    EXPECT(CERTKV_SHAPE, attend(step, 0, q, out, Q + 1, Q_HEADS));
    EXPECT(CERTKV_SHAPE, attend(step, 0, q, out, UINT64_MAX, Q_HEADS));
    EXPECT(CERTKV_SHAPE, attend(step, 0, q, out, 0, Q_HEADS));
    EXPECT(CERTKV_SHAPE, attend(step, 0, q, out, Q, Q_HEADS + 1));
    EXPECT(CERTKV_INVALID_ARGUMENT, attend(step, 0, q, out, Q, UINT64_MAX));
    EXPECT(CERTKV_NULL_POINTER, attend(step, 0, NULL, out, Q, Q_HEADS));
    EXPECT(CERTKV_NULL_POINTER, attend(step, 0, q, NULL, Q, Q_HEADS));
    EXPECT(CERTKV_NULL_POINTER, certkv_step_attend(step, 0, q, out, Q, NULL, Q_HEADS, HOST));
    EXPECT(CERTKV_MISALIGNED, attend(step, 0, ODD(float, words), out, Q, Q_HEADS));
    EXPECT(CERTKV_MISALIGNED, attend(step, 0, q, ODD(float, words), Q, Q_HEADS));
    EXPECT(CERTKV_MISALIGNED, certkv_step_attend(step, 0, q, out, Q, ODD(certkv_certificate, words), Q_HEADS, HOST));
    EXPECT(CERTKV_UNSUPPORTED, certkv_step_attend(step, 0, q, out, Q, certs, Q_HEADS, CERTKV_SPACE_DEVICE));
    EXPECT(CERTKV_OVERLAP, attend(step, 0, out, out, Q, Q_HEADS));
    EXPECT(CERTKV_OVERLAP, attend(step, 0, (const float *)(void *)words, (float *)(void *)words + Q - 1, Q, Q_HEADS));
    EXPECT(CERTKV_OVERLAP, attend(step, 0, q, inside, Q, Q_HEADS));
    EXPECT(CERTKV_OVERLAP, attend(step, 0, inside, out, Q, Q_HEADS));
    overlapping(step);
    /* A failed call leaves no output, and records that certify nothing, whatever was there. */
    memset(certs, 1, sizeof certs);
    out[0] = 42.0f;
    q[7] = (float)NAN;
    EXPECT(CERTKV_NOT_FINITE, attend(step, 0, q, out, Q, Q_HEADS));
    q[7] = 0.0f;
    TRUE(out[0] == 42.0f);
    for (i = 0; i < Q_HEADS; i++) {
        TRUE(certs[i].status == CERTKV_UNCERTIFIED && !(certs[i].bound <= 1e300));
    }
    TRUE(certs[Q_HEADS].status == 1); /* Not one record more than asked for. */
    EXPECT(CERTKV_OK, certkv_step_attend(step, 0, q, out, Q, NULL, 0, HOST));
    EXPECT(CERTKV_OK, certkv_step_plan(step, 0));
    EXPECT(CERTKV_OK, attend(step, 0, q, out, Q, Q_HEADS));
    EXPECT(CERTKV_OK, certkv_step_plan(step, 0));
    EXPECT(CERTKV_ORDER, certkv_step_plan(step, 1));
    EXPECT(CERTKV_LAYER, certkv_step_plan(step, UINT32_MAX));
    EXPECT(CERTKV_NULL_POINTER, certkv_step_plan(NULL, 0));
    EXPECT(CERTKV_INVALID_HANDLE, certkv_step_plan(FOREIGN(certkv_step), 0));
    for (i = 0; i < Q_HEADS; i++) {
        TRUE(certs[i].version == CERTKV_CERTIFICATE_VERSION && certs[i].status != CERTKV_UNCERTIFIED);
        TRUE(certs[i].bound <= 1.0);
    }
    TRUE(certs[Q_HEADS].status == 1);
}

static void steps(certkv_cache *cache)
{
    certkv_sequence a = 0;
    certkv_step *step = NULL;
    uint64_t length = 0;
    EXPECT(CERTKV_OK, certkv_sequence_create(cache, &a));
    EXPECT(CERTKV_OK, begin(cache, a, 1, &step));
    appends(cache, step);
    attends(step);
    EXPECT(CERTKV_OK, APPEND(step, 1, k, v, KV, F32, HOST));
    EXPECT(CERTKV_NULL_POINTER, certkv_step_finish(NULL));
    EXPECT(CERTKV_INVALID_HANDLE, certkv_step_finish(FOREIGN(certkv_step)));
    EXPECT(CERTKV_OK, certkv_step_finish(step));
    EXPECT(CERTKV_INVALID_HANDLE, certkv_step_finish(step));
    EXPECT(CERTKV_OK, certkv_sequence_length(cache, a, &length));
    TRUE(length == 1);

    EXPECT(CERTKV_OK, certkv_step_abort(NULL));
    EXPECT(CERTKV_INVALID_HANDLE, certkv_step_abort(FOREIGN(certkv_step)));
    EXPECT(CERTKV_OK, begin(cache, a, 1, &step));
    EXPECT(CERTKV_OK, APPEND(step, 0, k, v, KV, F32, HOST));
    EXPECT(CERTKV_OK, certkv_step_abort(step));
    EXPECT(CERTKV_INVALID_HANDLE, APPEND(step, 1, k, v, KV, F32, HOST));
    EXPECT(CERTKV_INVALID_HANDLE, attend(step, 0, q, out, Q, Q_HEADS));
    EXPECT(CERTKV_INVALID_HANDLE, certkv_step_finish(step));
    EXPECT(CERTKV_INVALID_HANDLE, certkv_step_abort(step));
    EXPECT(CERTKV_OK, certkv_sequence_length(cache, a, &length));
    TRUE(length == 1);
    EXPECT(CERTKV_OK, certkv_sequence_release(cache, a));
}

static void memory(certkv_cache *cache)
{
    certkv_memory memory;
    memset(&memory, 0xee, sizeof memory);
    EXPECT(CERTKV_NULL_POINTER, certkv_cache_memory(cache, NULL));
    EXPECT(CERTKV_MISALIGNED, certkv_cache_memory(cache, ODD(certkv_memory, &memory)));
    EXPECT(CERTKV_STRUCT_SIZE, certkv_cache_memory(cache, &memory));
    memory.struct_size = (uint32_t)offsetof(certkv_memory, packed);
    EXPECT(CERTKV_INVALID_HANDLE, certkv_cache_memory(FOREIGN(certkv_cache), &memory));
    EXPECT(CERTKV_OK, certkv_cache_memory(cache, &memory));
    TRUE(memory.packed == 0xeeeeeeeeeeeeeeeeu); /* Nothing beyond the caller's struct. */
    memory.struct_size = (uint32_t)sizeof memory;
    EXPECT(CERTKV_OK, certkv_cache_memory(cache, &memory));
    TRUE(memory.live_pages == 0 && memory.tokens == 0 && memory.packed == 0 && memory.host == 0);
    TRUE(memory.reserved_packed > 0 && memory.reserved_host > 0 && memory.device_limit == UINT64_MAX);
}

static void errors(void)
{
    certkv_error_info info;
    uint64_t words[8];
    memset(&info, 0xee, sizeof info);
    EXPECT(CERTKV_NULL_POINTER, certkv_last_error(NULL));
    EXPECT(CERTKV_MISALIGNED, certkv_last_error(ODD(certkv_error_info, words)));
    info.struct_size = 0;
    EXPECT(CERTKV_STRUCT_SIZE, certkv_last_error(&info));
    EXPECT(CERTKV_INVALID_HANDLE, certkv_cache_destroy(FOREIGN(certkv_cache)));
    EXPECT(CERTKV_NULL_POINTER, certkv_last_error(NULL)); /* Does not hide the error that is asked for. */
    info.struct_size = 8;
    info.message = "mine";
    EXPECT(CERTKV_OK, certkv_last_error(&info));
    TRUE(info.status == CERTKV_INVALID_HANDLE && strcmp(info.message, "mine") == 0);
    info.struct_size = (uint32_t)sizeof info;
    EXPECT(CERTKV_OK, certkv_last_error(&info));
    TRUE(info.message != NULL && strstr(info.message, "cache") != NULL && info.cuda_result == 0);
}

/* A destroyed cache takes its steps along: they can be ended, and nothing else. */
static void orphans(void)
{
    certkv_config config = small();
    certkv_cache *cache = NULL;
    certkv_sequence a = 0;
    certkv_step *step = NULL;
    EXPECT(CERTKV_OK, certkv_cache_create(&config, &cache));
    EXPECT(CERTKV_OK, certkv_sequence_create(cache, &a));
    EXPECT(CERTKV_OK, begin(cache, a, 1, &step));
    EXPECT(CERTKV_OK, certkv_cache_destroy(cache));
    EXPECT(CERTKV_INVALID_HANDLE, certkv_sequence_create(cache, &a));
    EXPECT(CERTKV_OK, APPEND(step, 0, k, v, KV, F32, HOST));
    EXPECT(CERTKV_OK, certkv_step_abort(step));
}

int main(void)
{
    certkv_config config = small();
    certkv_cache *cache = NULL;
    size_t i;
    for (i = 0; i < KV; i++) {
        k[i] = (float)i / KV;
        v[i] = 1.0f - k[i];
    }
    for (i = 0; i < Q; i++) {
        q[i] = (float)(i % 7) / 7.0f;
    }
    configurations();
    EXPECT(CERTKV_OK, certkv_cache_create(&config, &cache));
    sequences(cache);
    beginnings(cache);
    steps(cache);
    memory(cache);
    EXPECT(CERTKV_OK, certkv_cache_destroy(cache));
    orphans();
    errors();
    return report();
}
