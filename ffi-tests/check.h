/* Checks of statuses that every program here makes. Each includes this file once. */
#ifndef CHECK_H
#define CHECK_H
#include "held.h"
#include <certkv.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

enum { Q_HEADS = 4, KV_HEADS = 2, DIM = 64, KV = KV_HEADS * DIM, Q = Q_HEADS * DIM };

static int checks = 0, failed = 0;

static void expect(int line, const char *call, int32_t got, int32_t want)
{
    checks++;
    if (got != want) {
        failed++;
        printf("line %d: %s: %s, not %s\n", line, call, certkv_status_name(got), certkv_status_name(want));
    }
}
#define EXPECT(want, call) expect(__LINE__, #call, (call), (want))
#define TRUE(what) expect(__LINE__, #what, (what) ? CERTKV_OK : CERTKV_INTERNAL, CERTKV_OK)

/* The text of the thread's latest failure has `word`. */
static inline void says(int line, const char *word)
{
    certkv_error_info info;
    memset(&info, 0, sizeof info);
    info.struct_size = (uint32_t)sizeof info;
    EXPECT(CERTKV_OK, certkv_last_error(&info));
    expect(line, info.message, strstr(info.message, word) != NULL ? CERTKV_OK : CERTKV_INTERNAL, CERTKV_OK);
}
#define SAYS(word) says(__LINE__, word)
#define NAMED(want, word, call) \
    do {                        \
        EXPECT(want, call);     \
        SAYS(word);             \
    } while (0)

/* A pointer that nobody gave out, and one that is not aligned. Neither may be followed. */
#define FOREIGN(type) ((type *)(void *)&failed)
#define ODD(type, pointer) ((type *)(void *)((char *)(void *)(pointer) + 1))

static int32_t begin(certkv_cache *cache, certkv_sequence sequence, uint64_t tokens, certkv_step **step)
{
    certkv_chunk chunk;
    chunk.sequence = sequence;
    chunk.tokens = tokens;
    return certkv_step_begin(cache, &chunk, 1, step);
}

static certkv_config small(void)
{
    certkv_config config;
    EXPECT(CERTKV_OK, certkv_config_init(&config, (uint32_t)sizeof config));
    config.layers = 2;
    config.q_heads = Q_HEADS;
    config.kv_heads = KV_HEADS;
    config.head_dim = DIM;
    config.max_tokens = 128;
    config.max_sequences = 3;
    return config;
}

/* Says how it went; the result of main. */
static int report(void)
{
    printf("checks %d failed %d\n", checks, failed);
    return failed != 0;
}

#endif
