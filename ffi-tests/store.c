/* Stores: every wrong call, with a message that names the argument, and functions of a host's own that do wrong. The argument is a folder to
 * write to. */
#include "life.h"
#include <pthread.h>
#include <stdlib.h>

/* A store of at most so many records. The library calls it on several threads at once. */
enum { RECORDS = 16 };
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
    certkv_store_key key;
    uint64_t bytes;
    unsigned char *record;
} kept[RECORDS];
static int destroyed, broken;
static uint64_t words[16];
static certkv_prefix_scope scope;
static uint32_t prompt[TOKENS];

static int place(const certkv_store_key *key)
{
    int at, free_one = -1;
    for (at = 0; at < RECORDS; at++) {
        if (kept[at].record == NULL) {
            free_one = at;
        } else if (memcmp(&kept[at].key, key, sizeof *key) == 0) {
            return at;
        }
    }
    return free_one;
}

static void put(void *context, certkv_put_item *items, uint64_t n)
{
    uint64_t i;
    pthread_mutex_lock(&lock);
    for (i = 0; i < n && context == (void *)kept; i++) {
        const int at = place(&items[i].key);
        const size_t head = (size_t)items[i].head_bytes, body = (size_t)items[i].body_bytes;
        unsigned char *record = at < 0 ? NULL : (unsigned char *)malloc(head + body);
        if (record == NULL) {
            items[i].result = CERTKV_ITEM_FULL;
            continue;
        }
        memcpy(record, items[i].head, head);
        memcpy(record + head, items[i].body, body);
        free(kept[at].record);
        kept[at].key = items[i].key;
        kept[at].record = record;
        kept[at].bytes = head + body;
        items[i].result = CERTKV_ITEM_DONE;
    }
    pthread_mutex_unlock(&lock);
}

static void get(void *context, certkv_get_item *items, uint64_t n)
{
    uint64_t i;
    pthread_mutex_lock(&lock);
    for (i = 0; i < n && context == (void *)kept; i++) {
        const int at = place(&items[i].key);
        items[i].code = 7;
        if (at < 0 || kept[at].record == NULL) {
            items[i].result = CERTKV_ITEM_NOT_FOUND;
        } else if (kept[at].bytes > items[i].capacity) {
            items[i].result = CERTKV_ITEM_TOO_LARGE;
        } else {
            memcpy(items[i].buffer, kept[at].record, (size_t)kept[at].bytes);
            items[i].bytes = kept[at].bytes - (broken == 1) + (uint64_t)(broken == 2) * UINT32_MAX;
            items[i].result = broken == 3 ? -1 : CERTKV_ITEM_DONE;
        }
    }
    pthread_mutex_unlock(&lock);
}

static void exists(void *context, certkv_key_item *items, uint64_t n)
{
    uint64_t i;
    pthread_mutex_lock(&lock);
    for (i = 0; i < n && context == (void *)kept; i++) {
        const int at = place(&items[i].key);
        items[i].result = at >= 0 && kept[at].record != NULL ? CERTKV_ITEM_DONE : CERTKV_ITEM_NOT_FOUND;
    }
    pthread_mutex_unlock(&lock);
}

static void take_out(void *context, certkv_key_item *items, uint64_t n)
{
    uint64_t i;
    pthread_mutex_lock(&lock);
    for (i = 0; i < n && context == (void *)kept; i++) {
        const int at = place(&items[i].key);
        if (at >= 0) {
            free(kept[at].record);
            kept[at].record = NULL;
        }
        items[i].result = CERTKV_ITEM_DONE;
    }
    pthread_mutex_unlock(&lock);
}

static void destroy(void *context)
{
    destroyed += context == (void *)kept;
}

static certkv_store_callbacks own(void)
{
    certkv_store_callbacks made;
    memset(&made, 0, sizeof made);
    made.struct_size = (uint32_t)sizeof made;
    made.context = kept;
    made.put = put;
    made.get = get;
    made.exists = exists;
    made.remove = take_out;
    made.destroy = destroy;
    return made;
}

static int32_t make(const certkv_store_callbacks *callbacks)
{
    certkv_store *store = FOREIGN(certkv_store);
    const int32_t status = certkv_store_create(callbacks, &store);
    TRUE((store != NULL) == (status == CERTKV_OK));
    EXPECT(CERTKV_OK, certkv_store_destroy(store));
    return status;
}

#define WITH(want, word, field, value)           \
    do {                                         \
        certkv_store_callbacks callbacks_ = own(); \
        callbacks_.field = (value);              \
        NAMED(want, word, make(&callbacks_));    \
    } while (0)

static void handles(const char *folder)
{
    certkv_store_callbacks callbacks = own();
    certkv_store *store = FOREIGN(certkv_store), *second = FOREIGN(certkv_store);
    char path[4500];
    NAMED(CERTKV_NULL_POINTER, "callbacks", make(NULL));
    NAMED(CERTKV_MISALIGNED, "callbacks", make(ODD(const certkv_store_callbacks, words)));
    WITH(CERTKV_STRUCT_SIZE, "callbacks", struct_size, 0);
    WITH(CERTKV_STRUCT_SIZE, "callbacks", struct_size, (uint32_t)offsetof(certkv_store_callbacks, remove));
    WITH(CERTKV_STRUCT_SIZE, "callbacks", struct_size, UINT32_MAX);
    WITH(CERTKV_RESERVED, "callbacks->reserved", reserved, 1);
    WITH(CERTKV_NULL_POINTER, "callbacks->put", put, NULL);
    WITH(CERTKV_NULL_POINTER, "callbacks->get", get, NULL);
    WITH(CERTKV_NULL_POINTER, "callbacks->exists", exists, NULL);
    WITH(CERTKV_NULL_POINTER, "callbacks->remove", remove, NULL);
    TRUE(destroyed == 0); /* What was refused is the caller's. */
    WITH(CERTKV_OK, "", destroy, NULL);
    WITH(CERTKV_OK, "", struct_size, (uint32_t)offsetof(certkv_store_callbacks, destroy));
    TRUE(destroyed == 0);
    EXPECT(CERTKV_OK, make(&callbacks));
    TRUE(destroyed == 1);
    NAMED(CERTKV_NULL_POINTER, "store", certkv_store_create(&callbacks, NULL));
    NAMED(CERTKV_MISALIGNED, "store", certkv_store_create(&callbacks, ODD(certkv_store *, words)));
    NAMED(CERTKV_NULL_POINTER, "store", certkv_store_create_memory(0, NULL));
    NAMED(CERTKV_MISALIGNED, "store", certkv_store_create_memory(0, ODD(certkv_store *, words)));
    NAMED(CERTKV_NULL_POINTER, "store", certkv_store_open_files(folder, 0, 0, NULL));
    NAMED(CERTKV_MISALIGNED, "store", certkv_store_open_files(folder, 0, 0, ODD(certkv_store *, words)));
    TRUE(words[0] == 0 && words[1] == 0 && destroyed == 1);
    NAMED(CERTKV_NULL_POINTER, "path", certkv_store_open_files(NULL, 0, 0, &store));
    TRUE(store == NULL);
    NAMED(CERTKV_INVALID_ARGUMENT, "path", certkv_store_open_files("", 0, 0, &store));
    NAMED(CERTKV_INVALID_ARGUMENT, "path", certkv_store_open_files("\xff\xfe", 0, 0, &store));
    memset(path, 'x', sizeof path); /* Not terminated: no more than 4096 characters may be read. */
    NAMED(CERTKV_INVALID_ARGUMENT, "path", certkv_store_open_files(path, 0, 0, &store));
    NAMED(CERTKV_INVALID_ARGUMENT, "flags", certkv_store_open_files(folder, 0, 8, &store));
    NAMED(CERTKV_INVALID_ARGUMENT, "flags", certkv_store_open_files(folder, 0, UINT32_MAX, &store));
    sprintf(path, "%.4000s/store of C", folder);
    EXPECT(CERTKV_OK, certkv_store_open_files(path, 1 << 20, CERTKV_FILES_SYNCED | CERTKV_FILES_READ_BACK, &store));
    NAMED(CERTKV_FILE, path, certkv_store_open_files(path, 0, 0, &second));
    TRUE(second == NULL);
    EXPECT(CERTKV_OK, certkv_store_destroy(store));
    sprintf(path, "%.4000s/store of C/lock", folder);
    NAMED(CERTKV_FILE, path, certkv_store_open_files(path, 0, 0, &second)); /* No folder. */
    EXPECT(CERTKV_OK, certkv_store_destroy(NULL));
    NAMED(CERTKV_INVALID_HANDLE, "store", certkv_store_destroy(store));
    NAMED(CERTKV_INVALID_HANDLE, "store", certkv_store_destroy(FOREIGN(certkv_store)));
}

static int32_t spill(certkv_store *store, uint32_t workers, uint32_t in_flight, uint32_t deadline, uint32_t device)
{
    certkv_config config = small();
    certkv_cache *cache = FOREIGN(certkv_cache);
    int32_t status;
    config.spill_store = store;
    config.spill_host_tokens = 32;
    config.spill_workers = workers;
    config.spill_in_flight = in_flight;
    config.spill_deadline_ms = deadline;
    config.device = device;
    status = certkv_cache_create(&config, &cache);
    TRUE((cache != NULL) == (status == CERTKV_OK));
    EXPECT(CERTKV_OK, certkv_cache_destroy(cache));
    return status;
}

static void configurations(certkv_store *store, certkv_cache *other)
{
    const certkv_window window = {16, 0, 0};
    certkv_config config = small();
    certkv_plan plan;
    certkv_cache *cache = NULL;
    int32_t status;
    EXPECT(CERTKV_OK, spill(store, 0, 0, 0, CERTKV_DEVICE_HOST));
    EXPECT(CERTKV_OK, spill(store, 256, 2, 86400000, CERTKV_DEVICE_HOST));
    NAMED(CERTKV_INVALID_ARGUMENT, "config->spill_workers", spill(store, 257, 0, 0, CERTKV_DEVICE_HOST));
    NAMED(CERTKV_INVALID_ARGUMENT, "config->spill_in_flight", spill(store, 0, 1, 0, CERTKV_DEVICE_HOST));
    NAMED(CERTKV_INVALID_ARGUMENT, "config->spill_in_flight", spill(store, 0, 65537, 0, CERTKV_DEVICE_HOST));
    NAMED(CERTKV_INVALID_ARGUMENT, "config->spill_deadline_ms", spill(store, 0, 0, 86400001, CERTKV_DEVICE_HOST));
    NAMED(CERTKV_INVALID_HANDLE, "store", spill(FOREIGN(certkv_store), 0, 0, 0, CERTKV_DEVICE_HOST));
    NAMED(CERTKV_INVALID_HANDLE, "store", spill((certkv_store *)(void *)other, 0, 0, 0, CERTKV_DEVICE_HOST));
    /* A GPU spills, too: without one the refusal is for want of a driver. */
    status = spill(store, 0, 0, 0, CERTKV_DEVICE_CUDA);
    TRUE(status == CERTKV_DEVICE || status == CERTKV_OK);
    config.spill_store = store;
    config.windows = &window; /* In every layer: nothing is left to spill. */
    config.n_windows = 1;
    NAMED(CERTKV_INVALID_ARGUMENT, "spill", certkv_cache_create(&config, &cache));
    memset(&plan, 0, sizeof plan);
    plan.struct_size = (uint32_t)sizeof plan;
    config.windows = NULL;
    config.n_windows = 0;
    EXPECT(CERTKV_OK, certkv_config_plan(&config, &plan));
    NAMED(CERTKV_INVALID_HANDLE, "store", (config.spill_store = FOREIGN(certkv_store), certkv_config_plan(&config, &plan)));
}

/* What all three calls say of one scope and prompt. */
static void refused(int line, int32_t want, const char *word, certkv_cache *cache, certkv_store *store, const certkv_prefix_scope *of,
                    const uint32_t *tokens, uint64_t n)
{
    uint64_t a = 7, b = 7;
    expect(line, "export", certkv_cache_export_prefix(cache, store, of, tokens, n, 0, 0, &a), want);
    says(line, word);
    expect(line, "missing", certkv_cache_missing_prefix(cache, store, of, tokens, n, 0, &a, &b), want);
    says(line, word);
    expect(line, "import", certkv_cache_import_prefix(cache, store, of, tokens, n, 0, &a), want);
    says(line, word);
    TRUE(a == 7 && b == 7);
}
#define REFUSED(want, word, cache, store, of, tokens, n) refused(__LINE__, want, word, cache, store, of, tokens, n)

static void prefix_arguments(certkv_cache *cache, certkv_store *store)
{
    certkv_cache *without = open_cache(0, 0);
    certkv_prefix_scope other = scope;
    uint64_t n = 7;
    REFUSED(CERTKV_NULL_POINTER, "cache", NULL, store, &scope, prompt, TOKENS);
    REFUSED(CERTKV_INVALID_HANDLE, "cache", FOREIGN(certkv_cache), store, &scope, prompt, TOKENS);
    REFUSED(CERTKV_INVALID_HANDLE, "cache", (certkv_cache *)(void *)store, store, &scope, prompt, TOKENS);
    REFUSED(CERTKV_NULL_POINTER, "store", cache, NULL, &scope, prompt, TOKENS);
    REFUSED(CERTKV_INVALID_HANDLE, "store", cache, FOREIGN(certkv_store), &scope, prompt, TOKENS);
    REFUSED(CERTKV_INVALID_HANDLE, "store", cache, (certkv_store *)(void *)cache, &scope, prompt, TOKENS);
    REFUSED(CERTKV_NULL_POINTER, "scope", cache, store, NULL, prompt, TOKENS);
    REFUSED(CERTKV_MISALIGNED, "scope", cache, store, ODD(const certkv_prefix_scope, words), prompt, TOKENS);
    other.domain = NULL;
    REFUSED(CERTKV_NULL_POINTER, "scope->domain", cache, store, &other, prompt, TOKENS);
    REFUSED(CERTKV_NULL_POINTER, "tokens", cache, store, &scope, NULL, TOKENS);
    REFUSED(CERTKV_MISALIGNED, "tokens", cache, store, &scope, ODD(const uint32_t, words), TOKENS);
    REFUSED(CERTKV_LENGTH, "n_tokens", cache, store, &scope, prompt, UINT64_MAX);
    REFUSED(CERTKV_UNSUPPORTED, "config->prefix_units", without, store, &scope, prompt, TOKENS);
    NAMED(CERTKV_MISALIGNED, "exported", certkv_cache_export_prefix(cache, store, &scope, prompt, TOKENS, 0, 0, ODD(uint64_t, words)));
    NAMED(CERTKV_MISALIGNED, "missing", certkv_cache_missing_prefix(cache, store, &scope, prompt, TOKENS, 0, ODD(uint64_t, words), &n));
    NAMED(CERTKV_MISALIGNED, "stored", certkv_cache_missing_prefix(cache, store, &scope, prompt, TOKENS, 0, &n, ODD(uint64_t, words)));
    NAMED(CERTKV_MISALIGNED, "cached", certkv_cache_import_prefix(cache, store, &scope, prompt, TOKENS, 0, ODD(uint64_t, words)));
    TRUE(n == 7 && words[0] == 0 && words[1] == 0);
    EXPECT(CERTKV_OK, certkv_cache_missing_prefix(cache, NULL, &scope, prompt, TOKENS, 0, &n, NULL));
    TRUE(n == 0);
    EXPECT(CERTKV_OK, certkv_cache_missing_prefix(cache, NULL, &scope, NULL, 0, 0, NULL, NULL));
    EXPECT(CERTKV_OK, certkv_cache_destroy(without));
}

static void prefixes(certkv_store *store)
{
    static const uint8_t secret[32] = {5};
    certkv_config config = small();
    certkv_cache *one = NULL, *other = NULL;
    certkv_sequence a;
    uint64_t n = 7, stored = 7;
    config.format = "k8-v4g32-b16";
    config.max_tokens = 256;
    config.prefix_units = 8;
    config.prefix_secret = secret;
    EXPECT(CERTKV_OK, certkv_cache_create(&config, &one));
    EXPECT(CERTKV_OK, certkv_cache_create(&config, &other));
    a = filled(one);
    EXPECT(CERTKV_OK, certkv_cache_publish(one, a, &scope, prompt, TOKENS, NULL));
    prefix_arguments(one, store);
    EXPECT(CERTKV_OK, certkv_cache_export_prefix(one, store, &scope, prompt, TOKENS, 0, 0, &n));
    TRUE(n == 2);
    EXPECT(CERTKV_OK, certkv_cache_missing_prefix(other, store, &scope, prompt, TOKENS, 0, &n, &stored));
    TRUE(n == 2 && stored == 2);
    for (broken = 1; broken <= 3; broken++) {
        const char *const words_of[] = {"corrupt", "for a buffer of", "-1"};
        NAMED(broken == 1 ? CERTKV_STORE_DAMAGED : CERTKV_STORE_FAILED, words_of[broken - 1],
              certkv_cache_import_prefix(other, store, &scope, prompt, TOKENS, 0, &n));
    }
    broken = 0;
    TRUE(n == 2);
    EXPECT(CERTKV_OK, certkv_cache_import_prefix(other, store, &scope, prompt, TOKENS, 0, &n));
    TRUE(n == 2 * BLOCK);
    EXPECT(CERTKV_OK, certkv_cache_export_prefix(one, store, &scope, prompt, TOKENS, UINT64_MAX, 0, &n));
    TRUE(n == 0);
    EXPECT(CERTKV_OK, certkv_cache_export_prefix(one, store, &scope, prompt, TOKENS, 0, 0, NULL));
    EXPECT(CERTKV_OK, certkv_cache_import_prefix(other, store, &scope, prompt, TOKENS, 0, NULL));
    EXPECT(CERTKV_OK, certkv_cache_destroy(one));
    EXPECT(CERTKV_OK, certkv_cache_destroy(other));
    NAMED(CERTKV_INVALID_HANDLE, "cache", certkv_cache_import_prefix(other, store, &scope, prompt, TOKENS, 0, NULL));
}

int main(int count, char **arguments_given)
{
    certkv_store_callbacks callbacks = own();
    certkv_store *store = NULL, *memory = NULL;
    certkv_cache *cache = open_cache(0, 0);
    uint32_t i;
    TRUE(count == 2);
    memset(&scope, 0, sizeof scope);
    scope.struct_size = (uint32_t)sizeof scope;
    scope.domain = "tenant";
    scope.domain_bytes = 6;
    scope.model = "model";
    scope.model_bytes = 5;
    for (i = 0; i < TOKENS; i++) {
        prompt[i] = i * i;
    }
    handles(arguments_given[count - 1]);
    destroyed = 0;
    EXPECT(CERTKV_OK, certkv_store_create(&callbacks, &store));
    EXPECT(CERTKV_OK, certkv_store_create_memory(0, &memory));
    configurations(memory, cache);
    prefixes(store);
    EXPECT(CERTKV_OK, certkv_store_destroy(memory));
    EXPECT(CERTKV_OK, certkv_store_destroy(store));
    TRUE(destroyed == 1);
    EXPECT(CERTKV_OK, certkv_cache_destroy(cache));
    for (i = 0; i < RECORDS; i++) {
        free(kept[i].record);
    }
    return report();
}
