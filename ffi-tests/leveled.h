/* Caches whose blocks have levels, for the tests of what changes and decides them. */
#ifndef LEVELED_H
#define LEVELED_H
#include "life.h"

static const certkv_level three[3] = {{"t8-v8g64-b16", 128}, {"t4-v4g64-b16", 128}, {"t2-v2g64-b16", 128}};
static uint64_t words[32];

static certkv_config leveled(const certkv_level *levels, uint32_t n)
{
    certkv_config config = small();
    config.levels = levels;
    config.n_levels = n;
    return config;
}

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

static uint32_t level(certkv_cache *cache, certkv_sequence sequence, uint64_t block)
{
    uint32_t found = 9;
    EXPECT(CERTKV_OK, certkv_sequence_level(cache, sequence, 1, block, &found));
    return found;
}

/* One token behind a sequence; its certificates hold. */
static void decode(certkv_cache *cache, certkv_sequence sequence, float towards)
{
    certkv_certificate certificates[Q_HEADS];
    certkv_step *step = NULL;
    float queries[Q], out[Q];
    uint32_t layer;
    size_t i;
    for (i = 0; i < Q; i++) {
        queries[i] = rows[i % KV] * towards;
    }
    EXPECT(CERTKV_OK, begin(cache, sequence, 1, &step));
    for (layer = 0; layer < 2; layer++) {
        EXPECT(CERTKV_OK, certkv_step_append(step, layer, rows, rows, KV, CERTKV_F32, CERTKV_SPACE_HOST));
        EXPECT(CERTKV_OK, certkv_step_attend(step, layer, queries, out, Q, certificates, Q_HEADS, CERTKV_SPACE_HOST));
        for (i = 0; i < Q_HEADS; i++) {
            TRUE(held(&certificates[i]));
        }
    }
    EXPECT(CERTKV_OK, certkv_step_finish(step));
}

#endif
