/* Events of cached prefixes: every wrong call, and a router that follows what becomes of a prompt. */
#include "life.h"

static uint64_t words[32];
static uint32_t prompt[TOKENS], tokens[8 * BLOCK];
static certkv_prefix_event events[8];
static certkv_prefix_scope scope;
static certkv_cache *cache;

static certkv_cache *open_with(uint64_t prefix_units, uint64_t prefix_events)
{
    certkv_config config = small();
    certkv_cache *made = NULL;
    config.format = "k8-v4g32-b16";
    config.max_tokens = 256;
    config.prefix_units = prefix_units;
    config.prefix_events = prefix_events;
    EXPECT(CERTKV_OK, certkv_cache_create(&config, &made));
    return made;
}

static certkv_events_read sized(void)
{
    certkv_events_read read;
    memset(&read, 0, sizeof read);
    read.struct_size = (uint32_t)sizeof read;
    read.read = read.next = read.lost = read.newest = 7;
    return read;
}

/* What both readers say of the same room. */
static void refused(int line, int32_t want, certkv_prefix_event *into, uint64_t n, uint32_t *with, uint64_t m, certkv_events_read *read)
{
    expect(line, "events", certkv_cache_events(cache, 0, into, n, with, m, read), want);
    expect(line, "cached_prefixes", certkv_cache_cached_prefixes(cache, into, n, with, m, read), want);
}
#define REFUSED(want, into, n, with, m, read) refused(__LINE__, want, into, n, with, m, read)

static void arguments(void)
{
    certkv_events_read read = sized();
    certkv_store_key key;
    uint32_t sizes[] = {0, 8, 39, 4097, UINT32_MAX};
    size_t i;
    memset(&key, 7, sizeof key);
    REFUSED(CERTKV_NULL_POINTER, NULL, 8, NULL, 0, &read);
    REFUSED(CERTKV_MISALIGNED, ODD(certkv_prefix_event, words), 1, NULL, 0, &read);
    REFUSED(CERTKV_INVALID_ARGUMENT, events, UINT64_MAX, NULL, 0, &read);
    REFUSED(CERTKV_NULL_POINTER, events, 8, NULL, 1, &read);
    REFUSED(CERTKV_MISALIGNED, events, 8, ODD(uint32_t, words), 16, &read);
    REFUSED(CERTKV_INVALID_ARGUMENT, events, 8, tokens, UINT64_MAX, &read);
    REFUSED(CERTKV_NULL_POINTER, events, 8, tokens, 128, NULL);
    REFUSED(CERTKV_MISALIGNED, events, 8, tokens, 128, ODD(certkv_events_read, words));
    REFUSED(CERTKV_OVERLAP, events, 8, (uint32_t *)(void *)events, 128, &read);
    memcpy(events, &read, 4);
    memcpy(tokens, &read, 4);
    REFUSED(CERTKV_OVERLAP, events, 8, tokens, 128, (certkv_events_read *)(void *)events);
    REFUSED(CERTKV_OVERLAP, events, 8, tokens + 2, 126, (certkv_events_read *)(void *)events);
    REFUSED(CERTKV_OVERLAP, events, 8, tokens, 128, (certkv_events_read *)(void *)tokens);
    memset(events, 0, 4);
    memset(tokens, 0, 4);
    for (i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        read.struct_size = sizes[i];
        REFUSED(CERTKV_STRUCT_SIZE, events, 8, tokens, 128, &read);
    }
    read.struct_size = (uint32_t)sizeof read;
    EXPECT(CERTKV_INVALID_ARGUMENT, certkv_cache_events(cache, UINT64_MAX, events, 8, tokens, 128, &read));
    EXPECT(CERTKV_SHAPE, certkv_cache_events(cache, 0, events, 8, tokens, BLOCK - 1, &read));
    EXPECT(CERTKV_NULL_POINTER, certkv_cache_events(NULL, 0, events, 8, tokens, 128, &read));
    EXPECT(CERTKV_INVALID_HANDLE, certkv_cache_events(FOREIGN(certkv_cache), 0, events, 8, tokens, 128, &read));
    EXPECT(CERTKV_NULL_POINTER, certkv_cache_cached_prefixes(NULL, events, 8, tokens, 128, &read));
    EXPECT(CERTKV_INVALID_HANDLE, certkv_cache_cached_prefixes(FOREIGN(certkv_cache), events, 8, tokens, 128, &read));
    EXPECT(CERTKV_NULL_POINTER, certkv_cache_prefix_key(NULL, &scope, prompt, TOKENS, &key));
    EXPECT(CERTKV_INVALID_HANDLE, certkv_cache_prefix_key(FOREIGN(certkv_cache), &scope, prompt, TOKENS, &key));
    EXPECT(CERTKV_NULL_POINTER, certkv_cache_prefix_key(cache, NULL, prompt, TOKENS, &key));
    EXPECT(CERTKV_MISALIGNED, certkv_cache_prefix_key(cache, ODD(const certkv_prefix_scope, words), prompt, TOKENS, &key));
    EXPECT(CERTKV_NULL_POINTER, certkv_cache_prefix_key(cache, &scope, NULL, TOKENS, &key));
    EXPECT(CERTKV_MISALIGNED, certkv_cache_prefix_key(cache, &scope, ODD(const uint32_t, words), TOKENS, &key));
    EXPECT(CERTKV_LENGTH, certkv_cache_prefix_key(cache, &scope, prompt, UINT64_MAX, &key));
    EXPECT(CERTKV_NULL_POINTER, certkv_cache_prefix_key(cache, &scope, prompt, TOKENS, NULL));
    TRUE(read.read == 7 && read.next == 7 && read.lost == 7 && read.newest == 7 && read.unit_tokens == 0);
    TRUE(key.bytes[0] == 7 && key.bytes[31] == 7 && events[0].kind == 0 && tokens[0] == 0 && words[0] == 0);
}

static int same(const certkv_store_key *a, const certkv_store_key *b)
{
    return memcmp(a->bytes, b->bytes, sizeof a->bytes) == 0;
}

static void follow(void)
{
    certkv_events_read read = sized();
    certkv_store_key root, first, second;
    certkv_sequence a = filled(cache);
    uint64_t gone = 0;
    /* Nothing yet, and how long units are. */
    EXPECT(CERTKV_OK, certkv_cache_events(cache, 0, NULL, 0, NULL, 0, &read));
    TRUE(read.unit_tokens == BLOCK && read.read == 0 && read.lost == 0 && read.next == 0 && read.newest == 0);
    EXPECT(CERTKV_OK, certkv_cache_prefix_key(cache, &scope, NULL, 0, &root));
    EXPECT(CERTKV_OK, certkv_cache_prefix_key(cache, &scope, prompt, 2 * BLOCK - 1, &first));
    EXPECT(CERTKV_OK, certkv_cache_prefix_key(cache, &scope, prompt, TOKENS, &second));
    EXPECT(CERTKV_OK, certkv_cache_publish(cache, a, &scope, prompt, TOKENS, NULL));
    EXPECT(CERTKV_OK, certkv_cache_events(cache, 0, events, 8, tokens, 8 * BLOCK, &read));
    TRUE(read.read == 2 && read.next == 2 && read.newest == 2 && read.lost == 0);
    TRUE(events[0].number == 0 && events[0].kind == CERTKV_EVENT_STORED && events[0].unit == 0 && events[0].marked == 0);
    TRUE(same(&events[0].key, &first) && same(&events[0].parent, &root) && !same(&first, &root));
    TRUE(events[1].number == 1 && events[1].unit == 1 && same(&events[1].key, &second) && same(&events[1].parent, &first));
    TRUE(memcmp(tokens, prompt, 2 * BLOCK * sizeof *prompt) == 0);
    /* Less room: what fits, and where to go on. Without tokens. */
    memset(events, 0, sizeof events);
    EXPECT(CERTKV_OK, certkv_cache_events(cache, 0, events, 8, tokens, 2 * BLOCK - 1, &read));
    TRUE(read.read == 1 && read.next == 1 && read.newest == 2 && events[1].number == 0 && events[1].kind == 0);
    EXPECT(CERTKV_OK, certkv_cache_events(cache, 1, events, 8, NULL, 0, &read));
    TRUE(read.read == 1 && read.next == 2 && events[0].number == 1);
    /* What is cached now. */
    EXPECT(CERTKV_OK, certkv_cache_cached_prefixes(cache, NULL, 0, NULL, 0, &read));
    TRUE(read.read == 2 && read.next == 2 && read.unit_tokens == BLOCK);
    read.read = 7;
    EXPECT(CERTKV_SHAPE, certkv_cache_cached_prefixes(cache, events, 1, NULL, 0, &read));
    TRUE(read.read == 2);
    EXPECT(CERTKV_SHAPE, certkv_cache_cached_prefixes(cache, events, 2, tokens, 2 * BLOCK - 1, &read));
    memset(tokens, 0, sizeof tokens);
    EXPECT(CERTKV_OK, certkv_cache_cached_prefixes(cache, events, 2, tokens, 2 * BLOCK, &read));
    TRUE(read.read == 2 && same(&events[0].key, &first) && same(&events[1].key, &second) && events[0].number == 2);
    TRUE(memcmp(tokens, prompt, 2 * BLOCK * sizeof *prompt) == 0);
    /* Two more events, and room for three. */
    EXPECT(CERTKV_OK, certkv_sequence_release(cache, a));
    EXPECT(CERTKV_OK, certkv_cache_evict_prefixes(cache, UINT64_MAX, &gone));
    TRUE(gone == 2);
    EXPECT(CERTKV_OK, certkv_cache_events(cache, 0, events, 8, tokens, 8 * BLOCK, &read));
    TRUE(read.read == 3 && read.lost == 1 && read.next == 4 && events[0].number == 1);
    TRUE(events[1].kind == CERTKV_EVENT_REMOVED && same(&events[1].key, &second) && same(&events[1].parent, &first));
    TRUE(events[2].kind == CERTKV_EVENT_REMOVED && same(&events[2].key, &first) && tokens[BLOCK] == 0);
    EXPECT(CERTKV_OK, certkv_cache_cached_prefixes(cache, events, 8, tokens, 8 * BLOCK, &read));
    TRUE(read.read == 0 && read.next == 4);
}

int main(void)
{
    certkv_cache *silent = open_with(4, 0), *without = open_with(0, 0), *none = NULL;
    certkv_config config = small();
    certkv_events_read read = sized();
    certkv_store_key key;
    uint32_t i;
    memset(&scope, 0, sizeof scope);
    scope.struct_size = (uint32_t)sizeof scope;
    scope.domain = "tenant";
    scope.domain_bytes = 6;
    cache = open_with(4, 3);
    for (i = 0; i < TOKENS; i++) {
        prompt[i] = i * i + 1;
    }
    arguments();
    follow();
    EXPECT(CERTKV_UNSUPPORTED, certkv_cache_events(silent, 0, events, 8, NULL, 0, &read));
    EXPECT(CERTKV_UNSUPPORTED, certkv_cache_cached_prefixes(silent, events, 8, NULL, 0, &read));
    EXPECT(CERTKV_OK, certkv_cache_prefix_key(silent, &scope, prompt, TOKENS, &key));
    EXPECT(CERTKV_UNSUPPORTED, certkv_cache_prefix_key(without, &scope, prompt, TOKENS, &key));
    EXPECT(CERTKV_UNSUPPORTED, certkv_cache_events(without, 0, events, 8, NULL, 0, &read));
    config.prefix_events = 1;
    EXPECT(CERTKV_INVALID_ARGUMENT, certkv_cache_create(&config, &none));
    config.prefix_units = 4;
    config.prefix_events = ((uint64_t)1 << 24) + 1;
    EXPECT(CERTKV_INVALID_ARGUMENT, certkv_cache_create(&config, &none));
    config.prefix_events = UINT64_MAX;
    EXPECT(CERTKV_INVALID_ARGUMENT, certkv_cache_create(&config, &none));
    EXPECT(CERTKV_OK, certkv_cache_destroy(silent));
    EXPECT(CERTKV_OK, certkv_cache_destroy(without));
    EXPECT(CERTKV_OK, certkv_cache_destroy(cache));
    EXPECT(CERTKV_INVALID_HANDLE, certkv_cache_events(cache, 0, events, 8, NULL, 0, &read));
    return report();
}
