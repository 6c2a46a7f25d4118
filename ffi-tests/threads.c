/* Long lives of several threads on one cache: each with sequences of its own, which it steps, forks, cuts, swaps and publishes, on the handles that all
 * share; one that reads figures, events and metrics all the while; one whose caches come and go. Outputs are those of a thread alone.
 * Runs under ThreadSanitizer, too (.ci/race). PLANT 1: all threads write one number of this program's. 2: they write the queries that the library reads
 * for others. */
#define _POSIX_C_SOURCE 200112L
#include "check.h"
#include <pthread.h>
#include <stdlib.h>

#ifndef PLANT
#define PLANT 0
#endif
/* Threads of a cache's kernels: 1, and so many. */
#ifndef WORKERS
#define WORKERS 2
#endif

enum { THREADS = 4, ROUNDS = 12, PROMPT = 40, STEPS = 6, BLOCK = 16 };

static certkv_cache *shared;
static int planted;

/* What a thread has found; checks of check.h are one thread's. */
typedef struct {
    uint64_t seed;
    int failed;
    float sum;
    float rows[PROMPT * KV];
    float queries[Q];
    float out[Q];
} life;

static life all[THREADS + 2];

static void told(life *mine, int line, int32_t got)
{
    if (got != CERTKV_OK) {
        printf("thread %d, line %d: %s\n", (int)mine->seed, line, certkv_status_name(got));
        mine->failed++;
    }
}
#define TOLD(call) told(mine, __LINE__, (call))

static void step(life *mine, certkv_sequence sequence, uint64_t tokens)
{
    certkv_certificate certificates[Q_HEADS];
    certkv_step *open = NULL;
    float *asked = PLANT == 2 ? all[0].queries : mine->queries;
    uint32_t layer;
    size_t i;
    certkv_chunk chunk;
    chunk.sequence = sequence;
    chunk.tokens = tokens;
    TOLD(certkv_step_begin(shared, &chunk, 1, &open));
    for (layer = 0; layer < 2; layer++) {
        TOLD(certkv_step_append(open, layer, mine->rows, mine->rows, tokens * KV, CERTKV_F32, CERTKV_SPACE_HOST));
        if (tokens == 1) {
            for (i = 0; i < Q; i++) {
                asked[i] = mine->rows[i] * 2.0f;
            }
            TOLD(certkv_step_attend(open, layer, asked, mine->out, Q, certificates, Q_HEADS, CERTKV_SPACE_HOST));
            for (i = 0; i < Q_HEADS; i++) {
                mine->failed += !held(&certificates[i]);
            }
            for (i = 0; PLANT == 0 && i < Q; i++) {
                mine->sum += mine->out[i] * (float)(i + 1);
            }
        }
    }
    TOLD(certkv_step_finish(open));
}

static void *lives(void *given)
{
    life *mine = (life *)given;
    certkv_prefix_scope scope;
    uint32_t prompt[PROMPT];
    uint64_t moved = 0, found = 0, length = 0;
    size_t i;
    int round, at;
    /* Before any call: whatever the library locks orders the threads from there on. */
    planted += PLANT == 1;
    memset(&scope, 0, sizeof scope);
    scope.struct_size = (uint32_t)sizeof scope;
    scope.domain = &mine->seed;
    scope.domain_bytes = sizeof mine->seed;
    for (i = 0; i < PROMPT * KV; i++) {
        mine->rows[i] = (float)((i * 7919 + mine->seed * 104729) % 257) / 257.0f - 0.5f;
    }
    for (i = 0; i < PROMPT; i++) {
        prompt[i] = (uint32_t)(i + mine->seed);
    }
    for (round = 0; round < ROUNDS; round++) {
        certkv_sequence sequence = 0, fork = 0;
        if (round % 3 == 2) {
            TOLD(certkv_sequence_create_from(shared, &scope, prompt, PROMPT, &sequence, &found));
            TOLD(certkv_sequence_truncate(shared, sequence, 0));
        } else {
            TOLD(certkv_sequence_create(shared, &sequence));
        }
        step(mine, sequence, PROMPT);
        TOLD(certkv_cache_publish(shared, sequence, &scope, prompt, PROMPT, NULL));
        for (at = 0; at < STEPS; at++) {
            step(mine, sequence, 1);
        }
        TOLD(certkv_sequence_fork(shared, sequence, &fork));
        step(mine, fork, 1);
        TOLD(certkv_sequence_swap_out(shared, sequence, &moved));
        step(mine, fork, 1);
        TOLD(certkv_sequence_swap_in(shared, sequence, &moved));
        TOLD(certkv_sequence_truncate(shared, sequence, PROMPT - 5));
        step(mine, sequence, 1);
        TOLD(certkv_sequence_length(shared, sequence, &length));
        mine->failed += length != PROMPT - 4;
        /* What a thread is refused is its own. */
        mine->failed += certkv_sequence_length(shared, 77 + mine->seed, &length) != CERTKV_UNKNOWN_SEQUENCE;
        TOLD(certkv_sequence_release(shared, fork));
        TOLD(certkv_sequence_release(shared, sequence));
    }
    return NULL;
}

static void *looks(void *given)
{
    life *mine = (life *)given;
    static certkv_move_event moves[64];
    static char text[1 << 16];
    int round;
    for (round = 0; round < 8 * ROUNDS; round++) {
        certkv_snapshot seen;
        certkv_memory memory;
        certkv_events_read read;
        certkv_scrubbed scrubbed;
        uint64_t bytes = 0;
        memset(&seen, 0, sizeof seen);
        seen.struct_size = (uint32_t)sizeof seen;
        memset(&memory, 0, sizeof memory);
        memory.struct_size = (uint32_t)sizeof memory;
        memset(&read, 0, sizeof read);
        read.struct_size = (uint32_t)sizeof read;
        TOLD(certkv_cache_snapshot(shared, &seen));
        TOLD(certkv_cache_memory(shared, &memory));
        TOLD(certkv_cache_moves(shared, 0, moves, 64, &read));
        memset(&scrubbed, 0, sizeof scrubbed);
        scrubbed.struct_size = (uint32_t)sizeof scrubbed;
        TOLD(certkv_cache_scrub(shared, 4, round % 2, NULL, 0, &scrubbed));
        mine->failed += scrubbed.mended + scrubbed.damaged > 0;
        TOLD(certkv_cache_metrics(shared, "a", 1, text, sizeof text, &bytes));
        mine->failed += seen.packed.used > seen.packed.reserved;
    }
    return NULL;
}

static void *comes_and_goes(void *given)
{
    life *mine = (life *)given;
    int round;
    for (round = 0; round < ROUNDS; round++) {
        certkv_config config;
        certkv_cache *cache = NULL;
        certkv_sequence sequence = 0;
        TOLD(certkv_config_init(&config, (uint32_t)sizeof config));
        config.layers = 1;
        config.q_heads = Q_HEADS;
        config.kv_heads = KV_HEADS;
        config.head_dim = DIM;
        config.max_tokens = 64;
        config.threads = WORKERS;
        TOLD(certkv_cache_create(&config, &cache));
        TOLD(certkv_sequence_create(cache, &sequence));
        TOLD(certkv_cache_destroy(cache));
        mine->failed += certkv_sequence_release(cache, sequence) != CERTKV_INVALID_HANDLE;
    }
    return NULL;
}

static void run(int together)
{
    pthread_t threads[THREADS + 2];
    int i;
    for (i = 0; i < THREADS + 2; i++) {
        void *(*work)(void *) = i < THREADS ? lives : i == THREADS ? looks : comes_and_goes;
        memset(&all[i], 0, sizeof all[i]);
        all[i].seed = (uint64_t)i + 1;
        TRUE(pthread_create(&threads[i], NULL, work, &all[i]) == 0);
        if (!together) {
            TRUE(pthread_join(threads[i], NULL) == 0);
        }
    }
    for (i = 0; together && i < THREADS + 2; i++) {
        TRUE(pthread_join(threads[i], NULL) == 0);
    }
    for (i = 0; i < THREADS + 2; i++) {
        TRUE(all[i].failed == 0);
    }
}

int main(void)
{
    certkv_config config = small();
    float sums[THREADS];
    int i, workers;
    for (workers = 1; workers <= WORKERS; workers++) {
        config.format = "k8-v4g32-b16";
        config.max_tokens = 1024;
        config.max_sequences = 16;
        config.swap_tokens = 512;
        config.prefix_units = 16;
        config.move_events = 64;
        config.threads = (uint32_t)workers;
        EXPECT(CERTKV_OK, certkv_cache_create(&config, &shared));
        run(0);
        for (i = 0; i < THREADS; i++) {
            sums[i] = all[i].sum;
        }
        run(1);
        for (i = 0; i < THREADS; i++) {
            TRUE(all[i].sum == sums[i] && (PLANT != 0 || sums[i] != 0.0f));
        }
        EXPECT(CERTKV_OK, certkv_cache_destroy(shared));
    }
    TRUE(PLANT != 1 || planted > 0);
    return report();
}
