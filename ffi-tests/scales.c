/* Fixed scales: every wrong call, every damage, and a cache whose rows saturate. The argument is a folder to write to. */
#include "calibration.h"
#include "life.h"

/* One byte more than a file has. */
static unsigned char whole[CALIBRATION_MOST + 1];
static size_t size;
static char path[4200];
static uint8_t model[32], other_model[32];
static uint64_t words[64];

static certkv_scales *opened(void)
{
    certkv_scales *made = NULL;
    EXPECT(CERTKV_OK, certkv_scales_open(path, model, &made));
    return made;
}

static void arguments(void)
{
    certkv_scales *made = FOREIGN(certkv_scales);
    NAMED(CERTKV_NULL_POINTER, "path", certkv_scales_open(NULL, NULL, &made));
    TRUE(made == NULL);
    NAMED(CERTKV_NULL_POINTER, "scales", certkv_scales_open(path, NULL, NULL));
    EXPECT(CERTKV_MISALIGNED, certkv_scales_open(path, NULL, ODD(certkv_scales *, words)));
    EXPECT(CERTKV_INVALID_ARGUMENT, certkv_scales_open("", NULL, &made));
    NAMED(CERTKV_FILE, "/nowhere", certkv_scales_open("/nowhere", NULL, &made));
    EXPECT(CERTKV_FILE, certkv_scales_open("/dev/zero", NULL, &made));
    NAMED(CERTKV_FILE_REFUSED, "scales: made for a model", certkv_scales_open(path, other_model, &made));
    NAMED(CERTKV_NULL_POINTER, "bytes", certkv_scales_read(NULL, size, NULL, &made));
    EXPECT(CERTKV_NULL_POINTER, certkv_scales_read(whole, size, NULL, NULL));
    EXPECT(CERTKV_INVALID_ARGUMENT, certkv_scales_read(whole, UINT64_MAX, NULL, &made));
    EXPECT(CERTKV_FILE_REFUSED, certkv_scales_read(whole, size, other_model, &made));
    TRUE(made == NULL);
}

/* Every byte changed; every length. */
static void damage(void)
{
    certkv_scales *made = FOREIGN(certkv_scales);
    size_t at;
    for (at = 0; at < size; at++) {
        int32_t got;
        whole[at] ^= 0x40;
        got = certkv_scales_read(whole, size, NULL, &made);
        whole[at] ^= 0x40;
        /* Magic and version; behind them it is damage. */
        EXPECT(at < 12 ? CERTKV_FILE_REFUSED : CERTKV_FILE_DAMAGED, got);
        EXPECT(CERTKV_FILE_DAMAGED, certkv_scales_read(whole, at, NULL, &made));
        TRUE(made == NULL);
    }
    EXPECT(CERTKV_FILE_DAMAGED, certkv_scales_read(whole, size + 1, NULL, &made));
}

static void description(void)
{
    certkv_scales *from_file = opened(), *from_bytes = NULL;
    certkv_scales_info info;
    EXPECT(CERTKV_OK, certkv_scales_read(whole, size, model, &from_bytes));
    memset(&info, 0, sizeof info);
    EXPECT(CERTKV_STRUCT_SIZE, certkv_scales_describe(from_file, &info));
    info.struct_size = (uint32_t)sizeof info;
    EXPECT(CERTKV_OK, certkv_scales_describe(from_file, &info));
    TRUE(info.layers == 2 && info.kv_heads == KV_HEADS && info.head_dim == DIM && info.percentile == 99.5 && info.tokens == 64);
    TRUE(info.model[31] == 7 && info.text[0] == 1);
    EXPECT(CERTKV_NULL_POINTER, certkv_scales_describe(NULL, &info));
    EXPECT(CERTKV_NULL_POINTER, certkv_scales_describe(from_file, NULL));
    EXPECT(CERTKV_MISALIGNED, certkv_scales_describe(from_file, ODD(certkv_scales_info, words)));
    EXPECT(CERTKV_INVALID_HANDLE, certkv_scales_describe(FOREIGN(certkv_scales), &info));
    EXPECT(CERTKV_OK, certkv_scales_destroy(from_file));
    EXPECT(CERTKV_INVALID_HANDLE, certkv_scales_destroy(from_file));
    EXPECT(CERTKV_INVALID_HANDLE, certkv_scales_describe(from_file, &info));
    EXPECT(CERTKV_OK, certkv_scales_destroy(from_bytes));
    EXPECT(CERTKV_OK, certkv_scales_destroy(NULL));
}

static certkv_config scaled(const certkv_scales *scales)
{
    certkv_config config = small();
    config.format = "p8-p8-b16";
    config.scales = scales;
    return config;
}

static void configurations(void)
{
    certkv_scales *scales = opened();
    certkv_config config = scaled(scales);
    certkv_cache *cache = NULL;
    config.format = "k8-v4g32-b16";
    NAMED(CERTKV_INVALID_ARGUMENT, "config->scales: no format", certkv_cache_create(&config, &cache));
    config = scaled(scales);
    config.layers = 1;
    NAMED(CERTKV_FILE_REFUSED, "config->scales: made for layers 2, not 1", certkv_cache_create(&config, &cache));
    config = scaled(FOREIGN(const certkv_scales));
    NAMED(CERTKV_INVALID_HANDLE, "scales", certkv_cache_create(&config, &cache));
    config = scaled(scales);
    EXPECT(CERTKV_OK, certkv_scales_destroy(scales));
    EXPECT(CERTKV_INVALID_HANDLE, certkv_cache_create(&config, &cache));
    TRUE(cache == NULL);
}

/* Elements of a filled sequence that saturate under scales, or under none. */
static uint64_t saturated(certkv_scales *scales)
{
    certkv_config config = scaled(scales);
    certkv_certificate certificates[Q_HEADS];
    certkv_cache *cache = NULL;
    certkv_sequence sequence;
    certkv_snapshot seen;
    certkv_step *step = NULL;
    float out[Q], queries[Q];
    size_t i;
    EXPECT(CERTKV_OK, certkv_cache_create(&config, &cache));
    EXPECT(CERTKV_OK, certkv_scales_destroy(scales)); /* The cache has what it needs. */
    sequence = filled(cache);
    for (i = 0; i < Q; i++) {
        queries[i] = rows[i];
    }
    EXPECT(CERTKV_OK, begin(cache, sequence, 1, &step));
    EXPECT(CERTKV_OK, certkv_step_append(step, 0, rows, rows, KV, CERTKV_F32, CERTKV_SPACE_HOST));
    EXPECT(CERTKV_OK, certkv_step_attend(step, 0, queries, out, Q, certificates, Q_HEADS, CERTKV_SPACE_HOST));
    for (i = 0; i < Q_HEADS; i++) {
        TRUE(held(&certificates[i]));
    }
    EXPECT(CERTKV_OK, certkv_step_abort(step));
    memset(&seen, 0, sizeof seen);
    seen.struct_size = (uint32_t)sizeof seen;
    EXPECT(CERTKV_OK, certkv_cache_snapshot(cache, &seen));
    EXPECT(CERTKV_OK, certkv_cache_destroy(cache));
    return seen.saturated;
}

int main(int count, char **given)
{
    uint64_t beyond;
    if (count != 2) {
        return 2;
    }
    memset(model, 7, sizeof model);
    memset(other_model, 8, sizeof other_model);
    snprintf(path, sizeof path, "%s/scales", given[1]);
    TRUE(sealed_file(path, scales_bytes));
    size = scales_bytes(whole);
    arguments();
    damage();
    description();
    configurations();
    /* Rows are uniform in -0.5 to 0.5 and scales 0.25: half of the elements of two full blocks, two layers and both sides. */
    beyond = saturated(opened());
    TRUE(beyond > 2 * 2 * KV * 2 * BLOCK / 3 && beyond < 2 * 2 * KV * 2 * BLOCK * 2 / 3);
    TRUE(saturated(NULL) == 0);
    return report();
}
