/* A cache with sequences that hold something, for programs about what becomes of them. */
#ifndef LIFE_H
#define LIFE_H
#include "check.h"

enum { TOKENS = 40, BLOCK = 16 };

static float rows[TOKENS * KV];

static certkv_cache *open_cache(uint64_t swap_tokens, uint64_t prefix_units)
{
    certkv_config config = small();
    certkv_cache *cache = NULL;
    config.format = "k8-v4g32-b16";
    config.max_tokens = 256;
    config.swap_tokens = swap_tokens;
    config.prefix_units = prefix_units;
    EXPECT(CERTKV_OK, certkv_cache_create(&config, &cache));
    return cache;
}

/* A sequence of TOKENS tokens. */
static certkv_sequence filled(certkv_cache *cache)
{
    certkv_sequence sequence = 0;
    certkv_step *step = NULL;
    uint32_t layer;
    size_t i;
    for (i = 0; i < sizeof rows / sizeof *rows; i++) {
        rows[i] = (float)((i * 7919) % 257) / 257.0f - 0.5f;
    }
    EXPECT(CERTKV_OK, certkv_sequence_create(cache, &sequence));
    EXPECT(CERTKV_OK, begin(cache, sequence, TOKENS, &step));
    for (layer = 0; layer < 2; layer++) {
        EXPECT(CERTKV_OK, certkv_step_append(step, layer, rows, rows, TOKENS * KV, CERTKV_F32, CERTKV_SPACE_HOST));
    }
    EXPECT(CERTKV_OK, certkv_step_finish(step));
    return sequence;
}

/* Numbers that are no sequence of any cache. */
static const certkv_sequence strangers[] = {0, 1, UINT64_MAX, (uint64_t)1 << 63, 0xffffffff00000000u};
enum { STRANGERS = sizeof strangers / sizeof *strangers };

#endif
