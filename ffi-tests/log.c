/* The log: every wrong call; what is said of caches, moves and failures; from within it; and its end. */
#include "life.h"
#include <stdlib.h>

struct heard {
    int messages, error, warn, info, debug, nested, ordered;
    char last[256];
};

static certkv_cache *asked;
static uint64_t words[8];

static void hear(void *user, certkv_log_level level, const char *target, const char *message)
{
    struct heard *heard = (struct heard *)user;
    heard->messages++;
    heard->error += level == CERTKV_LOG_ERROR;
    heard->warn += level == CERTKV_LOG_WARN;
    heard->info += level == CERTKV_LOG_INFO;
    heard->debug += level == CERTKV_LOG_DEBUG;
    TRUE(strcmp(target, "certkv") == 0 && strchr(message, '\n') == NULL);
    strncpy(heard->last, message, sizeof heard->last - 1);
    if (asked != NULL) {
        /* It may call the library, and is not told of that; but not change itself. */
        certkv_snapshot seen;
        seen.struct_size = (uint32_t)sizeof seen;
        heard->nested += certkv_cache_snapshot(asked, &seen) == CERTKV_OK;
        heard->nested += certkv_cache_snapshot(asked, NULL) == CERTKV_NULL_POINTER;
        heard->ordered += certkv_log_set(CERTKV_LOG_OFF, NULL, NULL) == CERTKV_ORDER;
    }
}

static const char *message(void)
{
    static certkv_error_info info;
    info.struct_size = (uint32_t)sizeof info;
    EXPECT(CERTKV_OK, certkv_last_error(&info));
    return info.message;
}

/* A failed call on a cache's step, and how often who was told. */
static int told_of_step(certkv_step *step, const struct heard *heard)
{
    const int before = heard->messages;
    EXPECT(CERTKV_NULL_POINTER, certkv_step_append(step, 0, NULL, NULL, KV, CERTKV_F32, CERTKV_SPACE_HOST));
    return heard->messages - before;
}

/* Calls on another cache while one is made: what each has to say is its own. */
static certkv_cache *beside;

static void *take(void *context, uint64_t bytes, uint64_t alignment)
{
    certkv_sequence none = 0;
    char *raw = (char *)malloc((size_t)(bytes + 2 * alignment)), *memory;
    EXPECT(CERTKV_UNKNOWN_SEQUENCE, certkv_sequence_release(beside, none));
    EXPECT(CERTKV_NULL_POINTER, certkv_cache_memory(NULL, NULL));
    ++*(int *)context;
    /* In front of what is given: where it began. */
    memory = raw + 2 * alignment - (size_t)((uintptr_t)raw % alignment);
    memcpy(memory - sizeof raw, &raw, sizeof raw);
    return memory;
}

static void give(void *context, void *memory, uint64_t bytes, uint64_t alignment)
{
    char *raw;
    (void)bytes;
    (void)alignment;
    --*(int *)context;
    memcpy(&raw, (char *)memory - sizeof raw, sizeof raw);
    free(raw);
}

/* A log of a cache's own beside that of the process and beside other caches. */
static void own_logs(void)
{
    struct heard process, *own = (struct heard *)calloc(1, sizeof *own), others;
    certkv_config config = small();
    certkv_log log, quiet;
    certkv_allocator allocator;
    certkv_cache *mine = NULL, *plain, *silent = NULL, *third = NULL;
    certkv_sequence a;
    certkv_step *step = NULL;
    int taken = 0, before;
    memset(&process, 0, sizeof process);
    memset(&others, 0, sizeof others);
    memset(&log, 0, sizeof log);
    log.callback = hear;
    log.user = own;
    log.level = CERTKV_LOG_DEBUG;
    config.format = "k8-v4g32-b16";
    config.swap_tokens = 64;
    config.max_tokens = 256;
    config.log = &log;
    asked = NULL;
    EXPECT(CERTKV_OK, certkv_log_set(CERTKV_LOG_INFO, hear, &process));

    /* Every wrong field; without a log the process's is told, and it wants no refusals. */
    {
        certkv_plan plan;
        memset(&plan, 0, sizeof plan);
        plan.struct_size = (uint32_t)sizeof plan;
        EXPECT(CERTKV_STRUCT_SIZE, certkv_cache_create(&config, &mine));
        TRUE(strstr(message(), "config->log") != NULL);
        EXPECT(CERTKV_STRUCT_SIZE, certkv_config_plan(&config, &plan));
        log.struct_size = (uint32_t)sizeof log;
        log.level = 5;
        EXPECT(CERTKV_INVALID_ARGUMENT, certkv_cache_create(&config, &mine));
        TRUE(strstr(message(), "config->log->level = 5") == message());
        log.level = -1;
        EXPECT(CERTKV_INVALID_ARGUMENT, certkv_cache_create(&config, &mine));
        log.level = CERTKV_LOG_DEBUG;
        log.callback = NULL;
        EXPECT(CERTKV_NULL_POINTER, certkv_cache_create(&config, &mine));
        TRUE(strstr(message(), "config->log->callback") == message());
        log.callback = hear;
        EXPECT(CERTKV_MISALIGNED, (config.log = ODD(const certkv_log, words), certkv_cache_create(&config, &mine)));
        config.log = &log;
        EXPECT(CERTKV_OK, certkv_config_plan(&config, &plan));
        TRUE(mine == NULL && own->messages == 0 && process.messages == 0);
    }
    /* A configuration whose log is right and that is refused: its log hears of it. */
    config.max_tokens = 0;
    EXPECT(CERTKV_INVALID_ARGUMENT, certkv_cache_create(&config, &mine));
    TRUE(own->debug == 1 && strstr(own->last, "config->max_tokens") != NULL);
    config.max_tokens = 256;

    EXPECT(CERTKV_OK, certkv_cache_create(&config, &mine));
    TRUE(own->info == 1 && strstr(own->last, "cache created") == own->last && process.messages == 0);
    plain = open_cache(64, 0);
    TRUE(process.info == 1 && own->messages == 2);
    memset(&log, 0, sizeof log); /* It was copied. */

    /* Moves and refusals of the one; of the other the process's log wants neither. */
    a = filled(mine);
    before = own->messages;
    EXPECT(CERTKV_OK, certkv_sequence_swap_out(mine, a, NULL));
    TRUE(own->messages == before + 1 && strstr(own->last, "swap out bytes=") == own->last);
    EXPECT(CERTKV_OK, certkv_sequence_swap_in(mine, a, NULL));
    EXPECT(CERTKV_NULL_POINTER, certkv_sequence_length(mine, a, NULL)); /* Before the cache was looked up: it is nobody's. */
    before = own->messages;
    EXPECT(CERTKV_UNKNOWN_SEQUENCE, certkv_sequence_release(mine, 0));
    TRUE(own->messages == before + 1);
    {
        certkv_sequence b = filled(plain);
        EXPECT(CERTKV_OK, certkv_sequence_swap_out(plain, b, NULL));
        EXPECT(CERTKV_SWAPPED_OUT, certkv_sequence_swap_out(plain, b, NULL));
        EXPECT(CERTKV_UNKNOWN_SEQUENCE, certkv_sequence_release(plain, 0));
    }
    TRUE(own->messages == before + 1 && process.messages == 1);

    /* Steps belong to their cache. */
    EXPECT(CERTKV_OK, begin(mine, a, 1, &step));
    TRUE(told_of_step(step, own) == 1);
    TRUE(told_of_step(step, &process) == 0);
    /* Within the call: no change of it, but any other one, of which nothing is said. */
    asked = mine;
    before = own->messages;
    TRUE(told_of_step(step, own) == 1 && own->nested == 2 && own->ordered == 1 && own->messages == before + 1);
    asked = NULL;

    /* One that is to be silent, whatever the process's log wants. */
    EXPECT(CERTKV_OK, certkv_log_set(CERTKV_LOG_DEBUG, hear, &process));
    memset(&quiet, 0, sizeof quiet);
    quiet.struct_size = (uint32_t)sizeof quiet;
    config.log = &quiet;
    before = process.messages;
    EXPECT(CERTKV_OK, certkv_cache_create(&config, &silent));
    EXPECT(CERTKV_UNKNOWN_SEQUENCE, certkv_sequence_release(silent, 0));
    EXPECT(CERTKV_OK, certkv_sequence_swap_out(silent, filled(silent), NULL));
    EXPECT(CERTKV_OK, certkv_cache_destroy(silent));
    TRUE(process.messages == before);
    EXPECT(CERTKV_INVALID_HANDLE, certkv_cache_destroy(silent)); /* No cache: the process's. */
    TRUE(process.messages == before + 1 && strstr(process.last, "CERTKV_INVALID_HANDLE") == process.last);
    EXPECT(CERTKV_UNKNOWN_SEQUENCE, certkv_sequence_release(plain, 0));
    TRUE(process.messages == before + 2);

    /* A cache with a third log is made by an allocator that calls on another, and on none. */
    memset(&allocator, 0, sizeof allocator);
    allocator.struct_size = (uint32_t)sizeof allocator;
    allocator.context = &taken;
    allocator.allocate = take;
    allocator.free = give;
    quiet.level = CERTKV_LOG_DEBUG;
    quiet.callback = hear;
    quiet.user = &others;
    config.allocator = &allocator;
    beside = mine;
    before = own->messages;
    {
        const int of_none = process.messages;
        EXPECT(CERTKV_OK, certkv_cache_create(&config, &third));
        TRUE(taken > 0 && own->messages == before + taken && process.messages == of_none + taken);
    }
    TRUE(others.messages == 1 && strstr(others.last, "cache created") == others.last);
    EXPECT(CERTKV_OK, certkv_cache_destroy(third));
    TRUE(others.messages == 2 && strcmp(others.last, "cache destroyed") == 0 && taken == 0);

    /* Its end, and that of a step that outlives it. */
    EXPECT(CERTKV_OK, certkv_cache_destroy(mine));
    TRUE(strcmp(own->last, "cache destroyed") == 0);
    TRUE(told_of_step(step, own) == 1);
    EXPECT(CERTKV_OK, certkv_step_abort(step));
    free(own);
    before = process.messages;
    EXPECT(CERTKV_OK, certkv_cache_destroy(plain));
    TRUE(process.messages == before + 1);
    EXPECT(CERTKV_OK, certkv_log_set(CERTKV_LOG_OFF, NULL, NULL));
}

int main(int count, char **arguments)
{
    struct heard heard, *gone = (struct heard *)calloc(1, sizeof *gone);
    const certkv_log_level wrong[] = {-1, 5, INT32_MAX, INT32_MIN};
    certkv_sequence a, b = 7;
    char path[4200];
    size_t i;
    int before;
    memset(&heard, 0, sizeof heard);
    for (i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        EXPECT(CERTKV_INVALID_ARGUMENT, certkv_log_set(wrong[i], hear, &heard));
        TRUE(strstr(message(), "level") != NULL);
    }
    EXPECT(CERTKV_NULL_POINTER, certkv_log_set(CERTKV_LOG_INFO, NULL, &heard));
    TRUE(strstr(message(), "callback") != NULL);
    EXPECT(CERTKV_OK, certkv_log_set(CERTKV_LOG_OFF, NULL, NULL));
    EXPECT(CERTKV_OK, certkv_log_set(CERTKV_LOG_OFF, hear, &heard));
    EXPECT(CERTKV_OK, certkv_cache_destroy(open_cache(0, 0)));
    TRUE(heard.messages == 0);

    /* Caches come and go; nobody wants to hear of a wrong argument. */
    EXPECT(CERTKV_OK, certkv_log_set(CERTKV_LOG_INFO, hear, &heard));
    asked = open_cache(128, 4);
    TRUE(heard.info == 1 && heard.messages == 1 && strstr(heard.last, "2 layers") != NULL && strstr(heard.last, "packed=") != NULL);
    a = filled(asked);
    EXPECT(CERTKV_NULL_POINTER, certkv_sequence_length(asked, a, NULL));
    TRUE(heard.messages == 1);

    /* A file that is not there: what failed is in the log, and still the thread's latest error, whatever the log itself asked. */
    TRUE(count == 2 && strlen(arguments[1]) < 4096);
    sprintf(path, "%s/no-such-file", arguments[1]);
    {
        certkv_save_scope scope;
        memset(&scope, 0, sizeof scope);
        scope.struct_size = (uint32_t)sizeof scope;
        EXPECT(CERTKV_FILE, certkv_sequence_restore(asked, &scope, path, &b));
    }
    TRUE(heard.warn == 1 && strstr(heard.last, "CERTKV_FILE") == heard.last && strstr(heard.last, message()) != NULL);
    TRUE(heard.nested == 2 && heard.ordered == 1 && strstr(message(), "snapshot") == NULL);

    /* Moves, with their numbers; and calls that were refused. */
    EXPECT(CERTKV_OK, certkv_log_set(CERTKV_LOG_DEBUG, hear, &heard));
    EXPECT(CERTKV_OK, certkv_sequence_swap_out(asked, a, NULL));
    TRUE(heard.debug == 1 && strstr(heard.last, "swap out bytes=") == heard.last && strstr(heard.last, " in ") != NULL);
    EXPECT(CERTKV_NULL_POINTER, certkv_sequence_length(asked, a, NULL));
    TRUE(heard.debug == 2 && strstr(heard.last, "CERTKV_NULL_POINTER: length is NULL") == heard.last);
    /* The open block is copied on the way. */
    EXPECT(CERTKV_OK, certkv_sequence_swap_in(asked, a, NULL));
    TRUE(heard.debug == 4 && strstr(heard.last, "swap in bytes=") == heard.last);

    /* Only what is as loud as was asked for. */
    EXPECT(CERTKV_OK, certkv_log_set(CERTKV_LOG_ERROR, hear, &heard));
    before = heard.messages;
    EXPECT(CERTKV_OK, certkv_sequence_swap_out(asked, a, NULL));
    EXPECT(CERTKV_SWAPPED_OUT, certkv_sequence_swap_out(asked, a, NULL));
    TRUE(heard.messages == before && heard.error == 0);

    /* Another one takes over; and then none: what was there may go. */
    EXPECT(CERTKV_OK, certkv_log_set(CERTKV_LOG_DEBUG, hear, gone));
    EXPECT(CERTKV_SWAPPED_OUT, certkv_sequence_swap_out(asked, a, NULL));
    TRUE(gone->messages > 0 && heard.messages == before);
    EXPECT(CERTKV_OK, certkv_log_set(CERTKV_LOG_OFF, NULL, NULL));
    free(gone);
    EXPECT(CERTKV_SWAPPED_OUT, certkv_sequence_swap_out(asked, a, NULL));
    EXPECT(CERTKV_OK, certkv_cache_destroy(asked));
    TRUE(heard.messages == before);
    own_logs();
    return report();
}
