/* Prefill of 96 tokens, then 8 decode steps of a one-layer model, with the certificate of every head.
 *
 * cc -std=c11 minimal_decode.c -lcertkv -lm -o minimal_decode
 */
#include <certkv.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { Q_HEADS = 4, KV_HEADS = 2, DIM = 64, PROMPT = 96, STEPS = 8 };

/* Stands in for a model: numbers between -1 and 1. */
static float number(void)
{
    static uint32_t state = 1;
    state = state * 1664525u + 1013904223u;
    return (float)(state >> 8) / 8388608.0f - 1.0f;
}

static void fill(float *to, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        to[i] = number();
    }
}

/* Every call of certkv that fails leaves its text with the thread. */
static void check(int32_t status)
{
    certkv_error_info info;
    if (status == CERTKV_OK) {
        return;
    }
    info.struct_size = (uint32_t)sizeof info;
    certkv_last_error(&info);
    fprintf(stderr, "%s: %s\n", certkv_status_name(status), info.message);
    exit(1);
}

/* Appends `tokens` tokens in one step and attends over everything up to them. */
static void step(certkv_cache *cache, certkv_sequence sequence, size_t tokens, certkv_certificate *certificates)
{
    static float k[PROMPT * KV_HEADS * DIM], v[PROMPT * KV_HEADS * DIM];
    static float q[PROMPT * Q_HEADS * DIM], out[PROMPT * Q_HEADS * DIM];
    size_t kv = tokens * KV_HEADS * DIM, heads = tokens * Q_HEADS;
    certkv_chunk chunk;
    certkv_step *now = NULL;
    chunk.sequence = sequence;
    chunk.tokens = tokens;
    fill(k, kv);
    fill(v, kv);
    fill(q, heads * DIM);
    check(certkv_step_begin(cache, &chunk, 1, &now));
    check(certkv_step_append(now, 0, k, v, kv, CERTKV_F32, CERTKV_SPACE_HOST));
    check(certkv_step_attend(now, 0, q, out, heads * DIM, certificates, heads, CERTKV_SPACE_HOST));
    check(certkv_step_finish(now));
}

int main(void)
{
    static certkv_certificate certificates[PROMPT * Q_HEADS];
    certkv_config config;
    certkv_cache *cache = NULL;
    certkv_sequence sequence = CERTKV_NO_SEQUENCE;
    int within = 0, heads = 0;

    check(certkv_config_init(&config, (uint32_t)sizeof config));
    config.layers = 1;
    config.q_heads = Q_HEADS;
    config.kv_heads = KV_HEADS;
    config.head_dim = DIM;
    config.max_tokens = PROMPT + STEPS;
    check(certkv_cache_create(&config, &cache));
    check(certkv_sequence_create(cache, &sequence));

    step(cache, sequence, PROMPT, certificates);
    for (int i = 0; i < STEPS; i++) {
        step(cache, sequence, 1, certificates);
        for (int h = 0; h < Q_HEADS; h++, heads++) {
            const certkv_certificate *c = &certificates[h];
            const char *how = c->status == CERTKV_EXACT ? "exact" : c->status == CERTKV_CERTIFIED ? "certified" : "?";
            printf("token %d head %d: %s, |error| <= %.2e, |out| = %.3f, rung %d\n", PROMPT + i, h, how, c->bound,
                   c->out_norm, c->rung);
            within += c->status == CERTKV_EXACT || c->status == CERTKV_CERTIFIED;
        }
    }
    printf("certkv %s: %d of %d outputs within tolerance or exact\n", certkv_version(), within, heads);
    check(certkv_sequence_release(cache, sequence));
    check(certkv_cache_destroy(cache));
    return within == heads ? 0 : 1;
}
