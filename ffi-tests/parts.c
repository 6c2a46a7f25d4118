/* Policies of single steps, marks of prompts, slack of windows, plans of requests and metrics: every wrong call, and what the right ones say. */
#include "life.h"
#include <stdlib.h>

static uint64_t words[64];
static uint32_t prompt[TOKENS];
static float queries[Q], out[Q];
static certkv_certificate certificates[Q_HEADS];
static certkv_cache *cache;

/* One token under a policy: the status of its first head. */
static int decode(certkv_sequence a, certkv_policy policy, double tolerance)
{
    certkv_step_options options = {sizeof options, 0, 0.0};
    certkv_chunk chunk;
    certkv_step *step = NULL;
    uint32_t layer;
    options.policy = policy;
    options.tolerance = tolerance;
    chunk.sequence = a;
    chunk.tokens = 1;
    EXPECT(CERTKV_OK, certkv_step_begin_with(cache, &chunk, 1, &options, &step));
    for (layer = 0; layer < 2; layer++) {
        EXPECT(CERTKV_OK, certkv_step_append(step, layer, rows, rows, KV, CERTKV_F32, CERTKV_SPACE_HOST));
        EXPECT(CERTKV_OK, certkv_step_attend(step, layer, queries, out, Q, certificates, Q_HEADS, CERTKV_SPACE_HOST));
    }
    EXPECT(CERTKV_OK, certkv_step_finish(step));
    return certificates[0].status;
}

static void policies(certkv_sequence a)
{
    certkv_step_options options = {sizeof options, 0, 0.0};
    certkv_step *step = (certkv_step *)(void *)words;
    certkv_chunk chunk;
    uint32_t sizes[] = {0, 4, 7, 4097, UINT32_MAX};
    size_t i;
    chunk.sequence = a;
    chunk.tokens = 1;
    NAMED(CERTKV_NULL_POINTER, "options", certkv_step_begin_with(cache, &chunk, 1, NULL, &step));
    TRUE(step == NULL);
    NAMED(CERTKV_MISALIGNED, "options", certkv_step_begin_with(cache, &chunk, 1, ODD(const certkv_step_options, words), &step));
    for (i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        options.struct_size = sizes[i];
        NAMED(CERTKV_STRUCT_SIZE, "options", certkv_step_begin_with(cache, &chunk, 1, &options, &step));
    }
    options.struct_size = (uint32_t)sizeof options;
    options.policy = 4;
    NAMED(CERTKV_INVALID_ARGUMENT, "options->policy", certkv_step_begin_with(cache, &chunk, 1, &options, &step));
    options.policy = CERTKV_POLICY_CERTIFIED;
    options.tolerance = -1;
    NAMED(CERTKV_POLICY, "tol", certkv_step_begin_with(cache, &chunk, 1, &options, &step));
    options.tolerance = NAN;
    NAMED(CERTKV_POLICY, "tol", certkv_step_begin_with(cache, &chunk, 1, &options, &step));
    options.tolerance = 0;
    NAMED(CERTKV_NULL_POINTER, "cache", certkv_step_begin_with(NULL, &chunk, 1, &options, &step));
    EXPECT(CERTKV_INVALID_HANDLE, certkv_step_begin_with(FOREIGN(certkv_cache), &chunk, 1, &options, &step));
    NAMED(CERTKV_NULL_POINTER, "chunks", certkv_step_begin_with(cache, NULL, 1, &options, &step));
    NAMED(CERTKV_INVALID_ARGUMENT, "n_chunks", certkv_step_begin_with(cache, &chunk, UINT64_MAX, &options, &step));
    NAMED(CERTKV_NULL_POINTER, "step", certkv_step_begin_with(cache, &chunk, 1, &options, NULL));
    NAMED(CERTKV_MISALIGNED, "step", certkv_step_begin_with(cache, &chunk, 1, &options, ODD(certkv_step *, words)));
    TRUE(step == NULL && words[0] == 0);
    for (i = 0; i < Q; i++) {
        queries[i] = (float)(i % 5) / 8.0f;
    }
    TRUE(decode(a, CERTKV_POLICY_CERTIFIED, 0.3) == CERTKV_CERTIFIED && fabs(certificates[0].tol - 0.3 * certificates[0].out_norm) < 1e-3);
    TRUE(decode(a, CERTKV_POLICY_DENSE, 0) == CERTKV_EXACT);
    TRUE(decode(a, CERTKV_POLICY_PACKED, 0) == CERTKV_UNCERTIFIED);
    TRUE(decode(a, CERTKV_POLICY_CERTIFIED, 0) == CERTKV_CERTIFIED && fabs(certificates[0].tol - 0.05 * certificates[0].out_norm) < 1e-3);
}

static void tolerances(certkv_sequence a)
{
    const certkv_tolerance four[4] = {{0.5, 0.0}, {0.0, 2.0}, {0.25, 0.0}, {0.1, 0.1}};
    certkv_tolerance wrong = {-1.0, 0.0};
    certkv_step_options dense = {sizeof dense, CERTKV_POLICY_DENSE, 0.0};
    certkv_step *step = NULL;
    certkv_chunk chunk;
    chunk.sequence = a;
    chunk.tokens = 1;
    EXPECT(CERTKV_OK, begin(cache, a, 1, &step));
    NAMED(CERTKV_NULL_POINTER, "step", certkv_step_set_tolerances(NULL, four, 4));
    EXPECT(CERTKV_INVALID_HANDLE, certkv_step_set_tolerances(FOREIGN(certkv_step), four, 4));
    NAMED(CERTKV_NULL_POINTER, "tolerances", certkv_step_set_tolerances(step, NULL, 4));
    NAMED(CERTKV_MISALIGNED, "tolerances", certkv_step_set_tolerances(step, ODD(const certkv_tolerance, words), 1));
    NAMED(CERTKV_INVALID_ARGUMENT, "tolerances", certkv_step_set_tolerances(step, four, UINT64_MAX));
    NAMED(CERTKV_SHAPE, "tolerances", certkv_step_set_tolerances(step, four, 2));
    NAMED(CERTKV_SHAPE, "tolerances", certkv_step_set_tolerances(step, four, 3));
    NAMED(CERTKV_POLICY, "tolerances[0]", certkv_step_set_tolerances(step, &wrong, 1));
    wrong.relative = NAN;
    NAMED(CERTKV_POLICY, "tolerances[0]", certkv_step_set_tolerances(step, &wrong, 1));
    wrong.relative = 0.0;
    NAMED(CERTKV_POLICY, "tolerances[0]", certkv_step_set_tolerances(step, &wrong, 1));
    wrong.absolute = INFINITY;
    NAMED(CERTKV_POLICY, "tolerances[0]", certkv_step_set_tolerances(step, &wrong, 1));
    EXPECT(CERTKV_OK, certkv_step_set_tolerances(step, four, 4));
    EXPECT(CERTKV_OK, certkv_step_set_tolerances(step, four, 1));
    EXPECT(CERTKV_OK, certkv_step_set_tolerances(step, NULL, 0));
    EXPECT(CERTKV_OK, certkv_step_abort(step));
    EXPECT(CERTKV_INVALID_HANDLE, certkv_step_set_tolerances(step, four, 1));
    EXPECT(CERTKV_OK, certkv_step_begin_with(cache, &chunk, 1, &dense, &step));
    NAMED(CERTKV_POLICY, "tolerances", certkv_step_set_tolerances(step, four, 1));
    EXPECT(CERTKV_OK, certkv_step_abort(step));
}

static void marks(certkv_sequence a)
{
    certkv_mark marks[2], other;
    certkv_prefix_scope scope;
    certkv_publication done = {sizeof done, 7, 7, 7};
    certkv_sequence b = 0;
    uint64_t found = 7;
    memset(&scope, 0, sizeof scope);
    scope.struct_size = (uint32_t)sizeof scope;
    marks[0].at = 3;
    marks[0].what = "image";
    marks[0].what_bytes = 5;
    marks[1] = marks[0];
    marks[1].at = BLOCK + 1;
    scope.n_marks = 2;
    NAMED(CERTKV_NULL_POINTER, "scope->marks", certkv_cache_publish(cache, a, &scope, prompt, TOKENS, &done));
    scope.marks = ODD(const certkv_mark, words);
    NAMED(CERTKV_MISALIGNED, "scope->marks", certkv_cache_publish(cache, a, &scope, prompt, TOKENS, &done));
    scope.marks = marks;
    scope.n_marks = ((uint64_t)1 << 20) + 1;
    NAMED(CERTKV_INVALID_ARGUMENT, "scope->n_marks", certkv_cache_publish(cache, a, &scope, prompt, TOKENS, &done));
    scope.n_marks = 2;
    marks[1].at = 2;
    NAMED(CERTKV_INVALID_ARGUMENT, "scope->marks[1].at", certkv_cache_publish(cache, a, &scope, prompt, TOKENS, &done));
    marks[1].at = BLOCK + 1;
    marks[1].what = NULL;
    NAMED(CERTKV_NULL_POINTER, "scope->marks[1].what", certkv_cache_publish(cache, a, &scope, prompt, TOKENS, &done));
    marks[1].what = "image";
    marks[1].what_bytes = 4097;
    NAMED(CERTKV_INVALID_ARGUMENT, "scope->marks[1].what", certkv_cache_publish(cache, a, &scope, prompt, TOKENS, &done));
    marks[1].what_bytes = 5;
    EXPECT(CERTKV_OK, certkv_cache_publish(cache, a, &scope, prompt, TOKENS, &done));
    TRUE(done.cached == 2 * BLOCK && done.added == done.cached);
    EXPECT(CERTKV_OK, certkv_sequence_create_from(cache, &scope, prompt, TOKENS, &b, &found));
    TRUE(found == 2 * BLOCK);
    EXPECT(CERTKV_OK, certkv_sequence_release(cache, b));
    /* Another image from the second block on; none at all; one behind the last token. */
    other = marks[1];
    marks[1].what_bytes = 4;
    EXPECT(CERTKV_OK, certkv_sequence_create_from(cache, &scope, prompt, TOKENS, &b, &found));
    TRUE(found == BLOCK);
    EXPECT(CERTKV_OK, certkv_sequence_release(cache, b));
    marks[1] = other;
    marks[1].at = UINT64_MAX;
    EXPECT(CERTKV_OK, certkv_sequence_create_from(cache, &scope, prompt, BLOCK, &b, &found));
    TRUE(found == BLOCK);
    EXPECT(CERTKV_OK, certkv_sequence_release(cache, b));
    scope.n_marks = 0;
    EXPECT(CERTKV_OK, certkv_sequence_create_from(cache, &scope, prompt, TOKENS, &b, &found));
    TRUE(found == 0);
    EXPECT(CERTKV_OK, certkv_sequence_release(cache, b));
    /* Through a store, too. */
    {
        certkv_store *store = NULL;
        certkv_cache *next = open_cache(0, 4);
        uint64_t n = 7, missing = 7;
        marks[1] = other;
        scope.n_marks = 2;
        EXPECT(CERTKV_OK, certkv_store_create_memory(0, &store));
        EXPECT(CERTKV_OK, certkv_cache_export_prefix(cache, store, &scope, prompt, TOKENS, 0, 0, &n));
        TRUE(n == 2);
        EXPECT(CERTKV_OK, certkv_cache_missing_prefix(cache, NULL, &scope, prompt, TOKENS, 0, &missing, NULL));
        TRUE(missing == 0);
        scope.n_marks = 1;
        EXPECT(CERTKV_OK, certkv_cache_missing_prefix(cache, NULL, &scope, prompt, TOKENS, 0, &missing, NULL));
        TRUE(missing == 1);
        EXPECT(CERTKV_OK, certkv_cache_destroy(next));
        EXPECT(CERTKV_OK, certkv_store_destroy(store));
    }
}

/* How far back a sequence with a window of 32 tokens can be cut from 120. */
static void slack(void)
{
    const uint64_t slacks[] = {CERTKV_NO_SLACK, 48}, least[] = {120, 72};
    certkv_window window;
    certkv_config config = small();
    certkv_cache *made = NULL;
    size_t i;
    config.format = "k8-v4g32-b16";
    config.max_tokens = 256;
    config.window_slack = 1;
    NAMED(CERTKV_INVALID_ARGUMENT, "config->window_slack", certkv_cache_create(&config, &made));
    memset(&window, 0, sizeof window);
    config.windows = &window;
    config.n_windows = 1;
    NAMED(CERTKV_INVALID_ARGUMENT, "config->window_slack", certkv_cache_create(&config, &made));
    window.tokens = 32;
    config.window_slack = ((uint64_t)1 << 31) + 1;
    NAMED(CERTKV_INVALID_ARGUMENT, "config->window_slack", certkv_cache_create(&config, &made));
    for (i = 0; i < 2; i++) {
        certkv_sequence a;
        certkv_step *step = NULL;
        uint32_t layer, part;
        config.window_slack = slacks[i];
        EXPECT(CERTKV_OK, certkv_cache_create(&config, &made));
        a = filled(made);
        for (part = 0; part < 2; part++) {
            EXPECT(CERTKV_OK, begin(made, a, TOKENS, &step));
            for (layer = 0; layer < 2; layer++) {
                EXPECT(CERTKV_OK, certkv_step_append(step, layer, rows, rows, TOKENS * KV, CERTKV_F32, CERTKV_SPACE_HOST));
            }
            EXPECT(CERTKV_OK, certkv_step_finish(step));
        }
        EXPECT(CERTKV_LENGTH, certkv_sequence_truncate(made, a, least[i] - 17));
        EXPECT(CERTKV_OK, certkv_sequence_truncate(made, a, least[i]));
        EXPECT(CERTKV_OK, certkv_cache_destroy(made));
    }
}

static void requests(void)
{
    certkv_config config = small();
    certkv_requests wanted = {sizeof wanted, 0, 8, 100, 0.0};
    certkv_requests_plan answer;
    uint32_t sizes[] = {0, 8, 15, 4097, UINT32_MAX};
    size_t i;
    memset(&answer, 0, sizeof answer);
    for (i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        answer.struct_size = sizes[i];
        NAMED(CERTKV_STRUCT_SIZE, "answer", certkv_config_plan_requests(&config, &wanted, &answer));
        wanted.struct_size = sizes[i];
        answer.struct_size = (uint32_t)sizeof answer;
        NAMED(CERTKV_STRUCT_SIZE, "requests", certkv_config_plan_requests(&config, &wanted, &answer));
        wanted.struct_size = (uint32_t)sizeof wanted;
    }
    NAMED(CERTKV_NULL_POINTER, "config", certkv_config_plan_requests(NULL, &wanted, &answer));
    NAMED(CERTKV_NULL_POINTER, "requests", certkv_config_plan_requests(&config, NULL, &answer));
    NAMED(CERTKV_NULL_POINTER, "answer", certkv_config_plan_requests(&config, &wanted, NULL));
    NAMED(CERTKV_MISALIGNED, "requests", certkv_config_plan_requests(&config, ODD(const certkv_requests, words), &answer));
    NAMED(CERTKV_MISALIGNED, "answer", certkv_config_plan_requests(&config, &wanted, ODD(certkv_requests_plan, words)));
    wanted.reserved = 1;
    NAMED(CERTKV_RESERVED, "requests->reserved", certkv_config_plan_requests(&config, &wanted, &answer));
    wanted.reserved = 0;
    wanted.count = 0;
    NAMED(CERTKV_INVALID_ARGUMENT, "requests->count", certkv_config_plan_requests(&config, &wanted, &answer));
    wanted.count = UINT64_MAX;
    NAMED(CERTKV_INVALID_ARGUMENT, "requests->count", certkv_config_plan_requests(&config, &wanted, &answer));
    wanted.count = 8;
    wanted.tokens = 0;
    NAMED(CERTKV_INVALID_ARGUMENT, "requests->tokens", certkv_config_plan_requests(&config, &wanted, &answer));
    wanted.tokens = UINT64_MAX;
    NAMED(CERTKV_INVALID_ARGUMENT, "requests->tokens", certkv_config_plan_requests(&config, &wanted, &answer));
    wanted.tokens = 100;
    wanted.scratch = NAN;
    NAMED(CERTKV_INVALID_ARGUMENT, "requests->scratch", certkv_config_plan_requests(&config, &wanted, &answer));
    wanted.scratch = 1.5;
    NAMED(CERTKV_INVALID_ARGUMENT, "requests->scratch", certkv_config_plan_requests(&config, &wanted, &answer));
    wanted.scratch = 0.1;
    TRUE(answer.max_tokens == 0 && answer.most == 0);
    config.max_tokens = 0;
    EXPECT(CERTKV_OK, certkv_config_plan_requests(&config, &wanted, &answer));
    TRUE(answer.max_tokens == 8 * 128 && answer.max_sequences == 8 && answer.most > 8 && answer.device_lacks == 0 && answer.assumed == 0);
    config.device_budget = answer.device_bytes;
    EXPECT(CERTKV_OK, certkv_config_plan_requests(&config, &wanted, &answer));
    TRUE(answer.most == 8 && answer.device_lacks == 0);
    config.device_budget -= 1;
    EXPECT(CERTKV_OK, certkv_config_plan_requests(&config, &wanted, &answer));
    TRUE(answer.most == 7 && answer.device_lacks == 1 && answer.host_bytes > 0 && answer.host_lacks == 0);
    /* A cache of that size is what was planned. */
    {
        certkv_plan plan;
        plan.struct_size = (uint32_t)sizeof plan;
        config.max_tokens = answer.max_tokens;
        config.max_sequences = (uint32_t)answer.max_sequences;
        config.max_context = wanted.tokens;
        config.scratch_keys = config.scratch_values = 0;
        EXPECT(CERTKV_OK, certkv_config_plan(&config, &plan));
        TRUE(plan.host_bytes == answer.host_bytes && plan.device_bytes < answer.device_bytes); /* It has scratch. */
    }
}

static void metrics(void)
{
    char *text = (char *)malloc(65536);
    uint64_t bytes = 7;
    memset(text, 'x', 65536);
    NAMED(CERTKV_NULL_POINTER, "cache", certkv_cache_metrics(NULL, "a", 1, text, 65536, &bytes));
    EXPECT(CERTKV_INVALID_HANDLE, certkv_cache_metrics(FOREIGN(certkv_cache), "a", 1, text, 65536, &bytes));
    NAMED(CERTKV_NULL_POINTER, "name", certkv_cache_metrics(cache, NULL, 1, text, 65536, &bytes));
    NAMED(CERTKV_INVALID_ARGUMENT, "name", certkv_cache_metrics(cache, text, 4097, text, 65536, &bytes));
    NAMED(CERTKV_INVALID_ARGUMENT, "name", certkv_cache_metrics(cache, "\xff", 1, text, 65536, &bytes));
    NAMED(CERTKV_NULL_POINTER, "text", certkv_cache_metrics(cache, "a", 1, NULL, 65536, &bytes));
    NAMED(CERTKV_INVALID_ARGUMENT, "text", certkv_cache_metrics(cache, "a", 1, text, UINT64_MAX, &bytes));
    NAMED(CERTKV_NULL_POINTER, "bytes", certkv_cache_metrics(cache, "a", 1, text, 65536, NULL));
    NAMED(CERTKV_MISALIGNED, "bytes", certkv_cache_metrics(cache, "a", 1, text, 65536, ODD(uint64_t, words)));
    NAMED(CERTKV_OVERLAP, "bytes", certkv_cache_metrics(cache, "a", 1, text, 65536, (uint64_t *)(void *)text));
    TRUE(bytes == 7 && text[0] == 'x');
    EXPECT(CERTKV_OK, certkv_cache_metrics(cache, "a", 1, NULL, 0, &bytes));
    TRUE(bytes > 1000 && bytes < 65536);
    NAMED(CERTKV_SHAPE, "text", certkv_cache_metrics(cache, "a", 1, text, bytes, &bytes));
    TRUE(text[0] == 'x');
    EXPECT(CERTKV_OK, certkv_cache_metrics(cache, "a", 1, text, bytes + 1, &bytes));
    TRUE(strlen(text) == bytes && text[bytes + 1] == 'x' && text[bytes - 1] == '\n');
    TRUE(strstr(text, "# TYPE certkv_tokens gauge\ncertkv_tokens{cache=\"a\"} 44\n") != NULL);
    TRUE(strstr(text, "# TYPE certkv_outputs counter\n") != NULL && strstr(text, "certkv_outputs{cache=\"a\",status=\"exact\"} 8\n") != NULL);
    TRUE(strstr(text, "# TYPE certkv_move_bytes histogram\n") != NULL && strstr(text, ",le=\"+Inf\"} ") != NULL);
    free(text);
}

/* What the snapshot says of outputs is what the certificates said. */
static void counted(void)
{
    certkv_snapshot seen;
    uint64_t rungs = 0;
    size_t i;
    seen.struct_size = (uint32_t)sizeof seen;
    EXPECT(CERTKV_OK, certkv_cache_snapshot(cache, &seen));
    for (i = 0; i < 5; i++) {
        rungs += seen.outputs_by_rung[i];
    }
    TRUE(seen.outputs_certified + seen.outputs_exact + seen.outputs_uncertified == 4 * 2 * Q_HEADS && rungs == 4 * 2 * Q_HEADS);
    TRUE(seen.outputs_exact >= 2 * Q_HEADS && seen.outputs_uncertified == 2 * Q_HEADS && seen.outputs_failed == 0);
    TRUE(seen.prompt_outputs == 0 && seen.read_packed > 0 && seen.read_host > 0 && seen.read_scratch == 0);
    TRUE(seen.scratch_keys.empty == 0 && seen.scratch_values.filled_bytes == 0);
}

/* What the machine has, and kernels before they are needed. */
static void machine(void)
{
    certkv_config config = small();
    certkv_capabilities seen;
    certkv_gpu_info info;
    certkv_prepared prepared = {sizeof prepared, 0, 7, 7};
    uint32_t sizes[] = {0, 4, 4097, UINT32_MAX};
    size_t i;
    memset(&seen, 0x55, sizeof seen);
    memset(&info, 0x55, sizeof info);
    NAMED(CERTKV_NULL_POINTER, "capabilities", certkv_capabilities_describe(NULL));
    NAMED(CERTKV_MISALIGNED, "capabilities", certkv_capabilities_describe(ODD(certkv_capabilities, words)));
    NAMED(CERTKV_NULL_POINTER, "info", certkv_gpu_describe(CERTKV_DEVICE_CUDA, NULL));
    NAMED(CERTKV_MISALIGNED, "info", certkv_gpu_describe(CERTKV_DEVICE_CUDA, ODD(certkv_gpu_info, words)));
    NAMED(CERTKV_NULL_POINTER, "config", certkv_prepare(NULL, &prepared));
    NAMED(CERTKV_MISALIGNED, "config", certkv_prepare(ODD(const certkv_config, words), &prepared));
    NAMED(CERTKV_MISALIGNED, "prepared", certkv_prepare(&config, ODD(certkv_prepared, words)));
    for (i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        seen.struct_size = info.struct_size = prepared.struct_size = sizes[i];
        NAMED(CERTKV_STRUCT_SIZE, "capabilities", certkv_capabilities_describe(&seen));
        NAMED(CERTKV_STRUCT_SIZE, "info", certkv_gpu_describe(CERTKV_DEVICE_CUDA, &info));
        NAMED(CERTKV_STRUCT_SIZE, "prepared", certkv_prepare(&config, &prepared));
    }
    seen.struct_size = (uint32_t)sizeof seen;
    info.struct_size = (uint32_t)sizeof info;
    prepared.struct_size = (uint32_t)sizeof prepared;
    NAMED(CERTKV_INVALID_ARGUMENT, "device", certkv_gpu_describe(CERTKV_DEVICE_HOST, &info));
    TRUE(certkv_gpu_describe(UINT32_MAX, &info) == CERTKV_DEVICE && info.supported == 0x55555555u);
    EXPECT(CERTKV_OK, certkv_capabilities_describe(&seen));
    TRUE(seen.struct_size == sizeof seen && seen.cpu >= 0 && seen.cpu <= CERTKV_CPU_AVX512 && (seen.cuda == CERTKV_OK || seen.gpus == 0));
    seen.struct_size = 8; /* A header that ends before the GPUs. */
    seen.gpus = 77;
    EXPECT(CERTKV_OK, certkv_capabilities_describe(&seen));
    TRUE(seen.struct_size == 8 && seen.gpus == 77);
    EXPECT(CERTKV_OK, certkv_prepare(&config, NULL));
    EXPECT(CERTKV_OK, certkv_prepare(&config, &prepared));
    TRUE(prepared.kernels == 0 && prepared.compiled == 0 && prepared.reserved == 0);
    prepared.kernels = 7;
    config.head_dim = 7;
    NAMED(CERTKV_INVALID_ARGUMENT, "config->head_dim", certkv_prepare(&config, &prepared));
    config = small();
    config.device = UINT32_MAX;
    EXPECT(CERTKV_DEVICE, certkv_prepare(&config, &prepared));
    TRUE(prepared.kernels == 7);
}

int main(void)
{
    certkv_sequence a;
    uint32_t i;
    for (i = 0; i < TOKENS; i++) {
        prompt[i] = i;
    }
    cache = open_cache(0, 4);
    a = filled(cache);
    policies(a);
    tolerances(a);
    counted();
    metrics();
    marks(a);
    slack();
    requests();
    machine();
    EXPECT(CERTKV_OK, certkv_cache_destroy(cache));
    return report();
}
