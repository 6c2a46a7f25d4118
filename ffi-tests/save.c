/* Sequences in files: every wrong call, and what the right ones leave. The argument is a folder to write to. */
#include "life.h"

static uint64_t words[8];
static const uint8_t key[32] = {1, 2, 3};

static certkv_save_scope named(const char *model)
{
    certkv_save_scope scope;
    memset(&scope, 0, sizeof scope);
    scope.struct_size = (uint32_t)sizeof scope;
    scope.model = model;
    scope.model_bytes = strlen(model);
    return scope;
}

static certkv_cache *cache;
static certkv_sequence a;
static char path[4200];

/* What both calls say of one scope and path. */
static void refused(int line, int32_t want, const certkv_save_scope *scope, const char *file)
{
    certkv_sequence made = 7;
    uint64_t bytes = 7;
    expect(line, "save", certkv_sequence_save(cache, a, scope, file, &bytes), want);
    expect(line, "restore", certkv_sequence_restore(cache, scope, file, &made), want);
    TRUE(bytes == 7 && made == CERTKV_NO_SEQUENCE);
}
#define REFUSED(want, scope, file) refused(__LINE__, want, scope, file)

#define WITH(want, field, value)                    \
    do {                                            \
        certkv_save_scope scope_ = named("model"); \
        scope_.field = (value);                     \
        REFUSED(want, &scope_, path);               \
    } while (0)

static void arguments(void)
{
    struct {
        certkv_save_scope scope;
        uint64_t tail[2];
    } newer;
    certkv_save_scope scope = named("model");
    certkv_sequence made = 7;
    certkv_step *step = NULL;
    char longest[4097];
    size_t i;
    REFUSED(CERTKV_NULL_POINTER, NULL, path);
    REFUSED(CERTKV_MISALIGNED, ODD(const certkv_save_scope, words), path);
    REFUSED(CERTKV_NULL_POINTER, &scope, NULL);
    REFUSED(CERTKV_INVALID_ARGUMENT, &scope, "");
    REFUSED(CERTKV_INVALID_ARGUMENT, &scope, "\xff\xfe");
    memset(longest, '/', sizeof longest); /* Not terminated: no more than 4096 characters may be read. */
    REFUSED(CERTKV_INVALID_ARGUMENT, &scope, longest);
    WITH(CERTKV_STRUCT_SIZE, struct_size, 0);
    WITH(CERTKV_STRUCT_SIZE, struct_size, (uint32_t)offsetof(certkv_save_scope, model_bytes));
    WITH(CERTKV_STRUCT_SIZE, struct_size, UINT32_MAX);
    WITH(CERTKV_RESERVED, reserved, 1);
    WITH(CERTKV_NULL_POINTER, model, NULL);
    WITH(CERTKV_INVALID_ARGUMENT, model_bytes, 4097);
    WITH(CERTKV_INVALID_ARGUMENT, model_bytes, UINT64_MAX);
    WITH(CERTKV_INVALID_ARGUMENT, key, (const uint8_t *)(uintptr_t)UINT64_MAX);
    memset(&newer, 0, sizeof newer);
    newer.scope = scope;
    newer.scope.struct_size = (uint32_t)sizeof newer;
    newer.tail[1] = 1;
    REFUSED(CERTKV_STRUCT_SIZE, &newer.scope, path);
    EXPECT(CERTKV_NULL_POINTER, certkv_sequence_restore(cache, &scope, path, NULL));
    EXPECT(CERTKV_MISALIGNED, certkv_sequence_restore(cache, &scope, path, ODD(certkv_sequence, words)));
    EXPECT(CERTKV_MISALIGNED, certkv_sequence_save(cache, a, &scope, path, ODD(uint64_t, words)));
    EXPECT(CERTKV_NULL_POINTER, certkv_sequence_save(NULL, a, &scope, path, NULL));
    EXPECT(CERTKV_NULL_POINTER, certkv_sequence_restore(NULL, &scope, path, &made));
    EXPECT(CERTKV_INVALID_HANDLE, certkv_sequence_save(FOREIGN(certkv_cache), a, &scope, path, NULL));
    EXPECT(CERTKV_INVALID_HANDLE, certkv_sequence_restore(FOREIGN(certkv_cache), &scope, path, &made));
    for (i = 0; i < STRANGERS; i++) {
        EXPECT(CERTKV_UNKNOWN_SEQUENCE, certkv_sequence_save(cache, strangers[i], &scope, path, NULL));
    }
    EXPECT(CERTKV_OK, begin(cache, a, 1, &step));
    EXPECT(CERTKV_BUSY_SEQUENCE, certkv_sequence_save(cache, a, &scope, path, NULL));
    EXPECT(CERTKV_OK, certkv_step_abort(step));
    EXPECT(CERTKV_FILE, certkv_sequence_restore(cache, &scope, path, &made)); /* Nothing was written so far. */
    TRUE(words[0] == 0 && words[1] == 0);
}

static void files(void)
{
    certkv_save_scope scope = named("model"), other = named("other"), keyed = named("model");
    certkv_sequence made = 7, again = 7;
    uint64_t bytes = 0, length = 0;
    certkv_error_info info;
    FILE *file;
    keyed.key = key;
    EXPECT(CERTKV_OK, certkv_sequence_save(cache, a, &keyed, path, &bytes));
    TRUE(bytes > TOKENS * KV * 4);
    EXPECT(CERTKV_OK, certkv_sequence_restore(cache, &keyed, path, &made));
    EXPECT(CERTKV_OK, certkv_sequence_length(cache, made, &length));
    TRUE(length == TOKENS && made != a);
    EXPECT(CERTKV_FILE_DAMAGED, certkv_sequence_restore(cache, &scope, path, &again)); /* Another key. */
    EXPECT(CERTKV_OK, certkv_sequence_save(cache, made, &scope, path, NULL));
    EXPECT(CERTKV_FILE_REFUSED, certkv_sequence_restore(cache, &other, path, &again));
    info.struct_size = (uint32_t)sizeof info;
    EXPECT(CERTKV_OK, certkv_last_error(&info));
    TRUE(strstr(info.message, path) != NULL && strstr(info.message, "model") != NULL);
    EXPECT(CERTKV_OK, certkv_sequence_restore(cache, &scope, path, &again));
    EXPECT(CERTKV_TOO_MANY_SEQUENCES, certkv_sequence_restore(cache, &scope, path, &again));
    file = fopen(path, "wb");
    TRUE(file != NULL && fputs("certkv", file) >= 0 && fclose(file) == 0);
    again = 7;
    EXPECT(CERTKV_OK, certkv_sequence_release(cache, made));
    EXPECT(CERTKV_FILE_REFUSED, certkv_sequence_restore(cache, &scope, path, &again));
    TRUE(again == CERTKV_NO_SEQUENCE && remove(path) == 0);
}

int main(int count, char **arguments_given)
{
    certkv_save_scope scope = named("model");
    cache = open_cache(0, 0);
    a = filled(cache);
    TRUE(count == 2);
    sprintf(path, "%.4000s/sequence+1", arguments_given[count - 1]);
    arguments();
    files();
    EXPECT(CERTKV_OK, certkv_cache_destroy(cache));
    EXPECT(CERTKV_INVALID_HANDLE, certkv_sequence_save(cache, a, &scope, path, NULL));
    return report();
}
