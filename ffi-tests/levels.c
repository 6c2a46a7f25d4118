/* Levels of blocks: every wrong call, changes by hand, swaps, files and prefixes. The argument is a folder to write to. */
#include "leveled.h"

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
    config.plan_apart = 2;
    NAMED(CERTKV_INVALID_ARGUMENT, "config->plan_apart", create(&config));
    config = leveled(three, 3);
    /* On a GPU blocks have levels, their heads have none. */
    config.device = CERTKV_DEVICE_CUDA;
    config.levels_by_head = 1;
    NAMED(CERTKV_UNSUPPORTED, "config->levels_by_head", create(&config));
    /* A header that ends before them. */
    config = leveled(three, 3);
    config.struct_size = offsetof(certkv_config, levels);
    EXPECT(CERTKV_OK, create(&config));
}

static certkv_cache *opened(void)
{
    certkv_config config = leveled(three, 3);
    certkv_cache *cache = NULL;
    EXPECT(CERTKV_OK, certkv_cache_create(&config, &cache));
    return cache;
}

/* One KV head at a level of its own; where all heads have one, the block's. */
static void heads(void)
{
    certkv_config config = leveled(three, 3);
    certkv_cache *cache = NULL, *whole = opened();
    certkv_sequence a = 0, b = filled(whole);
    uint32_t found = 9;
    config.levels_by_head = 2;
    NAMED(CERTKV_INVALID_ARGUMENT, "config->levels_by_head = 2", create(&config));
    config.levels_by_head = 1;
    config.levels = NULL;
    config.n_levels = 0;
    NAMED(CERTKV_INVALID_ARGUMENT, "config->levels_by_head", create(&config));
    config = leveled(three, 3);
    config.levels_by_head = 1;
    EXPECT(CERTKV_OK, certkv_cache_create(&config, &cache));
    a = filled(cache);
    EXPECT(CERTKV_OK, certkv_sequence_change_head_level(cache, a, 1, 1, 0, 2));
    EXPECT(CERTKV_OK, certkv_sequence_head_level(cache, a, 1, 1, 0, &found));
    TRUE(found == 2);
    EXPECT(CERTKV_OK, certkv_sequence_head_level(cache, a, 1, 0, 0, &found));
    TRUE(found == 0);
    decode(cache, a, 1.0f);
    NAMED(CERTKV_INVALID_ARGUMENT, "level_of", certkv_sequence_level(cache, a, 1, 0, &found));
    NAMED(CERTKV_INVALID_ARGUMENT, "change_level_of", certkv_sequence_change_level(cache, a, 1, 0, 1));
    NAMED(CERTKV_SHAPE, "kv_head", certkv_sequence_head_level(cache, a, 1, 2, 0, &found));
    NAMED(CERTKV_SHAPE, "kv_head", certkv_sequence_change_head_level(cache, a, 1, UINT32_MAX, 0, 1));
    EXPECT(CERTKV_LAYER, certkv_sequence_head_level(cache, a, 2, 0, 0, &found));
    EXPECT(CERTKV_LEVEL, certkv_sequence_head_level(cache, a, 1, 0, UINT64_MAX, &found));
    EXPECT(CERTKV_LEVEL, certkv_sequence_change_head_level(cache, a, 1, 0, 0, 3));
    EXPECT(CERTKV_UNKNOWN_SEQUENCE, certkv_sequence_change_head_level(cache, strangers[0], 1, 0, 0, 1));
    NAMED(CERTKV_NULL_POINTER, "level", certkv_sequence_head_level(cache, a, 1, 0, 0, NULL));
    NAMED(CERTKV_MISALIGNED, "level", certkv_sequence_head_level(cache, a, 1, 0, 0, ODD(uint32_t, words)));
    EXPECT(CERTKV_NULL_POINTER, certkv_sequence_head_level(NULL, a, 1, 0, 0, &found));
    EXPECT(CERTKV_INVALID_HANDLE, certkv_sequence_change_head_level(FOREIGN(certkv_cache), a, 1, 0, 0, 1));
    TRUE(found == 0);
    /* All heads of a block at once. */
    EXPECT(CERTKV_OK, certkv_sequence_change_head_level(whole, b, 1, 0, 0, 1));
    EXPECT(CERTKV_OK, certkv_sequence_head_level(whole, b, 1, 1, 0, &found));
    TRUE(found == 1 && level(whole, b, 0) == 1);
    EXPECT(CERTKV_OK, certkv_cache_destroy(whole));
    EXPECT(CERTKV_OK, certkv_cache_destroy(cache));
}

static void changes(void)
{
    certkv_cache *cache = opened(), *plain = open_cache(0, 0);
    certkv_sequence a = filled(cache), b = filled(plain), fork = 0;
    certkv_step *step = NULL;
    certkv_controlled controlled = {sizeof controlled, 0, 7, 7, 7, 7, 7};
    certkv_snapshot seen;
    certkv_controlled set = {sizeof set, 0, 7, 7, 7, 7, 7};
    static const uint32_t lists[4] = {1, 2, 0, 1}, first[2] = {0, 2}, none[4] = {0, 0, 0, 3}, words_of_levels[6] = {0, 0, 0, 0, 0, 0};
    uint32_t found = 9, second = 9;
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

    /* All blocks at once, layer by layer; those behind the lists stay. */
    EXPECT(CERTKV_OK, certkv_sequence_set_levels(cache, a, lists, 4, &set));
    TRUE(set.changed == 2 && set.refused == 0 && set.failed == 0 && set.decided == 0);
    EXPECT(CERTKV_OK, certkv_sequence_level(cache, a, 0, 1, &second));
    TRUE(second == 2 && level(cache, a, 0) == 0 && level(cache, a, 1) == 1 && level(cache, fork, 0) == 2);
    EXPECT(CERTKV_OK, certkv_sequence_set_levels(cache, a, first, 2, NULL));
    TRUE(level(cache, a, 0) == 2 && level(cache, a, 1) == 1);
    EXPECT(CERTKV_OK, certkv_sequence_set_levels(cache, a, NULL, 0, &set));
    TRUE(set.changed == 0);
    decode(cache, a, 3.0f);
    EXPECT(CERTKV_NULL_POINTER, certkv_sequence_set_levels(NULL, a, words_of_levels, 4, NULL));
    EXPECT(CERTKV_INVALID_HANDLE, certkv_sequence_set_levels(FOREIGN(certkv_cache), a, words_of_levels, 4, NULL));
    NAMED(CERTKV_NULL_POINTER, "levels", certkv_sequence_set_levels(cache, a, NULL, 4, NULL));
    NAMED(CERTKV_MISALIGNED, "levels", certkv_sequence_set_levels(cache, a, ODD(uint32_t, words), 4, NULL));
    NAMED(CERTKV_MISALIGNED, "controlled", certkv_sequence_set_levels(cache, a, words_of_levels, 4, ODD(certkv_controlled, words)));
    NAMED(CERTKV_OVERLAP, "levels and controlled",
          certkv_sequence_set_levels(cache, a, (const uint32_t *)&set, 4, &set));
    NAMED(CERTKV_SHAPE, "3 elements", certkv_sequence_set_levels(cache, a, words_of_levels, 3, NULL));
    NAMED(CERTKV_LEVEL, "not full", certkv_sequence_set_levels(cache, a, words_of_levels, 6, NULL));
    NAMED(CERTKV_LEVEL, "level 3", certkv_sequence_set_levels(cache, a, none, 4, NULL));
    EXPECT(CERTKV_UNKNOWN_SEQUENCE, certkv_sequence_set_levels(cache, strangers[0], words_of_levels, 4, NULL));
    TRUE(level(cache, a, 0) == 2 && level(cache, a, 1) == 1);

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
    certkv_cache *cache = opened(), *other = NULL;
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

int main(int count, char **arguments_given)
{
    char path[4200];
    TRUE(count == 2);
    sprintf(path, "%.4000s/levels", arguments_given[count - 1]);
    configurations();
    changes();
    heads();
    away();
    files(path);
    prefixes();
    return report();
}
