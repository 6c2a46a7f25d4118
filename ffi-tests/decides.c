/* Who decides on levels: every wrong parameter, decisions while decoding goes on, and plans that move nothing. */
#include "leveled.h"

/* A field of `given`, of which `config` has the address, with a value that is refused by its name. */
#define WRONG(given, field, value)                                                         \
    do {                                                                                   \
        const double kept_bytes = (given).bytes_per_token;                                 \
        memcpy(kept, &(given), sizeof(given));                                             \
        (given).field = (value);                                                           \
        NAMED(CERTKV_INVALID_ARGUMENT, "config->" #given, create(&config));                \
        SAYS(strcmp(#field, "bytes_per_token") == 0 ? "bytes a token" : #field); \
        memcpy(&(given), kept, sizeof(given));                                             \
        TRUE((given).bytes_per_token == kept_bytes);                                       \
    } while (0)
static uint64_t kept[32];

/* Dangers in order or none; `name` says whose they are. */
static void gate(const certkv_config *config, double *protect, double *release, const char *name)
{
    const double wrong[][2] = {{0.5, 1.0}, {0.5, 0.5}, {1.0, -0.5}, {NAN, 0.5}, {1.0, NAN}, {0.0, NAN}, {-1.0, 0.0}};
    size_t i;
    for (i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        *protect = wrong[i][0];
        *release = wrong[i][1];
        NAMED(CERTKV_INVALID_ARGUMENT, name, create(config));
        SAYS("gate_release");
    }
    *protect = 1.0;
    *release = 0.5;
    EXPECT(CERTKV_OK, create(config));
    *protect = *release = 0.0;
    EXPECT(CERTKV_OK, create(config));
}

static void smartkv(void)
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
    NAMED(CERTKV_INVALID_ARGUMENT, "config->control: there are no levels", create(&config));
    control.gate_protect = control.gate_release = 0.0;
    config = leveled(three, 3);
    config.control = ODD(const certkv_control, words);
    NAMED(CERTKV_MISALIGNED, "config->control", create(&config));
    config.control = &control;
    control.struct_size = 16;
    NAMED(CERTKV_STRUCT_SIZE, "config->control", create(&config));
    control.struct_size = sizeof control;
    WRONG(control, bytes_per_token, NAN);
    WRONG(control, bytes_per_token, -1.0);
    WRONG(control, bytes_per_token, INFINITY);
    WRONG(control, bytes_per_token, 1.0);
    WRONG(control, points, -1.0);
    WRONG(control, points, NAN);
    WRONG(control, keep_rank, 1.0);
    WRONG(control, keep_rank, NAN);
    WRONG(control, alpha, INFINITY);
    WRONG(control, drift, NAN);
    WRONG(control, drift_moved, -0.5);
    WRONG(control, keep, 1.5);
    WRONG(control, keep_head, -0.1);
    WRONG(control, mix, 1.1);
    WRONG(control, mix, NAN);
    WRONG(control, life, 0.0);
    WRONG(control, life, NAN);
    WRONG(control, protected_first, UINT64_MAX);
    WRONG(control, protected_last, UINT64_MAX);
    WRONG(control, interval, 0);
    WRONG(control, interval, UINT64_MAX);
    WRONG(control, drift_every, 0);
    gate(&config, &control.gate_protect, &control.gate_release, "config->control");
    /* A header that ends before the gate. */
    control.struct_size = offsetof(certkv_control, gate_protect);
    control.gate_release = NAN;
    EXPECT(CERTKV_OK, create(&config));
    control.struct_size = sizeof control;
    control.gate_release = 0.0;
    control.checks = UINT32_MAX;
    control.life = INFINITY;
    control.protected_first = control.protected_last = (uint64_t)1 << 31;
    EXPECT(CERTKV_OK, create(&config));
}

static void retained(void)
{
    certkv_retention retention;
    certkv_config config = leveled(three, 3);
    EXPECT(CERTKV_NULL_POINTER, certkv_retention_init(NULL, sizeof retention));
    EXPECT(CERTKV_MISALIGNED, certkv_retention_init(ODD(certkv_retention, words), sizeof retention));
    EXPECT(CERTKV_STRUCT_SIZE, certkv_retention_init(&retention, 8));
    EXPECT(CERTKV_STRUCT_SIZE, certkv_retention_init(&retention, UINT32_MAX));
    EXPECT(CERTKV_OK, certkv_retention_init(&retention, sizeof retention));
    TRUE(retention.bytes_per_token == 0.0 && retention.layer_bytes_per_token > 1e300 && retention.interval > 0);
    TRUE(retention.struct_size == sizeof retention && retention.measure == CERTKV_MEASURE_LINEAR);
    config.retention = &retention;
    NAMED(CERTKV_INVALID_ARGUMENT, "config->retention: 0 bytes a token", create(&config));
    retention.bytes_per_token = 200.0;
    EXPECT(CERTKV_OK, create(&config));
    config.levels = NULL;
    config.n_levels = 0;
    NAMED(CERTKV_INVALID_ARGUMENT, "config->retention: there are no levels", create(&config));
    config.device = CERTKV_DEVICE_CUDA;
    NAMED(CERTKV_INVALID_ARGUMENT, "config->retention: there are no levels", create(&config));
    config = leveled(three, 3);
    config.retention = ODD(const certkv_retention, words);
    NAMED(CERTKV_MISALIGNED, "config->retention", create(&config));
    config.retention = &retention;
    retention.struct_size = 16;
    NAMED(CERTKV_STRUCT_SIZE, "config->retention", create(&config));
    retention.struct_size = sizeof retention;
    WRONG(retention, bytes_per_token, NAN);
    WRONG(retention, bytes_per_token, INFINITY);
    WRONG(retention, bytes_per_token, 1.0);
    WRONG(retention, measure, 2);
    WRONG(retention, measure, -1);
    WRONG(retention, keep, 1.0);
    WRONG(retention, keep, NAN);
    WRONG(retention, down, -0.1);
    WRONG(retention, down, INFINITY);
    WRONG(retention, up, NAN);
    WRONG(retention, up, retention.down);
    WRONG(retention, stick, -1.0);
    WRONG(retention, stick, NAN);
    WRONG(retention, protected_first, UINT64_MAX);
    WRONG(retention, protected_last, UINT64_MAX);
    WRONG(retention, interval, 0);
    WRONG(retention, interval, UINT64_MAX);
    WRONG(retention, reserved, 1);
    /* Heads have no levels of their own here; a header that ends before the field has no such limit. */
    TRUE(retention.head_bytes_per_token == INFINITY);
    retention.head_bytes_per_token = 200.0;
    NAMED(CERTKV_INVALID_ARGUMENT, "a limit of heads", create(&config));
    retention.struct_size = offsetof(certkv_retention, head_bytes_per_token);
    EXPECT(CERTKV_OK, create(&config));
    retention.struct_size = sizeof retention;
    config.levels_by_head = 1;
    EXPECT(CERTKV_OK, create(&config));
    retention.head_bytes_per_token = 1.0;
    NAMED(CERTKV_INVALID_ARGUMENT, "config->retention", create(&config));
    retention.head_bytes_per_token = INFINITY;
    config.levels_by_head = 0;
    gate(&config, &retention.gate_protect, &retention.gate_release, "config->retention");
    retention.layer_bytes_per_token = 1.0;
    NAMED(CERTKV_INVALID_ARGUMENT, "config->retention: 1 bytes a token", create(&config));
    retention.layer_bytes_per_token = NAN;
    NAMED(CERTKV_INVALID_ARGUMENT, "config->retention", create(&config));
    retention.layer_bytes_per_token = 300.0;
    retention.measure = CERTKV_MEASURE_BOUND;
    retention.cooldown = UINT32_MAX;
    EXPECT(CERTKV_OK, create(&config));
}

static void budgeted(void)
{
    certkv_bound_budget bound_budget;
    certkv_retention other;
    certkv_config config = leveled(three, 3);
    EXPECT(CERTKV_NULL_POINTER, certkv_bound_budget_init(NULL, sizeof bound_budget));
    EXPECT(CERTKV_MISALIGNED, certkv_bound_budget_init(ODD(certkv_bound_budget, words), sizeof bound_budget));
    EXPECT(CERTKV_STRUCT_SIZE, certkv_bound_budget_init(&bound_budget, 8));
    EXPECT(CERTKV_STRUCT_SIZE, certkv_bound_budget_init(&bound_budget, UINT32_MAX));
    EXPECT(CERTKV_OK, certkv_bound_budget_init(&bound_budget, sizeof bound_budget));
    TRUE(bound_budget.bytes_per_token == 0.0 && bound_budget.interval > 0 && bound_budget.struct_size == sizeof bound_budget);
    config.bound_budget = &bound_budget;
    NAMED(CERTKV_INVALID_ARGUMENT, "config->bound_budget: 0 bytes a token", create(&config));
    bound_budget.bytes_per_token = 200.0;
    EXPECT(CERTKV_OK, create(&config));
    config.levels = NULL;
    config.n_levels = 0;
    NAMED(CERTKV_INVALID_ARGUMENT, "config->bound_budget: there are no levels", create(&config));
    config.device = CERTKV_DEVICE_CUDA;
    NAMED(CERTKV_INVALID_ARGUMENT, "config->bound_budget: there are no levels", create(&config));
    config = leveled(three, 3);
    config.bound_budget = ODD(const certkv_bound_budget, words);
    NAMED(CERTKV_MISALIGNED, "config->bound_budget", create(&config));
    config.bound_budget = &bound_budget;
    bound_budget.struct_size = 8;
    NAMED(CERTKV_STRUCT_SIZE, "config->bound_budget", create(&config));
    bound_budget.struct_size = sizeof bound_budget;
    WRONG(bound_budget, reserved, 1);
    WRONG(bound_budget, bytes_per_token, NAN);
    WRONG(bound_budget, bytes_per_token, 1.0);
    WRONG(bound_budget, epsilon, 0.0);
    WRONG(bound_budget, epsilon, -0.1);
    WRONG(bound_budget, epsilon, NAN);
    WRONG(bound_budget, epsilon, INFINITY);
    WRONG(bound_budget, gain, 1.0);
    WRONG(bound_budget, gain, NAN);
    WRONG(bound_budget, interval, 0);
    WRONG(bound_budget, interval, UINT64_MAX);
    /* One of them decides. */
    EXPECT(CERTKV_OK, certkv_retention_init(&other, sizeof other));
    other.bytes_per_token = 200.0;
    config.retention = &other;
    NAMED(CERTKV_INVALID_ARGUMENT, "config->bound_budget: config->retention decides already", create(&config));
    /* A header that ends before them. */
    config.struct_size = offsetof(certkv_config, retention);
    EXPECT(CERTKV_OK, create(&config));
}

/* Who decides, one at a time: SmartKV without a gate and with one, retention, the bound's budget. A budget between the second level and the first. */
enum { DECIDERS = 4 };
typedef struct {
    certkv_control control;
    certkv_retention retention;
    certkv_bound_budget bound_budget;
} deciders;

static certkv_config decided_by(int who, deciders *of)
{
    certkv_config config = leveled(three, 3);
    EXPECT(CERTKV_OK, certkv_control_init(&of->control, sizeof of->control));
    EXPECT(CERTKV_OK, certkv_retention_init(&of->retention, sizeof of->retention));
    EXPECT(CERTKV_OK, certkv_bound_budget_init(&of->bound_budget, sizeof of->bound_budget));
    of->control.bytes_per_token = of->retention.bytes_per_token = of->bound_budget.bytes_per_token = 240.0;
    of->control.protected_first = of->control.protected_last = of->retention.protected_first = of->retention.protected_last = 0;
    of->control.gate_protect = who == 1 ? 1.0 : 0.0;
    of->control.gate_release = who == 1 ? 0.5 : 0.0;
    config.control = who < 2 ? &of->control : NULL;
    config.retention = who == 2 ? &of->retention : NULL;
    config.bound_budget = who == 3 ? &of->bound_budget : NULL;
    return config;
}

/* What a host's log heard of the calls. */
typedef struct {
    certkv_cache *cache;
    certkv_sequence sequence;
    int who;
    uint64_t entries, decisions, changes;
} heard;

static void hear(void *user, const certkv_control_entry *entry)
{
    heard *all = (heard *)user;
    const uint64_t cells = entry->blocks * entry->n_levels;
    uint64_t i;
    TRUE(entry->struct_size == sizeof *entry && entry->kv_head == 0);
    TRUE(entry->layer == all->entries % 2 && entry->blocks >= 5 && entry->heads == Q_HEADS && entry->n_levels == 3);
    /* Each of them is told its own, after a step that it has not seen. */
    TRUE((entry->attention != NULL) == (all->who < 2));
    TRUE((entry->danger != NULL) == (all->who == 1));
    /* Of these, steps that no decision counts have none. */
    TRUE(entry->loss == NULL || all->who == 2);
    TRUE(entry->bound_loss == NULL || all->who == 3);
    TRUE((entry->bound_shrink != NULL) == (entry->bound_loss != NULL) && (entry->bound_cap != NULL) == (entry->bound_loss != NULL));
    TRUE(entry->wanted == NULL || all->who < 2 || (entry->loss != NULL) == (all->who == 2));
    TRUE(entry->wanted == NULL || (entry->bound_loss != NULL) == (all->who == 3));
    for (i = 0; all->who < 2 && i < entry->heads * entry->blocks; i++) {
        TRUE(entry->attention[i] >= 0.0);
    }
    /* The first level loses least. */
    for (i = 0; entry->loss != NULL && i < cells; i += 3) {
        TRUE(entry->loss[i] <= entry->loss[i + 1] && entry->loss[i + 1] <= entry->loss[i + 2] && entry->loss[i + 2] > 0.0);
    }
    for (i = 0; entry->bound_loss != NULL && i < entry->heads * cells; i += 3) {
        TRUE(entry->bound_loss[i] <= entry->bound_loss[i + 2] && entry->bound_loss[i + 2] > 0.0);
        TRUE(entry->bound_shrink[i] <= entry->bound_shrink[i + 2]);
    }
    TRUE(entry->trigger <= CERTKV_TRIGGER_BUDGET && (entry->wanted != NULL) == (entry->trigger != CERTKV_TRIGGER_NONE));
    TRUE((entry->bound > 0.0) == (all->who == 3 && entry->wanted != NULL));
    for (i = 0; i < entry->blocks; i++) {
        TRUE(entry->levels[i] < 3);
        if (entry->wanted != NULL) {
            TRUE(entry->wanted[i] < 3);
            all->changes += entry->wanted[i] != entry->levels[i];
        }
        if (entry->layer == 1) {
            /* No lock is held. */
            TRUE(level(all->cache, all->sequence, i) == (entry->wanted != NULL ? entry->wanted : entry->levels)[i]);
        }
    }
    all->decisions += entry->wanted != NULL;
    all->entries++;
}

/* With a log or without. */
static int32_t controls(certkv_cache *cache, certkv_sequence a, heard *log, certkv_controlled *done)
{
    return log == NULL ? certkv_sequence_control(cache, a, done) : certkv_sequence_control_logged(cache, a, hear, log, done);
}

/* Forty tokens behind a sequence of five full blocks: what was decided and changed, and blocks below the first level. */
static certkv_controlled decoded(certkv_cache *cache, certkv_sequence a, heard *log, uint32_t *low)
{
    certkv_controlled all = {sizeof all, 0, 0, 0, 0, 0, 0}, done;
    certkv_step *step = NULL;
    uint32_t block;
    int at;
    EXPECT(CERTKV_OK, begin(cache, a, TOKENS, &step));
    for (block = 0; block < 2; block++) {
        EXPECT(CERTKV_OK, certkv_step_append(step, block, rows, rows, TOKENS * KV, CERTKV_F32, CERTKV_SPACE_HOST));
    }
    EXPECT(CERTKV_BUSY_SEQUENCE, controls(cache, a, log, NULL));
    EXPECT(CERTKV_OK, certkv_step_finish(step));
    for (at = 0; at < 40; at++) {
        decode(cache, a, 1.0f);
        memset(&done, 0, sizeof done);
        done.struct_size = (uint32_t)sizeof done;
        EXPECT(CERTKV_OK, controls(cache, a, log, &done));
        TRUE(done.failed == 0 && done.refused == 0 && done.below_floor == 0);
        all.decided += done.decided;
        all.changed += done.changed;
    }
    *low = 0;
    for (block = 0; block < 5; block++) {
        *low += level(cache, a, block) > 0;
    }
    done.struct_size = 4;
    NAMED(CERTKV_STRUCT_SIZE, "controlled", controls(cache, a, log, &done));
    return all;
}

/* Some blocks have to fall, whoever decides. */
static void decisions(void)
{
    deciders of;
    certkv_controlled done;
    certkv_cache *cache;
    uint32_t low = 0;
    int who;
    for (who = 0; who < DECIDERS; who++) {
        certkv_config config = decided_by(who, &of);
        EXPECT(CERTKV_OK, certkv_cache_create(&config, &cache));
        done = decoded(cache, filled(cache), NULL, &low);
        TRUE(done.decided >= 2 && done.changed > 0 && low > 0 && low < 5);
        EXPECT(CERTKV_OK, certkv_cache_destroy(cache));
    }
}

/* The log tells what was decided, by the numbers of levels that all calls have. */
static void logs(void)
{
    deciders of;
    certkv_controlled done;
    certkv_cache *cache = NULL;
    uint32_t low = 0;
    heard all;
    int at;
    memset(&all, 0, sizeof all);
    for (all.who = 0; all.who < DECIDERS; all.who++) {
        certkv_config config = decided_by(all.who, &of);
        EXPECT(CERTKV_OK, certkv_cache_create(&config, &cache));
        all.cache = cache;
        all.sequence = filled(cache);
        all.entries = all.decisions = all.changes = 0;
        done = decoded(cache, all.sequence, &all, &low);
        TRUE(all.entries == 80 && done.decided >= 2 && all.decisions == done.decided && done.changed > 0 && all.changes == done.changed);
        /* Each argument; nobody is told of a call that fails. */
        NAMED(CERTKV_NULL_POINTER, "log", certkv_sequence_control_logged(cache, all.sequence, NULL, &all, &done));
        EXPECT(CERTKV_NULL_POINTER, certkv_sequence_control_logged(NULL, all.sequence, hear, &all, &done));
        EXPECT(CERTKV_INVALID_HANDLE, certkv_sequence_control_logged(FOREIGN(certkv_cache), all.sequence, hear, &all, &done));
        NAMED(CERTKV_MISALIGNED, "controlled", certkv_sequence_control_logged(cache, all.sequence, hear, &all, ODD(certkv_controlled, words)));
        for (at = 0; at < (int)STRANGERS; at++) {
            EXPECT(CERTKV_UNKNOWN_SEQUENCE, certkv_sequence_control_logged(cache, strangers[at], hear, &all, &done));
        }
        TRUE(all.entries == 80);
        EXPECT(CERTKV_OK, certkv_cache_destroy(cache));
    }
    /* Nobody decides, nobody is told. */
    cache = open_cache(0, 0);
    EXPECT(CERTKV_OK, certkv_sequence_control_logged(cache, filled(cache), hear, NULL, NULL));
    EXPECT(CERTKV_OK, certkv_cache_destroy(cache));
}

/* What levels would come to. */
static void plans(void)
{
    certkv_bound_budget bound_budget;
    certkv_level_plan plan, rich;
    certkv_config config = leveled(three, 3);
    certkv_cache *cache = NULL, *plain = open_cache(0, 0);
    certkv_sequence a, b = filled(plain);
    certkv_step *step = NULL;
    uint32_t levels[8] = {9, 9, 9, 9, 9, 9, 9, 9};
    size_t i;
    memset(&plan, 0, sizeof plan);
    plan.struct_size = (uint32_t)sizeof plan;
    EXPECT(CERTKV_OK, certkv_bound_budget_init(&bound_budget, sizeof bound_budget));
    bound_budget.bytes_per_token = 300.0;
    config.bound_budget = &bound_budget;
    EXPECT(CERTKV_OK, certkv_cache_create(&config, &cache));
    a = filled(cache);
    /* Nothing was seen. */
    EXPECT(CERTKV_OK, certkv_sequence_plan_levels(cache, a, 0.05, UINT64_MAX, levels, 8, &plan));
    TRUE(plan.planned == 0 && plan.blocks == 0 && levels[0] == 9);
    decode(cache, a, 1.0f);
    /* Two full blocks of two layers. */
    EXPECT(CERTKV_OK, certkv_sequence_plan_levels(cache, a, 0.05, UINT64_MAX, levels, 4, &plan));
    TRUE(plan.planned == 1 && plan.blocks == 2 && plan.bytes > 0.0 && plan.lacking != CERTKV_LACKING_FLOOR && levels[4] == 9);
    for (i = 0; i < 4; i++) {
        TRUE(levels[i] < 3);
    }
    TRUE(plan.lacking != CERTKV_LACKING_NOTHING || (plan.bound <= 0.05 && plan.lacks == 0.0));
    /* A tolerance that anything meets takes the last level; none that codes can meet the first, and says what it would be. */
    EXPECT(CERTKV_OK, certkv_sequence_plan_levels(cache, a, 1e300, UINT64_MAX, levels, 8, &plan));
    TRUE(levels[0] == 2 && levels[1] == 2 && levels[2] == 2 && levels[3] == 2 && plan.lacking == CERTKV_LACKING_NOTHING);
    EXPECT(CERTKV_OK, certkv_sequence_plan_levels(cache, a, 1e-9, UINT64_MAX, NULL, 0, &plan));
    TRUE(plan.lacking == CERTKV_LACKING_BOUND && plan.lacks > 1e-9 && plan.bound >= plan.lacks);
    rich = plan;
    EXPECT(CERTKV_OK, certkv_sequence_plan_levels(cache, a, 0.05, 0, levels, 4, &plan));
    TRUE(plan.lacking == CERTKV_LACKING_FLOOR && plan.lacks == plan.bytes && plan.bytes < rich.bytes && levels[0] == 2);
    TRUE(level(cache, a, 0) == 0 && level(cache, a, 1) == 0); /* Nothing moved. */

    levels[0] = 9;
    EXPECT(CERTKV_NULL_POINTER, certkv_sequence_plan_levels(NULL, a, 0.05, 0, levels, 4, &plan));
    EXPECT(CERTKV_INVALID_HANDLE, certkv_sequence_plan_levels(FOREIGN(certkv_cache), a, 0.05, 0, levels, 4, &plan));
    NAMED(CERTKV_NULL_POINTER, "levels", certkv_sequence_plan_levels(cache, a, 0.05, 0, NULL, 4, &plan));
    NAMED(CERTKV_MISALIGNED, "levels", certkv_sequence_plan_levels(cache, a, 0.05, 0, ODD(uint32_t, words), 4, &plan));
    NAMED(CERTKV_INVALID_ARGUMENT, "levels", certkv_sequence_plan_levels(cache, a, 0.05, 0, levels, UINT64_MAX, &plan));
    NAMED(CERTKV_SHAPE, "levels", certkv_sequence_plan_levels(cache, a, 0.05, 0, levels, 3, &plan));
    NAMED(CERTKV_NULL_POINTER, "plan", certkv_sequence_plan_levels(cache, a, 0.05, 0, levels, 4, NULL));
    NAMED(CERTKV_MISALIGNED, "plan", certkv_sequence_plan_levels(cache, a, 0.05, 0, levels, 4, ODD(certkv_level_plan, words)));
    NAMED(CERTKV_OVERLAP, "plan", certkv_sequence_plan_levels(cache, a, 0.05, 0, (uint32_t *)(void *)&plan, 4, &plan));
    {
        const double wrong[] = {0.0, -1.0, NAN, INFINITY};
        for (i = 0; i < sizeof wrong / sizeof *wrong; i++) {
            NAMED(CERTKV_INVALID_ARGUMENT, "epsilon", certkv_sequence_plan_levels(cache, a, wrong[i], 0, levels, 4, &plan));
        }
    }
    plan.struct_size = 4;
    EXPECT(CERTKV_STRUCT_SIZE, certkv_sequence_plan_levels(cache, a, 0.05, 0, levels, 4, &plan));
    plan.struct_size = (uint32_t)sizeof plan;
    for (i = 0; i < STRANGERS; i++) {
        EXPECT(CERTKV_UNKNOWN_SEQUENCE, certkv_sequence_plan_levels(cache, strangers[i], 0.05, 0, levels, 4, &plan));
    }
    NAMED(CERTKV_INVALID_ARGUMENT, "config->control", certkv_sequence_plan_levels(plain, b, 0.05, 0, levels, 4, &plan));
    EXPECT(CERTKV_OK, begin(cache, a, 1, &step));
    EXPECT(CERTKV_BUSY_SEQUENCE, certkv_sequence_plan_levels(cache, a, 0.05, 0, levels, 4, &plan));
    EXPECT(CERTKV_OK, certkv_step_abort(step));
    TRUE(levels[0] == 9 && plan.lacking == CERTKV_LACKING_FLOOR);
    EXPECT(CERTKV_OK, certkv_cache_destroy(plain));
    EXPECT(CERTKV_OK, certkv_cache_destroy(cache));
}

int main(void)
{
    smartkv();
    retained();
    budgeted();
    decisions();
    plans();
    logs();
    return report();
}
