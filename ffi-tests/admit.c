/* Whether a request would find its pages: every wrong call, and each verdict. */
#include "life.h"

static certkv_admission seen;

/* Pages of the class that is short first, or units to evict, if the verdict is this one; else all bits. */
static uint64_t admit(certkv_cache *cache, certkv_sequence sequence, uint64_t tokens, certkv_verdict verdict)
{
    memset(&seen, 7, sizeof seen);
    seen.struct_size = sizeof seen;
    EXPECT(CERTKV_OK, certkv_cache_admit(cache, sequence, tokens, &seen));
    TRUE(seen.struct_size == sizeof seen && (seen.units == 0 || seen.pages == 0));
    return seen.verdict == verdict ? seen.units + seen.pages : UINT64_MAX;
}

static void arguments(certkv_cache *cache, certkv_sequence a)
{
    static uint64_t words[8] = {0};
    certkv_admission admission = {sizeof admission, 7, 7, 7}, whole = {4096, 7, 7, 7};
    certkv_step *step = NULL;
    size_t i;
    EXPECT(CERTKV_NULL_POINTER, certkv_cache_admit(NULL, a, 1, &admission));
    EXPECT(CERTKV_INVALID_HANDLE, certkv_cache_admit(FOREIGN(certkv_cache), a, 1, &admission));
    EXPECT(CERTKV_NULL_POINTER, certkv_cache_admit(cache, a, 1, NULL));
    EXPECT(CERTKV_MISALIGNED, certkv_cache_admit(cache, a, 1, ODD(certkv_admission, words)));
    for (i = 1; i < STRANGERS; i++) {
        EXPECT(CERTKV_UNKNOWN_SEQUENCE, certkv_cache_admit(cache, strangers[i], 1, &admission));
    }
    EXPECT(CERTKV_LENGTH, certkv_cache_admit(cache, a, 256, &admission));
    EXPECT(CERTKV_LENGTH, certkv_cache_admit(cache, CERTKV_NO_SEQUENCE, 300, &admission));
    EXPECT(CERTKV_LENGTH, certkv_cache_admit(cache, CERTKV_NO_SEQUENCE, UINT64_MAX, &admission));
    EXPECT(CERTKV_OK, begin(cache, a, 1, &step));
    EXPECT(CERTKV_BUSY_SEQUENCE, certkv_cache_admit(cache, a, 1, &admission));
    EXPECT(CERTKV_OK, certkv_step_abort(step));
    for (i = 0; i < 8; i++) {
        admission.struct_size = (uint32_t)i;
        EXPECT(CERTKV_STRUCT_SIZE, certkv_cache_admit(cache, a, 1, &admission));
    }
    TRUE(admission.verdict == 7 && admission.units == 7 && admission.pages == 7);
    /* An older header knows the verdict alone; sizes beyond all sense are refused. */
    admission.struct_size = (uint32_t)offsetof(certkv_admission, units);
    EXPECT(CERTKV_OK, certkv_cache_admit(cache, a, 1, &admission));
    TRUE(admission.verdict == CERTKV_FITS && admission.units == 7 && admission.pages == 7);
    whole.struct_size = UINT32_MAX;
    EXPECT(CERTKV_STRUCT_SIZE, certkv_cache_admit(cache, a, 1, &whole));
}

/* Of 16 blocks, `a` has 2 full ones and an open one. */
static void verdicts(certkv_cache *cache, certkv_sequence a)
{
    static uint32_t prompt[TOKENS];
    certkv_prefix_scope scope;
    certkv_step *step = NULL;
    certkv_sequence b = 0;
    memset(&scope, 0, sizeof scope);
    scope.struct_size = sizeof scope;
    TRUE(admit(cache, a, 0, CERTKV_FITS) == 0 && admit(cache, CERTKV_NO_SEQUENCE, 0, CERTKV_FITS) == 0);
    TRUE(admit(cache, CERTKV_NO_SEQUENCE, 14 * BLOCK, CERTKV_FITS) == 0);
    TRUE(admit(cache, CERTKV_NO_SEQUENCE, 15 * BLOCK, CERTKV_LACKS) == 1);
    TRUE(admit(cache, CERTKV_NO_SEQUENCE, 16 * BLOCK, CERTKV_LACKS) == 2);
    /* Outside, it counts with the pages of its return. */
    EXPECT(CERTKV_OK, certkv_sequence_swap_out(cache, a, NULL));
    TRUE(admit(cache, CERTKV_NO_SEQUENCE, 16 * BLOCK, CERTKV_FITS) == 0);
    TRUE(admit(cache, a, 14 * BLOCK - TOKENS % BLOCK, CERTKV_FITS) == 0);
    EXPECT(CERTKV_OK, certkv_sequence_swap_in(cache, a, NULL));
    /* What is cached and not used gives way. */
    EXPECT(CERTKV_OK, certkv_cache_publish(cache, a, &scope, prompt, TOKENS, NULL));
    TRUE(admit(cache, CERTKV_NO_SEQUENCE, 16 * BLOCK, CERTKV_LACKS) == 2);
    EXPECT(CERTKV_OK, certkv_sequence_release(cache, a));
    TRUE(admit(cache, CERTKV_NO_SEQUENCE, 15 * BLOCK, CERTKV_FITS_AFTER_EVICTION) == 1);
    TRUE(admit(cache, CERTKV_NO_SEQUENCE, 16 * BLOCK, CERTKV_FITS_AFTER_EVICTION) == 2);
    EXPECT(CERTKV_OK, certkv_sequence_create(cache, &b));
    EXPECT(CERTKV_OK, begin(cache, b, 16 * BLOCK, &step));
    EXPECT(CERTKV_OK, certkv_step_abort(step));
    EXPECT(CERTKV_UNKNOWN_SEQUENCE, certkv_cache_admit(cache, a, 1, &seen));
}

int main(void)
{
    certkv_cache *cache = open_cache(64, 4);
    certkv_sequence a = filled(cache);
    arguments(cache, a);
    verdicts(cache, a);
    EXPECT(CERTKV_OK, certkv_cache_destroy(cache));
    EXPECT(CERTKV_INVALID_HANDLE, certkv_cache_admit(cache, a, 1, &seen));
    return report();
}
