/* Sequences that leave device memory and return: every wrong call, and what the right ones leave. */
#include "life.h"

static uint64_t words[8] = {7, 7};

/* What is brought ahead of a step: of a cache without a store, nothing. */
static void prefetches(certkv_cache *cache, certkv_sequence a)
{
    certkv_prefetched done = {sizeof done, 0, 7, 7, 7, 7};
    certkv_step *step = NULL;
    EXPECT(CERTKV_NULL_POINTER, certkv_sequence_prefetch(NULL, a, &done));
    EXPECT(CERTKV_INVALID_HANDLE, certkv_sequence_prefetch(FOREIGN(certkv_cache), a, &done));
    EXPECT(CERTKV_MISALIGNED, certkv_sequence_prefetch(cache, a, ODD(certkv_prefetched, words)));
    EXPECT(CERTKV_UNKNOWN_SEQUENCE, certkv_sequence_prefetch(cache, CERTKV_NO_SEQUENCE, NULL));
    done.struct_size = 8;
    EXPECT(CERTKV_OK, certkv_sequence_prefetch(cache, a, &done));
    done.struct_size = 4;
    EXPECT(CERTKV_STRUCT_SIZE, certkv_sequence_prefetch(cache, a, &done));
    done.struct_size = 12;
    EXPECT(CERTKV_STRUCT_SIZE, certkv_sequence_prefetch(cache, a, &done));
    EXPECT(CERTKV_OK, begin(cache, a, 1, &step));
    done.struct_size = (uint32_t)sizeof done;
    EXPECT(CERTKV_BUSY_SEQUENCE, certkv_sequence_prefetch(cache, a, &done));
    EXPECT(CERTKV_OK, certkv_step_abort(step));
    TRUE(done.wanted == 7 && done.fetched == 7 && done.left == 7 && done.bytes == 7);
    EXPECT(CERTKV_OK, certkv_sequence_prefetch(cache, a, NULL));
    EXPECT(CERTKV_OK, certkv_sequence_prefetch(cache, a, &done));
    TRUE(done.wanted == 0 && done.fetched == 0 && done.left == 0 && done.bytes == 0);
}

static void arguments(certkv_cache *cache, certkv_sequence a)
{
    certkv_step *step = NULL;
    uint64_t bytes = 7;
    uint32_t out = 7;
    size_t i;
    EXPECT(CERTKV_NULL_POINTER, certkv_sequence_swap_out(NULL, a, &bytes));
    EXPECT(CERTKV_NULL_POINTER, certkv_sequence_swap_in(NULL, a, &bytes));
    prefetches(cache, a);
    EXPECT(CERTKV_NULL_POINTER, certkv_sequence_is_swapped_out(NULL, a, &out));
    EXPECT(CERTKV_INVALID_HANDLE, certkv_sequence_swap_out(FOREIGN(certkv_cache), a, &bytes));
    EXPECT(CERTKV_INVALID_HANDLE, certkv_sequence_swap_in(FOREIGN(certkv_cache), a, &bytes));
    EXPECT(CERTKV_INVALID_HANDLE, certkv_sequence_is_swapped_out(FOREIGN(certkv_cache), a, &out));
    EXPECT(CERTKV_MISALIGNED, certkv_sequence_swap_out(cache, a, ODD(uint64_t, words)));
    EXPECT(CERTKV_MISALIGNED, certkv_sequence_swap_in(cache, a, ODD(uint64_t, words)));
    EXPECT(CERTKV_MISALIGNED, certkv_sequence_is_swapped_out(cache, a, ODD(uint32_t, words)));
    EXPECT(CERTKV_NULL_POINTER, certkv_sequence_is_swapped_out(cache, a, NULL));
    for (i = 0; i < STRANGERS; i++) {
        EXPECT(CERTKV_UNKNOWN_SEQUENCE, certkv_sequence_swap_out(cache, strangers[i], &bytes));
        EXPECT(CERTKV_UNKNOWN_SEQUENCE, certkv_sequence_swap_in(cache, strangers[i], NULL));
        EXPECT(CERTKV_UNKNOWN_SEQUENCE, certkv_sequence_is_swapped_out(cache, strangers[i], &out));
    }
    EXPECT(CERTKV_OK, begin(cache, a, 1, &step));
    EXPECT(CERTKV_BUSY_SEQUENCE, certkv_sequence_swap_out(cache, a, &bytes));
    EXPECT(CERTKV_BUSY_SEQUENCE, certkv_sequence_swap_in(cache, a, &bytes));
    EXPECT(CERTKV_BUSY_SEQUENCE, certkv_sequence_is_swapped_out(cache, a, &out));
    EXPECT(CERTKV_INVALID_HANDLE, certkv_sequence_swap_out((certkv_cache *)(void *)step, a, &bytes));
    EXPECT(CERTKV_OK, certkv_step_abort(step));
    EXPECT(CERTKV_NOT_SWAPPED_OUT, certkv_sequence_swap_in(cache, a, &bytes));
    TRUE(bytes == 7 && out == 7 && words[0] == 7 && words[1] == 7);
}

static void away(certkv_cache *cache, certkv_sequence a)
{
    certkv_sequence fork = 7;
    certkv_step *step = FOREIGN(certkv_step);
    uint64_t left = 0, back = 0, length = 0;
    uint32_t out = 7;
    EXPECT(CERTKV_OK, certkv_sequence_swap_out(cache, a, &left));
    EXPECT(CERTKV_OK, certkv_sequence_is_swapped_out(cache, a, &out));
    TRUE(left > 0 && out == 1);
    EXPECT(CERTKV_SWAPPED_OUT, certkv_sequence_swap_out(cache, a, NULL));
    EXPECT(CERTKV_SWAPPED_OUT, begin(cache, a, 1, &step));
    EXPECT(CERTKV_SWAPPED_OUT, certkv_sequence_fork(cache, a, &fork));
    TRUE(step == NULL && fork == CERTKV_NO_SEQUENCE);
    EXPECT(CERTKV_OK, certkv_sequence_length(cache, a, &length));
    TRUE(length == TOKENS);
    EXPECT(CERTKV_OK, certkv_sequence_swap_in(cache, a, &back));
    EXPECT(CERTKV_OK, certkv_sequence_is_swapped_out(cache, a, &out));
    TRUE(back == left && out == 0);
    EXPECT(CERTKV_OK, begin(cache, a, 1, &step));
    EXPECT(CERTKV_OK, certkv_step_abort(step));
    EXPECT(CERTKV_OK, certkv_sequence_swap_out(cache, a, NULL));
    EXPECT(CERTKV_OK, certkv_sequence_release(cache, a));
    EXPECT(CERTKV_UNKNOWN_SEQUENCE, certkv_sequence_swap_in(cache, a, NULL));
}

int main(void)
{
    certkv_cache *cache = open_cache(128, 0), *none = open_cache(0, 0);
    certkv_sequence a = filled(cache), b = filled(none);
    arguments(cache, a);
    away(cache, a);
    EXPECT(CERTKV_CAPACITY, certkv_sequence_swap_out(none, b, NULL)); /* No room outside. */
    EXPECT(CERTKV_OK, certkv_cache_destroy(none));
    EXPECT(CERTKV_OK, certkv_cache_destroy(cache));
    EXPECT(CERTKV_INVALID_HANDLE, certkv_sequence_swap_out(cache, a, NULL));
    EXPECT(CERTKV_INVALID_HANDLE, certkv_sequence_swap_in(cache, a, NULL));
    return report();
}
