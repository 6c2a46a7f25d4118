/* The log: every wrong call; what is said of caches, moves and failures; from within it; and its end. */
#include "life.h"
#include <stdlib.h>

struct heard {
    int messages, error, warn, info, debug, nested, ordered;
    char last[256];
};

static certkv_cache *asked;

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
    return report();
}
