/* Sequences that continue from what others wrote: every wrong call, and what the right ones find. */
#include "life.h"

static uint64_t words[16];
static uint32_t prompt[TOKENS];
static certkv_cache *cache;
static certkv_sequence a;

static certkv_prefix_scope of(const char *domain)
{
    certkv_prefix_scope scope;
    memset(&scope, 0, sizeof scope);
    scope.struct_size = (uint32_t)sizeof scope;
    scope.domain = domain;
    scope.domain_bytes = strlen(domain);
    scope.model = "model";
    scope.model_bytes = 5;
    return scope;
}

/* What both calls say of one scope and prompt. */
static void refused(int line, int32_t want, const certkv_prefix_scope *scope, const uint32_t *tokens, uint64_t n)
{
    certkv_sequence made = 7;
    uint64_t found = 7;
    certkv_publication done = {sizeof done, 7, 7, 7};
    expect(line, "publish", certkv_cache_publish(cache, a, scope, tokens, n, &done), want);
    expect(line, "create_from", certkv_sequence_create_from(cache, scope, tokens, n, &made, &found), want);
    TRUE(made == CERTKV_NO_SEQUENCE && found == 7 && done.stop == 7 && done.cached == 7 && done.added == 7);
}
#define REFUSED(want, scope, tokens, n) refused(__LINE__, want, scope, tokens, n)

#define WITH(want, field, value)                       \
    do {                                               \
        certkv_prefix_scope scope_ = of("tenant");     \
        scope_.field = (value);                        \
        REFUSED(want, &scope_, prompt, TOKENS);        \
    } while (0)

static void arguments(void)
{
    certkv_prefix_scope scope = of("tenant");
    certkv_publication done = {0, 0, 0, 0};
    certkv_sequence made = 7;
    certkv_step *step = NULL;
    uint64_t n = 7;
    size_t i;
    REFUSED(CERTKV_NULL_POINTER, NULL, prompt, TOKENS);
    REFUSED(CERTKV_MISALIGNED, ODD(const certkv_prefix_scope, words), prompt, TOKENS);
    REFUSED(CERTKV_NULL_POINTER, &scope, NULL, TOKENS);
    REFUSED(CERTKV_MISALIGNED, &scope, ODD(const uint32_t, words), TOKENS);
    REFUSED(CERTKV_LENGTH, &scope, prompt, UINT64_MAX);
    REFUSED(CERTKV_LENGTH, &scope, prompt, ((uint64_t)1 << 31) + 1);
    REFUSED(CERTKV_INVALID_ARGUMENT, &scope, (const uint32_t *)(uintptr_t)(UINT64_MAX - 7), TOKENS);
    WITH(CERTKV_STRUCT_SIZE, struct_size, 0);
    WITH(CERTKV_STRUCT_SIZE, struct_size, (uint32_t)offsetof(certkv_prefix_scope, model_bytes));
    WITH(CERTKV_STRUCT_SIZE, struct_size, UINT32_MAX);
    WITH(CERTKV_NULL_POINTER, domain, NULL);
    WITH(CERTKV_NULL_POINTER, model, NULL);
    WITH(CERTKV_NULL_POINTER, adapter_bytes, 1);
    WITH(CERTKV_NULL_POINTER, salt_bytes, 1);
    WITH(CERTKV_INVALID_ARGUMENT, domain_bytes, UINT64_MAX);
    WITH(CERTKV_INVALID_ARGUMENT, model_bytes, UINT64_MAX);
    WITH(CERTKV_INVALID_ARGUMENT, adapter_bytes, 4097);
    WITH(CERTKV_INVALID_ARGUMENT, salt_bytes, UINT64_MAX);
    EXPECT(CERTKV_STRUCT_SIZE, certkv_cache_publish(cache, a, &scope, prompt, TOKENS, &done));
    EXPECT(CERTKV_MISALIGNED, certkv_cache_publish(cache, a, &scope, prompt, TOKENS, ODD(certkv_publication, words)));
    EXPECT(CERTKV_NULL_POINTER, certkv_cache_publish(NULL, a, &scope, prompt, TOKENS, NULL));
    EXPECT(CERTKV_INVALID_HANDLE, certkv_cache_publish(FOREIGN(certkv_cache), a, &scope, prompt, TOKENS, NULL));
    EXPECT(CERTKV_NULL_POINTER, certkv_sequence_create_from(cache, &scope, prompt, TOKENS, NULL, &n));
    EXPECT(CERTKV_MISALIGNED, certkv_sequence_create_from(cache, &scope, prompt, TOKENS, ODD(certkv_sequence, words), &n));
    EXPECT(CERTKV_MISALIGNED, certkv_sequence_create_from(cache, &scope, prompt, TOKENS, &made, ODD(uint64_t, words)));
    EXPECT(CERTKV_NULL_POINTER, certkv_sequence_create_from(NULL, &scope, prompt, TOKENS, &made, &n));
    EXPECT(CERTKV_INVALID_HANDLE, certkv_sequence_create_from(FOREIGN(certkv_cache), &scope, prompt, TOKENS, &made, &n));
    EXPECT(CERTKV_NULL_POINTER, certkv_cache_evict_prefixes(NULL, 1, &n));
    EXPECT(CERTKV_INVALID_HANDLE, certkv_cache_evict_prefixes(FOREIGN(certkv_cache), 1, &n));
    EXPECT(CERTKV_MISALIGNED, certkv_cache_evict_prefixes(cache, 1, ODD(uint64_t, words)));
    for (i = 0; i < STRANGERS; i++) {
        EXPECT(CERTKV_UNKNOWN_SEQUENCE, certkv_cache_publish(cache, strangers[i], &scope, prompt, TOKENS, NULL));
    }
    EXPECT(CERTKV_OK, begin(cache, a, 1, &step));
    EXPECT(CERTKV_BUSY_SEQUENCE, certkv_cache_publish(cache, a, &scope, prompt, TOKENS, NULL));
    EXPECT(CERTKV_OK, certkv_step_abort(step));
    EXPECT(CERTKV_OK, certkv_sequence_swap_out(cache, a, NULL));
    EXPECT(CERTKV_SWAPPED_OUT, certkv_cache_publish(cache, a, &scope, prompt, TOKENS, NULL));
    EXPECT(CERTKV_OK, certkv_sequence_swap_in(cache, a, NULL));
    TRUE(n == 7 && made == CERTKV_NO_SEQUENCE && words[0] == 0 && words[1] == 0);
}

static void hits(void)
{
    certkv_prefix_scope scope = of("tenant"), other = of("other"), adapted = of("tenant");
    certkv_publication done = {sizeof done, 7, 7, 7};
    certkv_sequence next = 0, none = 0;
    uint64_t n = 7, length = 7;
    adapted.adapter = "";
    EXPECT(CERTKV_OK, certkv_cache_publish(cache, a, &scope, prompt, TOKENS, &done));
    TRUE(done.stop == CERTKV_STOP_NONE && done.cached == 2 * BLOCK && done.added == 2 * BLOCK);
    EXPECT(CERTKV_OK, certkv_cache_publish(cache, a, &other, prompt, TOKENS, &done));
    TRUE(done.stop == CERTKV_STOP_ELSEWHERE && done.cached == 0 && done.added == 0);
    EXPECT(CERTKV_OK, certkv_sequence_release(cache, a));
    EXPECT(CERTKV_OK, certkv_sequence_create_from(cache, &scope, prompt, TOKENS, &next, &n));
    EXPECT(CERTKV_OK, certkv_sequence_length(cache, next, &length));
    TRUE(n == 2 * BLOCK && length == n && next != a);
    EXPECT(CERTKV_OK, certkv_sequence_create_from(cache, &other, prompt, TOKENS, &none, &n));
    TRUE(n == 0);
    EXPECT(CERTKV_OK, certkv_sequence_release(cache, none));
    EXPECT(CERTKV_OK, certkv_sequence_create_from(cache, &adapted, prompt, TOKENS, &none, &n));
    TRUE(n == 0); /* An adapter without a name is not none. */
    EXPECT(CERTKV_OK, certkv_sequence_create_from(cache, &scope, NULL, 0, &a, NULL));
    EXPECT(CERTKV_TOO_MANY_SEQUENCES, certkv_sequence_create_from(cache, &scope, prompt, TOKENS, &none, &n));
    EXPECT(CERTKV_OK, certkv_cache_evict_prefixes(cache, UINT64_MAX, &n));
    TRUE(n == 0); /* In use. */
    EXPECT(CERTKV_OK, certkv_sequence_release(cache, next));
    EXPECT(CERTKV_OK, certkv_cache_evict_prefixes(cache, UINT64_MAX, &n));
    TRUE(n == 2);
}

int main(void)
{
    certkv_cache *without = open_cache(0, 0);
    certkv_prefix_scope scope = of("tenant");
    certkv_sequence b = 7;
    uint32_t i;
    cache = open_cache(128, 4);
    a = filled(cache);
    for (i = 0; i < TOKENS; i++) {
        prompt[i] = i * i;
    }
    arguments();
    hits();
    EXPECT(CERTKV_UNSUPPORTED, certkv_cache_publish(without, 1, &scope, prompt, TOKENS, NULL));
    EXPECT(CERTKV_UNSUPPORTED, certkv_sequence_create_from(without, &scope, prompt, TOKENS, &b, NULL));
    EXPECT(CERTKV_UNSUPPORTED, certkv_cache_evict_prefixes(without, 1, NULL));
    EXPECT(CERTKV_OK, certkv_cache_destroy(without));
    EXPECT(CERTKV_OK, certkv_cache_destroy(cache));
    EXPECT(CERTKV_INVALID_HANDLE, certkv_cache_publish(cache, a, &scope, prompt, TOKENS, NULL));
    EXPECT(CERTKV_INVALID_HANDLE, certkv_cache_evict_prefixes(cache, 1, NULL));
    return report();
}
