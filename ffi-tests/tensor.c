/* Tensors: every wrong field, and rows of any type and order against those of certkv_step_append and certkv_step_attend. */
#include "check.h"

enum { T = 5 };

static uint64_t words[64];
static float keys[T * KV], values[T * KV], queries[T * Q], out[T * Q];
static certkv_certificate certificates[T * Q_HEADS];

static certkv_tensor of(void *data, int32_t dtype)
{
    certkv_tensor made;
    memset(&made, 0, sizeof made);
    made.struct_size = (uint32_t)sizeof made;
    made.dtype = dtype;
    made.space = CERTKV_SPACE_HOST;
    made.data = data;
    return made;
}

/* The text of the thread's latest failure names the argument. */
static void names(int line, const char *word)
{
    certkv_error_info info;
    memset(&info, 0, sizeof info);
    info.struct_size = (uint32_t)sizeof info;
    EXPECT(CERTKV_OK, certkv_last_error(&info));
    expect(line, info.message, strstr(info.message, word) != NULL ? CERTKV_OK : CERTKV_INTERNAL, CERTKV_OK);
}

static certkv_cache *open_cache(uint64_t chunk_tokens)
{
    certkv_config config = small();
    certkv_cache *cache = NULL;
    config.format = "k8-v4g32-b16";
    config.chunk_tokens = chunk_tokens;
    EXPECT(CERTKV_OK, certkv_cache_create(&config, &cache));
    return cache;
}

static certkv_step *opened(certkv_cache *cache, certkv_sequence *sequence, uint64_t tokens)
{
    certkv_step *step = NULL;
    EXPECT(CERTKV_OK, certkv_sequence_create(cache, sequence));
    EXPECT(CERTKV_OK, begin(cache, *sequence, tokens, &step));
    return step;
}

/* One wrong field in each of the four tensors. */
static void wrong(int line, certkv_step *step, int32_t want, size_t field, uint64_t value, size_t bytes, const char *word)
{
    int which;
    for (which = 0; which < 4; which++) {
        certkv_tensor given[4];
        const char *const name[4] = {"keys", "values", "queries", "out"};
        char text[64];
        int32_t got;
        given[0] = of(keys, CERTKV_F32);
        given[1] = of(values, CERTKV_F32);
        given[2] = of(queries, CERTKV_F32);
        given[3] = of(out, CERTKV_F32);
        memcpy((char *)&given[which] + field, &value, bytes);
        got = which < 2 ? certkv_step_append_tensors(step, 1, &given[0], &given[1])
                        : certkv_step_attend_tensors(step, 0, &given[2], &given[3], NULL, 0);
        expect(line, name[which], got, want);
        snprintf(text, sizeof text, "%s%s", name[which], word);
        names(line, text);
    }
}
#define WRONG(want, field, value, word) \
    wrong(__LINE__, step, want, offsetof(certkv_tensor, field), (uint64_t)(value), sizeof given.field, word)

/* Certificates that overlap a tensor of their call: whatever else is wrong with it, not a byte of either changes. */
static void overlapping(certkv_step *step)
{
    static union {
        certkv_certificate records[T * Q_HEADS + T * Q];
        float rows[1];
    } both;
    static char before[sizeof both];
    const size_t behind = sizeof(certkv_certificate) * T * Q_HEADS / sizeof(float);
    int which, fault;
    memset(&both, 1, sizeof both);
    memcpy(before, &both, sizeof both);
    for (which = 0; which < 2; which++) {
        for (fault = 0; fault < 8; fault++) {
            certkv_tensor given[2];
            int32_t want = CERTKV_OVERLAP;
            given[0] = of(queries, CERTKV_F32);
            given[1] = of(out, CERTKV_F32);
            given[which].data = fault % 2 == 0 ? both.rows : both.rows + behind - 1;
            switch (fault) {
            case 2: want = CERTKV_INVALID_ARGUMENT, given[which].dtype = 99; break;
            case 3: want = CERTKV_RESERVED, given[which].reserved = 1; break;
            case 4: want = CERTKV_NULL_POINTER, given[1 - which].data = NULL; break;
            case 5: want = CERTKV_INVALID_ARGUMENT, given[which].space = 7; break;
            case 6: want = CERTKV_INVALID_ARGUMENT, given[which].token_stride = UINT64_MAX; break;
            case 7: want = CERTKV_UNSUPPORTED, given[0].space = given[1].space = CERTKV_SPACE_DEVICE; break;
            default: break;
            }
            EXPECT(want, certkv_step_attend_tensors(step, 0, &given[0], &given[1], both.records, T * Q_HEADS));
            if (want == CERTKV_OVERLAP) {
                names(__LINE__, which == 0 ? "queries" : "out");
            }
            expect(__LINE__, "unchanged", memcmp(before, &both, sizeof both) == 0 ? CERTKV_OK : CERTKV_INTERNAL, CERTKV_OK);
        }
    }
    {
        /* Beside each other they are written: the comparison sees it. */
        certkv_tensor given = of(queries, CERTKV_F32), other = of(both.rows + behind, CERTKV_F32);
        given.reserved = 1;
        EXPECT(CERTKV_RESERVED, certkv_step_attend_tensors(step, 0, &given, &other, both.records, T * Q_HEADS));
        expect(__LINE__, "changed", memcmp(before, &both, sizeof both) != 0 ? CERTKV_OK : CERTKV_INTERNAL, CERTKV_OK);
        expect(__LINE__, "unchanged", memcmp(before, both.rows + behind, T * Q * sizeof(float)) == 0 ? CERTKV_OK : CERTKV_INTERNAL, CERTKV_OK);
    }
}

static void arguments(void)
{
    certkv_tensor given = of(keys, CERTKV_F32), other = of(values, CERTKV_F32);
    certkv_cache *cache = open_cache(0);
    certkv_sequence sequence = 0;
    certkv_step *step = opened(cache, &sequence, T);
    EXPECT(CERTKV_OK, certkv_step_append_tensors(step, 0, &given, &other));
    WRONG(CERTKV_STRUCT_SIZE, struct_size, 0, ": struct_size");
    WRONG(CERTKV_STRUCT_SIZE, struct_size, offsetof(certkv_tensor, head_stride), ": struct_size");
    WRONG(CERTKV_STRUCT_SIZE, struct_size, UINT32_MAX, ": struct_size");
    WRONG(CERTKV_INVALID_ARGUMENT, dtype, 0, "->dtype");
    WRONG(CERTKV_INVALID_ARGUMENT, dtype, 99, "->dtype");
    WRONG(CERTKV_RESERVED, reserved, 1, "->reserved");
    WRONG(CERTKV_NULL_POINTER, data, 0, "->data");
    WRONG(CERTKV_MISALIGNED, data, (uintptr_t)keys + 1, "->data");
    WRONG(CERTKV_SHAPE, token_stride, KV - 1, ": rows");
    WRONG(CERTKV_SHAPE, head_stride, DIM - 1, ": rows");
    WRONG(CERTKV_INVALID_ARGUMENT, token_stride, UINT64_MAX, "->data");
    WRONG(CERTKV_INVALID_ARGUMENT, head_stride, UINT64_MAX / 2, "->data");
    WRONG(CERTKV_INVALID_ARGUMENT, space, 7, "->space");
    given.space = other.space = 9;
    EXPECT(CERTKV_UNSUPPORTED, certkv_step_append_tensors(step, 1, &given, &other));
    names(__LINE__, "space");
    given.space = other.space = CERTKV_SPACE_DEVICE;
    EXPECT(CERTKV_UNSUPPORTED, certkv_step_append_tensors(step, 1, &given, &other));
    names(__LINE__, "not on a GPU");
    given.token_stride = other.token_stride = 3 * KV; /* Whatever the strides are. */
    EXPECT(CERTKV_UNSUPPORTED, certkv_step_append_tensors(step, 1, &given, &other));
    names(__LINE__, "not on a GPU");
    given = of(queries, CERTKV_F32);
    other = of(out, CERTKV_F32);
    EXPECT(CERTKV_UNSUPPORTED, (given.space = other.space = CERTKV_SPACE_DEVICE,
                                certkv_step_attend_tensors(step, 0, &given, &other, NULL, 0)));
    given.space = other.space = CERTKV_SPACE_HOST;
    EXPECT(CERTKV_NULL_POINTER, certkv_step_append_tensors(step, 1, NULL, &other));
    EXPECT(CERTKV_NULL_POINTER, certkv_step_append_tensors(step, 1, &given, NULL));
    EXPECT(CERTKV_NULL_POINTER, certkv_step_attend_tensors(step, 0, NULL, &other, NULL, 0));
    EXPECT(CERTKV_NULL_POINTER, certkv_step_attend_tensors(step, 0, &given, NULL, NULL, 0));
    EXPECT(CERTKV_MISALIGNED, certkv_step_append_tensors(step, 1, ODD(const certkv_tensor, words), &other));
    EXPECT(CERTKV_MISALIGNED, certkv_step_attend_tensors(step, 0, &given, ODD(const certkv_tensor, words), NULL, 0));
    EXPECT(CERTKV_NULL_POINTER, certkv_step_append_tensors(NULL, 1, &given, &other));
    EXPECT(CERTKV_INVALID_HANDLE, certkv_step_append_tensors(FOREIGN(certkv_step), 1, &given, &other));
    EXPECT(CERTKV_NULL_POINTER, certkv_step_attend_tensors(NULL, 0, &given, &other, NULL, 0));
    EXPECT(CERTKV_INVALID_HANDLE, certkv_step_attend_tensors(FOREIGN(certkv_step), 0, &given, &other, NULL, 0));
    EXPECT(CERTKV_LAYER, certkv_step_append_tensors(step, 2, &given, &other));
    EXPECT(CERTKV_LAYER, certkv_step_attend_tensors(step, 2, &given, &other, NULL, 0));
    EXPECT(CERTKV_ORDER, certkv_step_attend_tensors(step, 1, &given, &other, NULL, 0));
    EXPECT(CERTKV_SHAPE, certkv_step_attend_tensors(step, 0, &given, &other, certificates, Q_HEADS));
    EXPECT(CERTKV_NULL_POINTER, certkv_step_attend_tensors(step, 0, &given, &other, NULL, T * Q_HEADS));
    EXPECT(CERTKV_MISALIGNED,
           certkv_step_attend_tensors(step, 0, &given, &other, ODD(certkv_certificate, certificates), T * Q_HEADS));
    overlapping(step);
    /* Nothing of the wrong calls was appended. */
    EXPECT(CERTKV_ORDER, certkv_step_finish(step));
    EXPECT(CERTKV_OK, certkv_cache_destroy(cache));
}

/* Multiples of 1/256 below 1, which all three types hold. */
static float number(size_t i)
{
    return (float)((i * 7919) % 255) / 256.0f - 0.5f;
}

static uint16_t sixteen(float x, int32_t dtype)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    if (dtype == CERTKV_BF16) {
        return (uint16_t)(bits >> 16);
    }
    if (x == 0.0f) {
        return 0;
    }
    return (uint16_t)((bits >> 16 & 0x8000) | (((bits >> 23 & 0xff) - 112) << 10) | (bits >> 13 & 0x3ff));
}

static float wide(uint16_t bits, int32_t dtype)
{
    uint32_t made;
    float x;
    if (dtype == CERTKV_BF16) {
        made = (uint32_t)bits << 16;
    } else {
        int exponent = bits >> 10 & 31;
        if (exponent == 0) {
            return (bits & 0x8000 ? -1.0f : 1.0f) * (float)(bits & 0x3ff) / 16777216.0f;
        }
        made = (uint32_t)(bits & 0x8000) << 16 | (uint32_t)(exponent + 112) << 23 | (uint32_t)(bits & 0x3ff) << 13;
    }
    memcpy(&x, &made, sizeof x);
    return x;
}

/* Element of a tensor's memory. */
static float get(const certkv_tensor *at, size_t i)
{
    return at->dtype == CERTKV_F32 ? ((const float *)at->data)[i] : wide(((const uint16_t *)at->data)[i], at->dtype);
}

static void put(const certkv_tensor *at, size_t i, float x)
{
    if (at->dtype == CERTKV_F32) {
        ((float *)at->data)[i] = x;
    } else {
        ((uint16_t *)at->data)[i] = sixteen(x, at->dtype);
    }
}

/* Orders of tokens and heads: packed, with gaps, heads outside, and one buffer for all as of a fused projection. */
static void order(certkv_tensor *at, size_t heads, int kind, size_t tokens)
{
    switch (kind) {
    case 0:
        at->token_stride = at->head_stride = 0;
        break;
    case 1:
        at->token_stride = heads * (DIM + 6) + 10;
        at->head_stride = DIM + 6;
        break;
    case 2:
        at->token_stride = DIM;
        at->head_stride = tokens * DIM;
        break;
    default:
        at->token_stride = Q + 2 * KV;
        at->head_stride = DIM;
    }
}

static size_t place(const certkv_tensor *at, size_t heads, size_t t, size_t h)
{
    return t * (at->token_stride ? at->token_stride : (uint64_t)heads * DIM) + h * (at->head_stride ? at->head_stride : (uint64_t)DIM);
}

/* The same tokens by tensors and by plain calls, in a chunk of which every token has a certificate. */
static void same(int32_t dtype, int32_t out_dtype, int kind)
{
    static float expected[T * Q];
    static certkv_certificate plain[T * Q_HEADS];
    static float fused[4 * T * (Q + 2 * KV)], written[4 * T * Q];
    certkv_cache *cache[2];
    certkv_sequence sequence = 0;
    certkv_step *step[2];
    certkv_tensor q, k, v, o = of(written, out_dtype);
    size_t t, h, c, movers = 0, one = dtype == CERTKV_F32 ? sizeof(float) : sizeof(uint16_t);
    char *base = (char *)fused;
    q = of(base, dtype);
    /* In the fused order keys and values stand behind the queries of the same token. */
    k = of(base + one * (kind == 3 ? Q : T * (Q + 100)), dtype);
    v = of(base + one * (kind == 3 ? Q + KV : T * (Q + KV + 200)), dtype);
    order(&q, Q_HEADS, kind, T);
    order(&k, KV_HEADS, kind, T);
    order(&v, KV_HEADS, kind, T);
    order(&o, Q_HEADS, kind, T);
    memset(written, 0xee, sizeof written);
    for (t = 0; t < T; t++) {
        for (h = 0; h < Q_HEADS; h++) {
            for (c = 0; c < DIM; c++) {
                size_t i = t * Q + h * DIM + c;
                queries[i] = number(i + 17);
                put(&q, place(&q, Q_HEADS, t, h) + c, queries[i]);
                if (h < KV_HEADS) {
                    i = t * KV + h * DIM + c;
                    keys[i] = number(3 * i);
                    values[i] = number(5 * i + 1);
                    put(&k, place(&k, KV_HEADS, t, h) + c, keys[i]);
                    put(&v, place(&v, KV_HEADS, t, h) + c, values[i]);
                }
            }
        }
    }
    cache[0] = open_cache(T);
    cache[1] = open_cache(T);
    step[0] = opened(cache[0], &sequence, T);
    step[1] = opened(cache[1], &sequence, T);
    EXPECT(CERTKV_OK, certkv_step_append(step[0], 0, keys, values, T * KV, CERTKV_F32, CERTKV_SPACE_HOST));
    EXPECT(CERTKV_OK, certkv_step_attend(step[0], 0, queries, expected, T * Q, plain, T * Q_HEADS, CERTKV_SPACE_HOST));
    EXPECT(CERTKV_OK, certkv_step_append_tensors(step[1], 0, &k, &v));
    EXPECT(CERTKV_OK, certkv_step_attend_tensors(step[1], 0, &q, &o, certificates, T * Q_HEADS));
    for (t = 0; t < T; t++) {
        for (h = 0; h < Q_HEADS; h++) {
            const certkv_certificate *a = &plain[t * Q_HEADS + h], *b = &certificates[t * Q_HEADS + h];
            double moved = 0;
            for (c = 0; c < DIM; c++) {
                double d = (double)get(&o, place(&o, Q_HEADS, t, h) + c) - (double)expected[t * Q + h * DIM + c];
                moved += d * d;
            }
            moved = sqrt(moved);
            /* The bound grew by what the rounding moved, and by no more. */
            TRUE(b->bound >= a->bound + moved * (1.0 - 1e-9) && b->bound <= a->bound + moved * (1.0 + 1e-9) + 1e-12);
            TRUE(b->status == a->status && b->e_key == a->e_key && b->e_val == a->e_val);
            /* Every token of the chunk has a bound. */
            TRUE(a->bound >= 0.0 && a->bound < 10.0 && b->bound < 10.0);
            TRUE(moved < 0.02);
            movers += moved > 0.0;
        }
    }
    /* Most outputs are no numbers of 16 bits. */
    TRUE(out_dtype == CERTKV_F32 ? movers == 0 : movers > T * Q_HEADS / 2);
    /* In place: outputs over the queries. */
    if (dtype == out_dtype) {
        EXPECT(CERTKV_OK, certkv_step_attend_tensors(step[1], 0, &q, &q, NULL, 0));
        for (t = 0; t < T; t++) {
            for (h = 0; h < Q_HEADS; h++) {
                TRUE(get(&q, place(&q, Q_HEADS, t, h)) == get(&o, place(&o, Q_HEADS, t, h)));
                TRUE(h >= KV_HEADS || get(&k, place(&k, KV_HEADS, t, h)) == keys[t * KV + h * DIM]);
            }
        }
    }
    EXPECT(CERTKV_OK, certkv_step_abort(step[0]));
    EXPECT(CERTKV_OK, certkv_step_abort(step[1]));
    EXPECT(CERTKV_OK, certkv_cache_destroy(cache[0]));
    EXPECT(CERTKV_OK, certkv_cache_destroy(cache[1]));
}

/* What lies between the rows is left alone. */
static void gaps(void)
{
    static float row[Q + 64];
    certkv_tensor k = of(keys, CERTKV_F32), q = of(queries, CERTKV_F32), o = of(row, CERTKV_F32);
    certkv_cache *cache = open_cache(0);
    certkv_sequence sequence = 0;
    certkv_step *step = opened(cache, &sequence, 1);
    size_t i;
    o.head_stride = DIM + 8;
    for (i = 0; i < Q + 64; i++) {
        row[i] = 77.0f;
    }
    EXPECT(CERTKV_OK, certkv_step_append_tensors(step, 0, &k, &k));
    keys[3] = NAN;
    EXPECT(CERTKV_NOT_FINITE, certkv_step_append_tensors(step, 1, &k, &k));
    keys[3] = 0.0f;
    queries[5] = NAN;
    EXPECT(CERTKV_NOT_FINITE, certkv_step_attend_tensors(step, 0, &q, &o, NULL, 0));
    TRUE(row[0] == 77.0f);
    queries[5] = 0.0f;
    EXPECT(CERTKV_OK, certkv_step_attend_tensors(step, 0, &q, &o, NULL, 0));
    for (i = 0; i < Q + 64; i++) {
        TRUE((row[i] == 77.0f) == (i / (DIM + 8) >= Q_HEADS || i % (DIM + 8) >= DIM));
    }
    EXPECT(CERTKV_OK, certkv_step_abort(step));
    EXPECT(CERTKV_OK, certkv_cache_destroy(cache));
}

/* bf16 holds what f16 does not: the output is refused, not an infinity. */
static void too_large(void)
{
    certkv_config config = small();
    certkv_tensor k, q = of(queries, CERTKV_F32), o = of(out, CERTKV_F16);
    certkv_cache *cache = NULL;
    certkv_sequence sequence = 0;
    certkv_step *step;
    size_t i;
    config.store = CERTKV_BF16;
    config.format = "bf16-bf16-b16";
    EXPECT(CERTKV_OK, certkv_cache_create(&config, &cache));
    step = opened(cache, &sequence, 1);
    for (i = 0; i < KV; i++) {
        keys[i] = 1e6f;
        queries[i] = 0.0f;
    }
    memset(out, 0, sizeof out);
    k = of(keys, CERTKV_F32);
    EXPECT(CERTKV_OK, certkv_step_append_tensors(step, 0, &k, &k));
    EXPECT(CERTKV_OVERFLOW, certkv_step_attend_tensors(step, 0, &q, &o, certificates, Q_HEADS));
    names(__LINE__, "out");
    TRUE(out[0] == 0.0f && certificates[0].status == CERTKV_UNCERTIFIED);
    o.dtype = CERTKV_BF16;
    EXPECT(CERTKV_OK, certkv_step_attend_tensors(step, 0, &q, &o, certificates, Q_HEADS));
    TRUE(wide(((uint16_t *)(void *)out)[0], CERTKV_BF16) > 9e5f);
    EXPECT(CERTKV_OK, certkv_step_abort(step));
    EXPECT(CERTKV_OK, certkv_cache_destroy(cache));
}

int main(void)
{
    const int32_t types[3] = {CERTKV_F32, CERTKV_F16, CERTKV_BF16};
    int i, j, kind;
    for (i = 0; i < T * KV; i++) {
        keys[i] = values[i] = number((size_t)i);
    }
    arguments();
    for (i = 0; i < 3; i++) {
        for (j = 0; j < 3; j++) {
            for (kind = 0; kind < 4; kind++) {
                same(types[i], types[j], kind);
            }
        }
    }
    gaps();
    too_large();
    return report();
}
