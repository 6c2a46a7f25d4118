/* Pages compared with their seals and mended, and what is left where nobody holds anything: every wrong call, damage in a host's own memory. */
#include "life.h"
#include <stdlib.h>

static uint64_t words[16];

/* The host's memory, to be looked into. */
static struct {
    char *at;
    void *raw;
    uint64_t bytes;
} given[64];

static void *take(void *context, uint64_t bytes, uint64_t alignment)
{
    size_t i;
    (void)context;
    for (i = 0; i < 64; i++) {
        if (given[i].at == NULL) {
            given[i].bytes = bytes;
            given[i].raw = malloc((size_t)(bytes + alignment));
            given[i].at = (char *)given[i].raw + alignment - (size_t)((uintptr_t)given[i].raw % alignment);
            return given[i].at;
        }
    }
    return NULL;
}

static uint64_t left_behind;

static void give(void *context, void *memory, uint64_t bytes, uint64_t alignment)
{
    size_t i;
    uint64_t at;
    (void)context;
    (void)alignment;
    for (at = 0; at < bytes; at++) {
        left_behind += ((char *)memory)[at] != 0;
    }
    for (i = 0; i < 64; i++) {
        if (given[i].at == (char *)memory) {
            given[i].at = NULL;
            free(given[i].raw);
        }
    }
}

/* The n-th page of codes, by what its seal begins with. */
static char *page(size_t n)
{
    size_t i;
    uint64_t at;
    for (i = 0; i < 64; i++) {
        for (at = 0; given[i].at != NULL && at + 64 <= given[i].bytes; at += 64) {
            if (memcmp(given[i].at + at, "CERTKVP1", 8) == 0 && n-- == 0) {
                return given[i].at + at;
            }
        }
    }
    return NULL;
}

static certkv_cache *open_own(uint32_t erase)
{
    certkv_config config = small();
    certkv_allocator allocator;
    certkv_cache *cache = NULL;
    memset(&allocator, 0, sizeof allocator);
    allocator.struct_size = (uint32_t)sizeof allocator;
    allocator.allocate = take;
    allocator.free = give;
    config.format = "k8-v4g32-b16";
    config.max_tokens = 256;
    config.erase = erase;
    config.allocator = &allocator;
    EXPECT(CERTKV_OK, certkv_cache_create(&config, &cache));
    return cache;
}

static certkv_scrubbed blank(void)
{
    certkv_scrubbed scrubbed;
    memset(&scrubbed, 0, sizeof scrubbed);
    scrubbed.struct_size = (uint32_t)sizeof scrubbed;
    return scrubbed;
}

static certkv_damage damages[4];

static certkv_scrubbed scrub(certkv_cache *cache, uint64_t pages, uint32_t originals)
{
    certkv_scrubbed scrubbed = blank();
    memset(damages, 0xee, sizeof damages);
    EXPECT(CERTKV_OK, certkv_cache_scrub(cache, pages, originals, damages, 4, &scrubbed));
    return scrubbed;
}

static void refusals(void)
{
    certkv_cache *cache = open_own(0);
    certkv_scrubbed scrubbed = blank();
    uint64_t bytes = 7;
    EXPECT(CERTKV_NULL_POINTER, certkv_cache_scrub(NULL, 1, 0, damages, 4, &scrubbed));
    EXPECT(CERTKV_INVALID_HANDLE, certkv_cache_scrub(FOREIGN(certkv_cache), 1, 0, damages, 4, &scrubbed));
    EXPECT(CERTKV_NULL_POINTER, certkv_cache_scrub(cache, 1, 0, NULL, 4, &scrubbed));
    EXPECT(CERTKV_MISALIGNED, certkv_cache_scrub(cache, 1, 0, ODD(certkv_damage, words), 4, &scrubbed));
    EXPECT(CERTKV_INVALID_ARGUMENT, certkv_cache_scrub(cache, 1, 0, damages, UINT64_MAX, &scrubbed));
    EXPECT(CERTKV_NULL_POINTER, certkv_cache_scrub(cache, 1, 0, damages, 4, NULL));
    EXPECT(CERTKV_MISALIGNED, certkv_cache_scrub(cache, 1, 0, damages, 4, ODD(certkv_scrubbed, words)));
    EXPECT(CERTKV_OVERLAP, certkv_cache_scrub(cache, 1, 0, (certkv_damage *)(void *)&scrubbed, 1, &scrubbed));
    EXPECT(CERTKV_INVALID_ARGUMENT, certkv_cache_scrub(cache, 1, 2, damages, 4, &scrubbed));
    scrubbed.struct_size = 8;
    EXPECT(CERTKV_STRUCT_SIZE, certkv_cache_scrub(cache, 1, 0, damages, 4, &scrubbed));
    scrubbed = blank();
    EXPECT(CERTKV_OK, certkv_cache_scrub(cache, UINT64_MAX, 1, NULL, 0, &scrubbed));
    TRUE(scrubbed.complete == 1 && scrubbed.pages == 0 && scrubbed.damaged == 0);
    EXPECT(CERTKV_NULL_POINTER, certkv_cache_residue(NULL, &bytes));
    EXPECT(CERTKV_INVALID_HANDLE, certkv_cache_residue(FOREIGN(certkv_cache), &bytes));
    EXPECT(CERTKV_NULL_POINTER, certkv_cache_residue(cache, NULL));
    EXPECT(CERTKV_MISALIGNED, certkv_cache_residue(cache, ODD(uint64_t, words)));
    TRUE(bytes == 7);
    EXPECT(CERTKV_OK, certkv_cache_residue(cache, &bytes));
    TRUE(bytes == 0);
    EXPECT(CERTKV_OK, certkv_cache_destroy(cache));
    EXPECT(CERTKV_INVALID_HANDLE, certkv_cache_residue(cache, &bytes));
    EXPECT(CERTKV_INVALID_HANDLE, certkv_cache_scrub(cache, 1, 0, damages, 4, &scrubbed));
}

/* Two layers of two full blocks. */
static void damage(void)
{
    certkv_cache *cache = open_own(0);
    certkv_sequence a = filled(cache);
    certkv_step *step = NULL;
    certkv_scrubbed found = scrub(cache, UINT64_MAX, 1);
    size_t n;
    TRUE(found.pages == 4 && found.complete == 1 && found.mended == 0 && found.damaged == 0 && found.busy == 0);
    for (n = 0; n < 4; n++) {
        static char before[512];
        char *at = page(n);
        TRUE(at != NULL);
        memcpy(before, at, sizeof before);
        at[9 + 97 * n] ^= 0x10;
        found = scrub(cache, UINT64_MAX, 0);
        TRUE(found.pages == 4 && found.mended == 1 && found.damaged == 0);
        TRUE(memcmp(before, at, sizeof before) == 0);
    }
    /* Beyond mending: the originals of the block are another number's. */
    {
        char *at = page(0), *rows_of_it = NULL;
        size_t i;
        uint64_t k;
        for (i = 0; i < 64 && rows_of_it == NULL; i++) {
            for (k = 0; given[i].at != NULL && k + 64 <= given[i].bytes && rows_of_it == NULL; k += 64) {
                const unsigned char *two = (const unsigned char *)given[i].at + k;
                /* The first token's keys begin with -0.5, 0.313 and 0.126, in halves. */
                if (two[0] == 0x00 && two[1] == 0xb8 && two[3] == 0x35 && two[5] == 0x30) {
                    rows_of_it = given[i].at + k;
                }
            }
        }
        TRUE(rows_of_it != NULL);
        if (rows_of_it != NULL) {
            rows_of_it[1] ^= (char)0x80;
            found = scrub(cache, UINT64_MAX, 1);
            /* Keys and values are alike here, and so are the layers: one page of originals has changed. */
            TRUE(found.damaged == 1 && found.mended == 0);
            TRUE(damages[0].fault == CERTKV_FAULT_ORIGINALS && damages[0].sequence == a && damages[0].kv_head == 0);
            TRUE(damages[0].block == 0 && damages[0].layer < 2 && damages[1].layer == 0xeeeeeeeeu);
            at = page(damages[0].layer == 0 ? 0 : 1);
            for (n = 0; n < 4; n++) {
                page(n)[100] ^= 1;
            }
            found = scrub(cache, UINT64_MAX, 0);
            TRUE(found.damaged == 1 && found.mended == 3 && damages[0].fault == CERTKV_FAULT_CODES);
            rows_of_it[1] ^= (char)0x80;
            found = scrub(cache, UINT64_MAX, 1);
            TRUE(found.damaged == 0 && found.mended == 1 && at != NULL);
        }
    }
    found = scrub(cache, 1, 0);
    TRUE(found.pages == 2 && found.complete == 0);
    found = scrub(cache, 3, 0);
    TRUE(found.pages == 2 && found.complete == 1);
    EXPECT(CERTKV_OK, begin(cache, a, 1, &step));
    found = scrub(cache, 1, 0);
    TRUE(found.pages == 0 && found.busy == 1 && found.complete == 1);
    EXPECT(CERTKV_OK, certkv_step_abort(step));
    EXPECT(CERTKV_OK, certkv_cache_destroy(cache));
}

static void leavings(void)
{
    uint32_t erase;
    for (erase = 0; erase < 2; erase++) {
        certkv_cache *cache = open_own(erase);
        certkv_sequence a = filled(cache), b = filled(cache);
        uint64_t bytes = 0;
        EXPECT(CERTKV_OK, certkv_sequence_truncate(cache, a, BLOCK));
        EXPECT(CERTKV_OK, certkv_sequence_release(cache, b));
        EXPECT(CERTKV_OK, certkv_cache_residue(cache, &bytes));
        TRUE((bytes == 0) == (erase == 1));
        left_behind = 0;
        EXPECT(CERTKV_OK, certkv_cache_destroy(cache));
        TRUE((left_behind == 0) == (erase == 1));
    }
}

int main(void)
{
    refusals();
    damage();
    leavings();
    return report();
}
