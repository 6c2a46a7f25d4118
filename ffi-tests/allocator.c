/* A host's own memory for pages: every wrong one, one that runs out at every call, and one whose cache says what others say. */
#include "life.h"
#include <stdlib.h>

struct pool {
    uint64_t calls, given, bytes, fails_at, skew, wrong;
};

static uint64_t words[32];

static void *take(void *context, uint64_t bytes, uint64_t alignment)
{
    struct pool *pool = (struct pool *)context;
    char *raw, *memory;
    pool->wrong += bytes == 0 || alignment != 64;
    if (++pool->calls == pool->fails_at) {
        return NULL;
    }
    /* In front of what is given: where it began, and how much was asked for. Filled with what is no 0. */
    raw = (char *)malloc((size_t)(bytes + 3 * alignment));
    memory = raw + 2 * alignment - (size_t)((uintptr_t)raw % alignment) + pool->skew;
    memset(memory, 0xa5, (size_t)bytes);
    memcpy(memory - 64, &raw, sizeof raw);
    memcpy(memory - 32, &bytes, sizeof bytes);
    pool->given++;
    pool->bytes += bytes;
    return memory;
}

static void give(void *context, void *memory, uint64_t bytes, uint64_t alignment)
{
    struct pool *pool = (struct pool *)context;
    char *raw;
    uint64_t asked;
    memcpy(&raw, (char *)memory - 64, sizeof raw);
    memcpy(&asked, (char *)memory - 32, sizeof asked);
    pool->wrong += memory == NULL || asked != bytes || alignment != 64;
    pool->given--;
    pool->bytes -= bytes;
    free(raw);
}

static certkv_config own(const certkv_allocator *allocator)
{
    certkv_config config = small();
    config.format = "k8-v4g32-b16+k8-v4g32-b32";
    config.max_tokens = 256;
    config.swap_tokens = 64;
    config.scratch_keys = 3;
    config.allocator = allocator;
    return config;
}

/* The outputs of a sequence's first and second step. */
static void decode(certkv_cache *cache, float *out, certkv_certificate *certificates)
{
    certkv_sequence a = filled(cache);
    certkv_step *step = NULL;
    uint32_t layer;
    EXPECT(CERTKV_OK, certkv_sequence_swap_out(cache, a, NULL));
    EXPECT(CERTKV_OK, certkv_sequence_swap_in(cache, a, NULL));
    EXPECT(CERTKV_OK, begin(cache, a, 1, &step));
    for (layer = 0; layer < 2; layer++) {
        EXPECT(CERTKV_OK, certkv_step_append(step, layer, rows, rows, KV, CERTKV_F32, CERTKV_SPACE_HOST));
        EXPECT(CERTKV_OK, certkv_step_attend(step, layer, rows, out + layer * Q, Q, certificates + layer * Q_HEADS, Q_HEADS, CERTKV_SPACE_HOST));
    }
    EXPECT(CERTKV_OK, certkv_step_finish(step));
}

int main(void)
{
    static float out[2][2 * Q];
    static certkv_certificate certificates[2][2 * Q_HEADS];
    struct pool pool;
    certkv_allocator allocator;
    certkv_config config, plain;
    certkv_cache *cache = NULL, *other = NULL;
    certkv_plan plan;
    certkv_sequence a = 0;
    certkv_step *step = NULL;
    uint32_t sizes[] = {0, 24, 31, 4097, UINT32_MAX};
    uint64_t calls, at;
    size_t i;
    memset(&pool, 0, sizeof pool);
    memset(&allocator, 0, sizeof allocator);
    allocator.context = &pool;
    allocator.allocate = take;
    allocator.free = give;
    config = own(&allocator);
    for (i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        allocator.struct_size = sizes[i];
        EXPECT(CERTKV_STRUCT_SIZE, certkv_cache_create(&config, &cache));
        SAYS("config->allocator");
    }
    allocator.struct_size = (uint32_t)sizeof allocator;
    allocator.reserved = 1;
    EXPECT(CERTKV_RESERVED, certkv_cache_create(&config, &cache));
    SAYS("config->allocator->reserved");
    allocator.reserved = 0;
    allocator.allocate = NULL;
    EXPECT(CERTKV_NULL_POINTER, certkv_cache_create(&config, &cache));
    SAYS("config->allocator->allocate");
    allocator.allocate = take;
    allocator.free = NULL;
    EXPECT(CERTKV_NULL_POINTER, certkv_cache_create(&config, &cache));
    SAYS("config->allocator->free");
    allocator.free = give;
    config.allocator = ODD(const certkv_allocator, words);
    EXPECT(CERTKV_MISALIGNED, certkv_cache_create(&config, &cache));
    SAYS("config->allocator");
    config.allocator = &allocator;
    config.device = CERTKV_DEVICE_CUDA;
    EXPECT(CERTKV_UNSUPPORTED, certkv_cache_create(&config, &cache));
    SAYS("config->allocator");
    TRUE(pool.calls == 0 && cache == NULL);
    config.device = CERTKV_DEVICE_HOST;

    /* All pages are there, and no more; a plan takes nothing. */
    plan.struct_size = (uint32_t)sizeof plan;
    EXPECT(CERTKV_OK, certkv_config_plan(&config, &plan));
    TRUE(pool.calls == 0);
    EXPECT(CERTKV_OK, certkv_cache_create(&config, &cache));
    calls = pool.calls;
    TRUE(calls >= 6 && pool.given == calls && pool.bytes <= plan.packed + plan.scratch + plan.host && pool.bytes * 10 > (plan.packed + plan.scratch + plan.host) * 9);
    /* What was in the memory makes no difference. */
    plain = own(NULL);
    EXPECT(CERTKV_OK, certkv_cache_create(&plain, &other));
    decode(cache, out[0], certificates[0]);
    decode(other, out[1], certificates[1]);
    TRUE(memcmp(out[0], out[1], sizeof out[0]) == 0 && memcmp(certificates[0], certificates[1], sizeof certificates[0]) == 0);
    TRUE(pool.calls == calls); /* Nothing later. */
    /* It goes back with the last user. */
    EXPECT(CERTKV_OK, certkv_sequence_create(cache, &a));
    EXPECT(CERTKV_OK, begin(cache, a, 1, &step));
    EXPECT(CERTKV_OK, certkv_cache_destroy(cache));
    TRUE(pool.given == calls);
    EXPECT(CERTKV_OK, certkv_step_abort(step));
    TRUE(pool.given == 0 && pool.bytes == 0);

    /* Refused at each call in turn: a status, and nothing is kept. */
    for (at = 1; at <= calls; at++) {
        pool.calls = 0;
        pool.fails_at = at;
        EXPECT(CERTKV_OUT_OF_MEMORY, certkv_cache_create(&config, &cache));
        TRUE(cache == NULL && pool.given == 0 && pool.bytes == 0 && pool.calls == at);
    }
    pool.fails_at = 0;
    pool.skew = 16;
    EXPECT(CERTKV_OUT_OF_MEMORY, certkv_cache_create(&config, &cache));
    TRUE(pool.given == 0 && pool.wrong == 0);
    EXPECT(CERTKV_OK, certkv_cache_destroy(other));
    return report();
}
