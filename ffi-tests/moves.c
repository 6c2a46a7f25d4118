/* Events of moves: every wrong call, and those of sequences that are swapped and of originals that spill. */
#include "life.h"

static uint64_t words[16];
static certkv_move_event events[512];

static certkv_events_read blank(void)
{
    certkv_events_read read;
    memset(&read, 0, sizeof read);
    read.struct_size = (uint32_t)sizeof read;
    return read;
}

static certkv_cache *noting(uint64_t moves, uint64_t swap_tokens, certkv_store *store)
{
    certkv_config config = small();
    certkv_cache *cache = NULL;
    config.format = "k8-v4g32-b16";
    config.max_tokens = 1024;
    config.max_sequences = 2;
    config.swap_tokens = swap_tokens;
    config.move_events = moves;
    config.spill_store = store;
    config.spill_host_tokens = 64;
    EXPECT(CERTKV_OK, certkv_cache_create(&config, &cache));
    return cache;
}

static void refusals(void)
{
    certkv_cache *cache = noting(8, 256, NULL), *silent = noting(0, 0, NULL);
    certkv_events_read read = blank();
    EXPECT(CERTKV_NULL_POINTER, certkv_cache_moves(NULL, 0, events, 4, &read));
    EXPECT(CERTKV_INVALID_HANDLE, certkv_cache_moves(FOREIGN(certkv_cache), 0, events, 4, &read));
    EXPECT(CERTKV_UNSUPPORTED, certkv_cache_moves(silent, 0, events, 4, &read));
    EXPECT(CERTKV_NULL_POINTER, certkv_cache_moves(cache, 0, NULL, 4, &read));
    EXPECT(CERTKV_MISALIGNED, certkv_cache_moves(cache, 0, ODD(certkv_move_event, words), 4, &read));
    EXPECT(CERTKV_INVALID_ARGUMENT, certkv_cache_moves(cache, 0, events, UINT64_MAX, &read));
    EXPECT(CERTKV_NULL_POINTER, certkv_cache_moves(cache, 0, events, 4, NULL));
    EXPECT(CERTKV_MISALIGNED, certkv_cache_moves(cache, 0, events, 4, ODD(certkv_events_read, words)));
    EXPECT(CERTKV_OVERLAP, certkv_cache_moves(cache, 0, (certkv_move_event *)(void *)&read, 1, &read));
    read.struct_size = 8;
    EXPECT(CERTKV_STRUCT_SIZE, certkv_cache_moves(cache, 0, events, 4, &read));
    read = blank();
    EXPECT(CERTKV_INVALID_ARGUMENT, certkv_cache_moves(cache, 1, events, 4, &read));
    TRUE(read.next == 0);
    EXPECT(CERTKV_OK, certkv_cache_moves(cache, 0, NULL, 0, &read));
    TRUE(read.read == 0 && read.next == 0 && read.newest == 0 && read.unit_tokens == 0);
    EXPECT(CERTKV_OK, certkv_cache_destroy(silent));
    EXPECT(CERTKV_OK, certkv_cache_destroy(cache));
    EXPECT(CERTKV_INVALID_HANDLE, certkv_cache_moves(cache, 0, events, 4, &read));
}

static void swaps(void)
{
    certkv_cache *cache = noting(6, 512, NULL);
    certkv_sequence a = filled(cache), b = filled(cache);
    certkv_events_read read = blank();
    uint64_t moved = 0, sum = 0;
    size_t i;
    EXPECT(CERTKV_OK, certkv_sequence_swap_out(cache, a, &moved));
    EXPECT(CERTKV_OK, certkv_cache_moves(cache, 0, events, 512, &read));
    TRUE(read.read == TOKENS / BLOCK && read.lost == 0 && read.next == read.newest && read.next == read.read);
    for (i = 0; i < read.read; i++) {
        TRUE(events[i].number == i && events[i].kind == CERTKV_MOVE_SWAPPED_OUT && events[i].sequence == a);
        TRUE(events[i].block == i && events[i].layer == 0 && events[i].layers == 2);
        sum += events[i].bytes;
    }
    TRUE(sum == moved);
    EXPECT(CERTKV_OK, certkv_sequence_swap_in(cache, a, &moved));
    EXPECT(CERTKV_OK, certkv_sequence_swap_out(cache, b, &moved));
    EXPECT(CERTKV_OK, certkv_sequence_swap_in(cache, b, &moved));
    /* Eight by now, of which six are left. */
    EXPECT(CERTKV_OK, certkv_cache_moves(cache, 0, events, 512, &read));
    TRUE(read.read == 6 && read.lost == 2 && read.next == 8);
    TRUE(events[0].kind == CERTKV_MOVE_SWAPPED_IN && events[0].sequence == a && events[0].number == 2);
    TRUE(events[5].kind == CERTKV_MOVE_SWAPPED_IN && events[5].sequence == b && events[5].page == events[3].page);
    EXPECT(CERTKV_OK, certkv_cache_moves(cache, 5, events, 2, &read));
    TRUE(read.read == 2 && read.lost == 0 && read.next == 7 && read.newest == 8 && events[0].number == 5);
    EXPECT(CERTKV_OK, certkv_cache_destroy(cache));
}

static void spills(void)
{
    enum { LONG = 12 };
    certkv_store *store = NULL;
    certkv_cache *cache;
    certkv_sequence all[2];
    certkv_step *step = NULL;
    certkv_events_read read = blank();
    certkv_step_options dense;
    certkv_chunk chunk;
    static float queries[Q], out[Q];
    uint64_t next = 0;
    size_t i, j, spilled = 0, fetched = 0;
    EXPECT(CERTKV_OK, certkv_store_create_memory(0, &store));
    cache = noting(4096, 0, store);
    EXPECT(CERTKV_OK, certkv_store_destroy(store));
    for (i = 0; i < 2 * LONG; i++) {
        if (i % LONG == 0) {
            all[i / LONG] = filled(cache);
            continue;
        }
        EXPECT(CERTKV_OK, begin(cache, all[i / LONG], TOKENS, &step));
        EXPECT(CERTKV_OK, certkv_step_append(step, 0, rows, rows, TOKENS * KV, CERTKV_F32, CERTKV_SPACE_HOST));
        EXPECT(CERTKV_OK, certkv_step_append(step, 1, rows, rows, TOKENS * KV, CERTKV_F32, CERTKV_SPACE_HOST));
        EXPECT(CERTKV_OK, certkv_step_finish(step));
    }
    memset(&dense, 0, sizeof dense);
    dense.struct_size = (uint32_t)sizeof dense;
    dense.policy = CERTKV_POLICY_DENSE;
    chunk.sequence = all[0];
    chunk.tokens = 1;
    EXPECT(CERTKV_OK, certkv_step_begin_with(cache, &chunk, 1, &dense, &step));
    EXPECT(CERTKV_OK, certkv_step_append(step, 0, rows, rows, KV, CERTKV_F32, CERTKV_SPACE_HOST));
    EXPECT(CERTKV_OK, certkv_step_attend(step, 0, queries, out, Q, NULL, 0, CERTKV_SPACE_HOST));
    EXPECT(CERTKV_OK, certkv_step_abort(step));
    EXPECT(CERTKV_OK, certkv_cache_moves(cache, 0, events, 512, &read));
    TRUE(read.read > 4 && read.lost == 0 && read.next == read.newest);
    next = read.next;
    for (i = 0; i < next; i++) {
        TRUE(events[i].number == i && events[i].layers == 1 && events[i].bytes > 0);
        if (events[i].kind == CERTKV_MOVE_SPILLED) {
            spilled++;
            TRUE(events[i].sequence == CERTKV_NO_SEQUENCE && events[i].block == CERTKV_NO_BLOCK);
        } else {
            size_t before = 0;
            fetched++;
            TRUE(events[i].kind == CERTKV_MOVE_FETCHED && events[i].sequence == all[0]);
            TRUE(events[i].block < LONG * TOKENS / BLOCK && events[i].layer == 0);
            /* It was spilled under the same name. */
            for (j = 0; j < i; j++) {
                before += events[j].kind == CERTKV_MOVE_SPILLED && events[j].page == events[i].page && events[j].layer == 0;
            }
            TRUE(before > 0);
        }
    }
    TRUE(spilled > 4 && fetched > 0);
    EXPECT(CERTKV_OK, certkv_cache_destroy(cache));
}

int main(void)
{
    refusals();
    swaps();
    spills();
    return report();
}
