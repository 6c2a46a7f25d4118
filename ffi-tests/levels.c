/* Levels of blocks and who decides on them: every wrong call, changes by hand, swaps, files, prefixes, and decisions while decoding goes on. The argument is a
 * folder to write to. */
#include "life.h"

static const certkv_level three[3] = {{"t8-v8g64-b16", 128}, {"t4-v4g64-b16", 128}, {"t2-v2g64-b16", 128}};
static uint64_t words[32];

/* The text of the thread's latest failure has `word`. */
static void says(int line, const char *word)
{
    certkv_error_info info;
    memset(&info, 0, sizeof info);
    info.struct_size = (uint32_t)sizeof info;
    EXPECT(CERTKV_OK, certkv_last_error(&info));
    expect(line, info.message, strstr(info.message, word) != NULL ? CERTKV_OK : CERTKV_INTERNAL, CERTKV_OK);
}
#define NAMED(want, word, call)  \
    do {                         \
        EXPECT(want, call);      \
        says(__LINE__, word);    \
    } while (0)

static certkv_config leveled(const certkv_level *levels, uint32_t n)
{
    certkv_config config = small();
    config.levels = levels;
    config.n_levels = n;
    return config;
}

static int32_t create(const certkv_config *config)
{
    certkv_cache *cache = FOREIGN(certkv_cache);
    int32_t status = certkv_cache_create(config, &cache);
    TRUE((cache != NULL) == (status == CERTKV_OK));
    if (status == CERTKV_OK) {
        EXPECT(CERTKV_OK, certkv_cache_destroy(cache));
    }
    return status;
}

static void configurations(void)
{
    const certkv_window window = {64, 0, 0};
    certkv_level wrong[3];
    certkv_config config = leveled(three, 3);
    char long_format[80];
    EXPECT(CERTKV_OK, create(&config));
    config.format = "t8-v8g64-b16";
    EXPECT(CERTKV_OK, create(&config));
    config.format = "k8-v4g32-b16";
    NAMED(CERTKV_INVALID_ARGUMENT, "config->levels: the first level", create(&config));
    config = leveled(NULL, 3);
    NAMED(CERTKV_NULL_POINTER, "config->levels", create(&config));
    config = leveled(ODD(const certkv_level, words), 2);
    NAMED(CERTKV_MISALIGNED, "config->levels", create(&config));
    config = leveled(three, 1);
    NAMED(CERTKV_INVALID_ARGUMENT, "config->levels: 1 levels", create(&config));
    config = leveled(three, UINT32_MAX);
    NAMED(CERTKV_INVALID_ARGUMENT, "config->n_levels", create(&config));
    config = leveled(three, 9);
    NAMED(CERTKV_INVALID_ARGUMENT, "config->n_levels", create(&config));
    memcpy(wrong, three, sizeof wrong);
    config = leveled(wrong, 3);
    wrong[1].format = NULL;
    NAMED(CERTKV_NULL_POINTER, "config->levels[1].format", create(&config));
    wrong[1].format = "t4";
    NAMED(CERTKV_FORMAT, "config->levels[1].format", create(&config));
    wrong[1].format = "t4-v4g64-b16+t4-v4g64-b16";
    NAMED(CERTKV_FORMAT, "config->levels[1].format", create(&config));
    memset(long_format, 't', sizeof long_format); /* Not terminated: no more than 64 characters may be read. */
    wrong[1].format = long_format;
    NAMED(CERTKV_FORMAT, "config->levels[1].format", create(&config));
    wrong[1].format = "t8-v8g64-b16";
    NAMED(CERTKV_INVALID_ARGUMENT, "config->levels", create(&config)); /* Not fewer bytes. */
    wrong[1].format = "t4-v4g64-b32";
    NAMED(CERTKV_INVALID_ARGUMENT, "config->levels", create(&config));
    wrong[1].format = "f16-v4g64-b16";
    NAMED(CERTKV_INVALID_ARGUMENT, "config->levels", create(&config));
    wrong[1] = three[1];
    wrong[2].tokens = 0;
    NAMED(CERTKV_INVALID_ARGUMENT, "config->levels: 0 tokens", create(&config));
    wrong[2].tokens = UINT64_MAX;
    NAMED(CERTKV_INVALID_ARGUMENT, "config->levels", create(&config));
    wrong[0].tokens = wrong[1].tokens = wrong[2].tokens = 16;
    NAMED(CERTKV_INVALID_ARGUMENT, "config->levels: pages for", create(&config));
    config = leveled(three, 3);
    config.prefix_units = 4;
    EXPECT(CERTKV_OK, create(&config));
    config.windows = &window;
    config.n_windows = 1;
    NAMED(CERTKV_INVALID_ARGUMENT, "config->windows", create(&config));
    config = leveled(three, 3);
    config.reserved_more = 1;
    NAMED(CERTKV_RESERVED, "config->reserved_more", create(&config));
    config = leveled(three, 3);
    config.device = CERTKV_DEVICE_CUDA;
    NAMED(CERTKV_UNSUPPORTED, "config->levels", create(&config));
    /* A header that ends before them. */
    config = leveled(three, 3);
    config.struct_size = offsetof(certkv_config, levels);
    EXPECT(CERTKV_OK, create(&config));
}

static void controls(void)
{
    certkv_control control;
    certkv_config config = leveled(three, 3);
    EXPECT(CERTKV_NULL_POINTER, certkv_control_init(NULL, sizeof control));
    EXPECT(CERTKV_MISALIGNED, certkv_control_init(ODD(certkv_control, words), sizeof control));
    EXPECT(CERTKV_STRUCT_SIZE, certkv_control_init(&control, 8));
    EXPECT(CERTKV_STRUCT_SIZE, certkv_control_init(&control, UINT32_MAX));
    EXPECT(CERTKV_OK, certkv_control_init(&control, sizeof control));
    TRUE(control.bytes_per_token == 0.0 && control.interval > 0 && control.drift_every > 0 && control.struct_size == sizeof control);
    config.control = &control;
    NAMED(CERTKV_INVALID_ARGUMENT, "config->control: 0 bytes a token", create(&config));
    control.bytes_per_token = 200.0;
    EXPECT(CERTKV_OK, create(&config));
    config.levels = NULL;
    config.n_levels = 0;
    NAMED(CERTKV_INVALID_ARGUMENT, "config->control: there are no levels", create(&config));
    config.device = CERTKV_DEVICE_CUDA;
    NAMED(CERTKV_UNSUPPORTED, "config->control", create(&config));
    config = leveled(three, 3);
    config.control = ODD(const certkv_control, words);
    NAMED(CERTKV_MISALIGNED, "config->control", create(&config));
    config.control = &control;
    control.struct_size = 16;
    NAMED(CERTKV_STRUCT_SIZE, "config->control", create(&config));
    control.struct_size = sizeof control;
#define WRONG(field, value)                                                              \
    do {                                                                                 \
        certkv_control kept = control;                                                   \
        control.field = (value);                                                         \
        NAMED(CERTKV_INVALID_ARGUMENT, "config->control", create(&config));              \
        says(__LINE__, strcmp(#field, "bytes_per_token") == 0 ? "bytes a token" : #field); \
        control = kept;                                                                  \
    } while (0)
    WRONG(bytes_per_token, NAN);
    WRONG(bytes_per_token, -1.0);
    WRONG(bytes_per_token, INFINITY);
    WRONG(bytes_per_token, 1.0);
    WRONG(points, -1.0);
    WRONG(points, NAN);
    WRONG(keep_rank, 1.0);
    WRONG(keep_rank, NAN);
    WRONG(alpha, INFINITY);
    WRONG(drift, NAN);
    WRONG(drift_moved, -0.5);
    WRONG(keep, 1.5);
    WRONG(keep_head, -0.1);
    WRONG(mix, 1.1);
    WRONG(mix, NAN);
    WRONG(life, 0.0);
    WRONG(life, NAN);
    WRONG(protected_first, UINT64_MAX);
    WRONG(protected_last, UINT64_MAX);
    WRONG(interval, 0);
    WRONG(interval, UINT64_MAX);
    WRONG(drift_every, 0);
    control.checks = UINT32_MAX;
    control.life = INFINITY;
    control.protected_first = control.protected_last = (uint64_t)1 << 31;
    EXPECT(CERTKV_OK, create(&config));
}

static certkv_cache *opened(const certkv_control *control)
{
    certkv_config config = leveled(three, 3);
    certkv_cache *cache = NULL;
    config.control = control;
    EXPECT(CERTKV_OK, certkv_cache_create(&config, &cache));
    return cache;
}

static uint32_t level(certkv_cache *cache, certkv_sequence sequence, uint64_t block)
{
    uint32_t found = 9;
    EXPECT(CERTKV_OK, certkv_sequence_level(cache, sequence, 1, block, &found));
    return found;
}

/* One token behind a sequence; its certificates hold. */
static void decode(certkv_cache *cache, certkv_sequence sequence, float towards)
{
    certkv_certificate certificates[Q_HEADS];
    certkv_step *step = NULL;
    float queries[Q], out[Q];
    uint32_t layer;
    size_t i;
    for (i = 0; i < Q; i++) {
        queries[i] = rows[i % KV] * towards;
    }
    EXPECT(CERTKV_OK, begin(cache, sequence, 1, &step));
    for (layer = 0; layer < 2; layer++) {
        EXPECT(CERTKV_OK, certkv_step_append(step, layer, rows, rows, KV, CERTKV_F32, CERTKV_SPACE_HOST));
        EXPECT(CERTKV_OK, certkv_step_attend(step, layer, queries, out, Q, certificates, Q_HEADS, CERTKV_SPACE_HOST));
        for (i = 0; i < Q_HEADS; i++) {
            TRUE(certificates[i].status == CERTKV_EXACT || certificates[i].bound <= certificates[i].tol);
        }
    }
    EXPECT(CERTKV_OK, certkv_step_finish(step));
}

static void changes(void)
{
    certkv_cache *cache = opened(NULL), *plain = open_cache(0, 0);
    certkv_sequence a = filled(cache), b = filled(plain), fork = 0;
    certkv_step *step = NULL;
    certkv_controlled controlled = {sizeof controlled, 0, 7, 7, 7, 7, 7};
    certkv_snapshot seen;
    uint32_t found = 9;
    size_t i;
    TRUE(level(cache, a, 0) == 0 && level(plain, b, 1) == 0);
    EXPECT(CERTKV_OK, certkv_sequence_change_level(cache, a, 1, 0, 2));
    EXPECT(CERTKV_OK, certkv_sequence_fork(cache, a, &fork));
    EXPECT(CERTKV_OK, certkv_sequence_change_level(cache, a, 1, 1, 1));
    TRUE(level(cache, a, 0) == 2 && level(cache, a, 1) == 1 && level(cache, fork, 0) == 2 && level(cache, fork, 1) == 0);
    decode(cache, a, 1.0f);
    decode(cache, fork, 1.0f);
    EXPECT(CERTKV_OK, certkv_sequence_change_level(cache, a, 1, 0, 0));
    EXPECT(CERTKV_OK, certkv_sequence_change_level(cache, a, 1, 0, 0)); /* It has it. */
    decode(cache, a, 2.0f);
    memset(&seen, 0, sizeof seen);
    seen.struct_size = (uint32_t)sizeof seen;
    EXPECT(CERTKV_OK, certkv_cache_snapshot(cache, &seen));
    TRUE(seen.recodes.done == 3 && seen.recodes.bytes > 0 && seen.saturated == 0);

    /* Each argument. */
    EXPECT(CERTKV_NULL_POINTER, certkv_sequence_level(NULL, a, 1, 0, &found));
    EXPECT(CERTKV_INVALID_HANDLE, certkv_sequence_level(FOREIGN(certkv_cache), a, 1, 0, &found));
    NAMED(CERTKV_NULL_POINTER, "level", certkv_sequence_level(cache, a, 1, 0, NULL));
    NAMED(CERTKV_MISALIGNED, "level", certkv_sequence_level(cache, a, 1, 0, ODD(uint32_t, words)));
    EXPECT(CERTKV_LAYER, certkv_sequence_level(cache, a, 2, 0, &found));
    EXPECT(CERTKV_LAYER, certkv_sequence_level(cache, a, UINT32_MAX, 0, &found));
    EXPECT(CERTKV_LEVEL, certkv_sequence_level(cache, a, 1, TOKENS / BLOCK, &found));
    EXPECT(CERTKV_LEVEL, certkv_sequence_level(cache, a, 1, UINT64_MAX, &found));
    EXPECT(CERTKV_NULL_POINTER, certkv_sequence_change_level(NULL, a, 1, 0, 1));
    EXPECT(CERTKV_INVALID_HANDLE, certkv_sequence_change_level(FOREIGN(certkv_cache), a, 1, 0, 1));
    EXPECT(CERTKV_LAYER, certkv_sequence_change_level(cache, a, 2, 0, 1));
    NAMED(CERTKV_LEVEL, "block 2", certkv_sequence_change_level(cache, a, 1, TOKENS / BLOCK, 1));
    EXPECT(CERTKV_LEVEL, certkv_sequence_change_level(cache, a, 1, UINT64_MAX, 1));
    NAMED(CERTKV_LEVEL, "level 3", certkv_sequence_change_level(cache, a, 1, 0, 3));
    EXPECT(CERTKV_LEVEL, certkv_sequence_change_level(cache, a, 1, 0, UINT32_MAX));
    EXPECT(CERTKV_LEVEL, certkv_sequence_change_level(plain, b, 1, 0, 1));
    EXPECT(CERTKV_NULL_POINTER, certkv_sequence_control(NULL, a, &controlled));
    NAMED(CERTKV_MISALIGNED, "controlled", certkv_sequence_control(cache, a, ODD(certkv_controlled, words)));
    for (i = 0; i < STRANGERS; i++) {
        EXPECT(CERTKV_UNKNOWN_SEQUENCE, certkv_sequence_level(cache, strangers[i], 1, 0, &found));
        EXPECT(CERTKV_UNKNOWN_SEQUENCE, certkv_sequence_change_level(cache, strangers[i], 1, 0, 1));
    }
    TRUE(found == 9 && controlled.decided == 7);
    EXPECT(CERTKV_OK, begin(cache, a, 1, &step));
    EXPECT(CERTKV_BUSY_SEQUENCE, certkv_sequence_level(cache, a, 1, 0, &found));
    EXPECT(CERTKV_BUSY_SEQUENCE, certkv_sequence_change_level(cache, a, 1, 0, 1));
    EXPECT(CERTKV_OK, certkv_step_abort(step));
    NAMED(CERTKV_CAPACITY, "swap", certkv_sequence_swap_out(cache, a, NULL)); /* No room outside. */
    /* Nobody decides. */
    EXPECT(CERTKV_OK, certkv_sequence_control(cache, a, &controlled));
    TRUE(controlled.decided == 0 && controlled.changed == 0 && controlled.failed == 0);
    EXPECT(CERTKV_OK, certkv_sequence_control(plain, b, NULL));
    EXPECT(CERTKV_OK, certkv_cache_destroy(plain));
    EXPECT(CERTKV_OK, certkv_cache_destroy(cache));
    EXPECT(CERTKV_INVALID_HANDLE, certkv_sequence_change_level(cache, a, 1, 0, 1));
    EXPECT(CERTKV_INVALID_HANDLE, certkv_sequence_control(cache, a, NULL));
}

/* Out and back: every block has its level, and goes on. */
static void away(void)
{
    certkv_config config = leveled(three, 3);
    certkv_cache *cache = NULL;
    certkv_sequence a;
    uint64_t left = 0, back = 0;
    config.swap_tokens = 128;
    EXPECT(CERTKV_OK, certkv_cache_create(&config, &cache));
    a = filled(cache);
    EXPECT(CERTKV_OK, certkv_sequence_change_level(cache, a, 1, 0, 2));
    EXPECT(CERTKV_OK, certkv_sequence_change_level(cache, a, 1, 1, 1));
    EXPECT(CERTKV_OK, certkv_sequence_swap_out(cache, a, &left));
    TRUE(level(cache, a, 0) == 2 && level(cache, a, 1) == 1);
    EXPECT(CERTKV_SWAPPED_OUT, certkv_sequence_change_level(cache, a, 1, 0, 1));
    EXPECT(CERTKV_OK, certkv_sequence_control(cache, a, NULL)); /* Nobody decides. */
    EXPECT(CERTKV_OK, certkv_sequence_swap_in(cache, a, &back));
    TRUE(left == back && left > 0 && level(cache, a, 0) == 2 && level(cache, a, 1) == 1);
    decode(cache, a, 1.0f);
    EXPECT(CERTKV_OK, certkv_cache_destroy(cache));
}

/* Into a file and back: its levels and codes go on. A cache with other levels says so. The argument is a path. */
static void files(const char *path)
{
    certkv_save_scope scope;
    certkv_config config = leveled(three, 3);
    certkv_cache *cache = opened(NULL), *other = NULL;
    certkv_sequence a = filled(cache), back = CERTKV_NO_SEQUENCE;
    memset(&scope, 0, sizeof scope);
    scope.struct_size = (uint32_t)sizeof scope;
    scope.model = "model";
    scope.model_bytes = 5;
    EXPECT(CERTKV_OK, certkv_sequence_change_level(cache, a, 1, 0, 2));
    EXPECT(CERTKV_OK, certkv_sequence_change_level(cache, a, 1, 1, 1));
    EXPECT(CERTKV_OK, certkv_sequence_save(cache, a, &scope, path, NULL));
    EXPECT(CERTKV_OK, certkv_sequence_restore(cache, &scope, path, &back));
    TRUE(level(cache, back, 0) == 2 && level(cache, back, 1) == 1 && back != a);
    decode(cache, back, 1.0f);
    config.n_levels = 2;
    EXPECT(CERTKV_OK, certkv_cache_create(&config, &other));
    NAMED(CERTKV_FILE_REFUSED, "levels", certkv_sequence_restore(other, &scope, path, &back));
    TRUE(back == CERTKV_NO_SEQUENCE && remove(path) == 0);
    EXPECT(CERTKV_OK, certkv_cache_destroy(other));
    EXPECT(CERTKV_OK, certkv_cache_destroy(cache));
}

/* What is cached keeps the levels that it was published with, whatever those who share it do. Into stores it does not go. */
static void prefixes(void)
{
    certkv_config config = leveled(three, 3);
    certkv_prefix_scope scope;
    certkv_publication done = {sizeof done, 0, 0, 0};
    certkv_cache *cache = NULL;
    certkv_sequence a, b = CERTKV_NO_SEQUENCE, c = CERTKV_NO_SEQUENCE;
    uint32_t prompt[TOKENS];
    uint64_t found = 0, missing = 7;
    size_t i;
    for (i = 0; i < TOKENS; i++) {
        prompt[i] = (uint32_t)i;
    }
    memset(&scope, 0, sizeof scope);
    scope.struct_size = (uint32_t)sizeof scope;
    scope.domain = "one";
    scope.domain_bytes = 3;
    scope.model = "model";
    scope.model_bytes = 5;
    config.prefix_units = 8;
    EXPECT(CERTKV_OK, certkv_cache_create(&config, &cache));
    a = filled(cache);
    EXPECT(CERTKV_OK, certkv_sequence_change_level(cache, a, 1, 0, 2));
    EXPECT(CERTKV_OK, certkv_cache_publish(cache, a, &scope, prompt, TOKENS, &done));
    TRUE(done.added == TOKENS / BLOCK * BLOCK);
    EXPECT(CERTKV_OK, certkv_sequence_change_level(cache, a, 1, 0, 1));
    EXPECT(CERTKV_OK, certkv_sequence_create_from(cache, &scope, prompt, TOKENS, &b, &found));
    TRUE(found == done.cached && level(cache, b, 0) == 2 && level(cache, b, 1) == 0 && level(cache, a, 0) == 1);
    decode(cache, b, 1.0f);
    EXPECT(CERTKV_OK, certkv_sequence_change_level(cache, b, 1, 1, 2));
    EXPECT(CERTKV_OK, certkv_sequence_create_from(cache, &scope, prompt, TOKENS, &c, &found));
    TRUE(level(cache, c, 0) == 2 && level(cache, c, 1) == 0 && level(cache, b, 1) == 2);
    NAMED(CERTKV_INVALID_ARGUMENT, "config->levels", certkv_cache_missing_prefix(cache, NULL, &scope, prompt, TOKENS, 0, &missing, NULL));
    TRUE(missing == 7);
    EXPECT(CERTKV_OK, certkv_cache_destroy(cache));
}

/* A budget between the second level and the first: some blocks have to fall. */
static void decisions(void)
{
    certkv_control control;
    certkv_controlled controlled;
    certkv_cache *cache;
    certkv_sequence a;
    certkv_step *step = NULL;
    uint64_t decided = 0, changed = 0;
    uint32_t low = 0, block;
    int at;
    EXPECT(CERTKV_OK, certkv_control_init(&control, sizeof control));
    control.bytes_per_token = 240.0;
    control.protected_first = control.protected_last = 0;
    cache = opened(&control);
    a = filled(cache);
    EXPECT(CERTKV_OK, begin(cache, a, TOKENS, &step));
    for (block = 0; block < 2; block++) {
        EXPECT(CERTKV_OK, certkv_step_append(step, block, rows, rows, TOKENS * KV, CERTKV_F32, CERTKV_SPACE_HOST));
    }
    EXPECT(CERTKV_BUSY_SEQUENCE, certkv_sequence_control(cache, a, NULL));
    EXPECT(CERTKV_OK, certkv_step_finish(step));
    for (at = 0; at < 40; at++) {
        decode(cache, a, 1.0f);
        memset(&controlled, 0, sizeof controlled);
        controlled.struct_size = (uint32_t)sizeof controlled;
        EXPECT(CERTKV_OK, certkv_sequence_control(cache, a, &controlled));
        TRUE(controlled.failed == 0 && controlled.below_floor == 0);
        decided += controlled.decided;
        changed += controlled.changed;
    }
    for (block = 0; block < 5; block++) {
        low += level(cache, a, block) > 0;
    }
    TRUE(decided >= 2 && changed > 0 && low > 0 && low < 5);
    controlled.struct_size = 4;
    EXPECT(CERTKV_STRUCT_SIZE, certkv_sequence_control(cache, a, &controlled));
    EXPECT(CERTKV_OK, certkv_cache_destroy(cache));
}

int main(int count, char **arguments_given)
{
    char path[4200];
    TRUE(count == 2);
    sprintf(path, "%.4000s/levels", arguments_given[count - 1]);
    configurations();
    controls();
    changes();
    away();
    files(path);
    prefixes();
    decisions();
    return report();
}
