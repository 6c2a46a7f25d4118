/* Calibrations: every wrong call, every damage, and caches whose formats need one. The argument is a folder to write to. */
#include "calibration.h"
#include "check.h"

/* One byte more than a file has. */
static unsigned char whole[CALIBRATION_MOST + 1];
static size_t size;
static char path[4200];
static uint8_t model[32], other_model[32];
static uint64_t words[64];

static certkv_calibration *opened(void)
{
    certkv_calibration *made = NULL;
    EXPECT(CERTKV_OK, certkv_calibration_open(path, model, &made));
    return made;
}

static void arguments(void)
{
    certkv_calibration *made = FOREIGN(certkv_calibration);
    char longest[4097];
    EXPECT(CERTKV_NULL_POINTER, certkv_calibration_open(NULL, NULL, &made));
    SAYS("path");
    TRUE(made == NULL);
    EXPECT(CERTKV_NULL_POINTER, certkv_calibration_open(path, NULL, NULL));
    SAYS("calibration");
    EXPECT(CERTKV_MISALIGNED, certkv_calibration_open(path, NULL, ODD(certkv_calibration *, words)));
    EXPECT(CERTKV_INVALID_ARGUMENT, certkv_calibration_open("", NULL, &made));
    EXPECT(CERTKV_INVALID_ARGUMENT, certkv_calibration_open("\xff\xfe", NULL, &made));
    memset(longest, '/', sizeof longest); /* Not terminated: no more than 4096 characters may be read. */
    EXPECT(CERTKV_INVALID_ARGUMENT, certkv_calibration_open(longest, NULL, &made));
    EXPECT(CERTKV_FILE, certkv_calibration_open("/nowhere/at all", NULL, &made));
    SAYS("/nowhere/at all");
    EXPECT(CERTKV_FILE, certkv_calibration_open("/", NULL, &made));
    EXPECT(CERTKV_FILE, certkv_calibration_open("/dev/zero", NULL, &made));
    EXPECT(CERTKV_FILE_REFUSED, certkv_calibration_open(path, other_model, &made));
    SAYS("model");
    EXPECT(CERTKV_NULL_POINTER, certkv_calibration_read(NULL, size, NULL, &made));
    SAYS("bytes");
    EXPECT(CERTKV_NULL_POINTER, certkv_calibration_read(NULL, 0, NULL, &made));
    EXPECT(CERTKV_NULL_POINTER, certkv_calibration_read(whole, size, NULL, NULL));
    EXPECT(CERTKV_MISALIGNED, certkv_calibration_read(whole, size, NULL, ODD(certkv_calibration *, words)));
    EXPECT(CERTKV_INVALID_ARGUMENT, certkv_calibration_read(whole, UINT64_MAX, NULL, &made));
    EXPECT(CERTKV_INVALID_ARGUMENT, certkv_calibration_read(whole, (uint64_t)1 << 63, NULL, &made));
    EXPECT(CERTKV_FILE_REFUSED, certkv_calibration_read(whole, size, other_model, &made));
    TRUE(made == NULL);
}

/* Every byte of the header, and some of what follows, changed; every length. */
static void damage(void)
{
    certkv_calibration *made = FOREIGN(certkv_calibration);
    size_t at, step = size / 61;
    EXPECT(CERTKV_FILE_DAMAGED, certkv_calibration_read(whole, 0, NULL, &made));
    for (at = 0; at < size; at += at < 160 ? 1 : step) {
        int32_t got;
        whole[at] ^= 0x40;
        got = certkv_calibration_read(whole, size, NULL, &made);
        whole[at] ^= 0x40;
        /* Magic and version; behind them it is damage. */
        EXPECT(at < 12 ? CERTKV_FILE_REFUSED : CERTKV_FILE_DAMAGED, got);
        TRUE(made == NULL);
        got = certkv_calibration_read(whole, at, NULL, &made);
        EXPECT(CERTKV_FILE_DAMAGED, got);
    }
    whole[8] = 9;
    EXPECT(CERTKV_FILE_REFUSED, certkv_calibration_read(whole, size, NULL, &made));
    SAYS("version 9");
    whole[8] = 1;
    EXPECT(CERTKV_FILE_DAMAGED, certkv_calibration_read(whole, size + 1, NULL, &made));
    SAYS("1 bytes too many");
    EXPECT(CERTKV_OK, certkv_calibration_read(whole, size, model, &made));
    EXPECT(CERTKV_OK, certkv_calibration_destroy(made));
}

static void description(void)
{
    certkv_calibration *from_file = opened(), *from_bytes = NULL;
    certkv_calibration_info a, b;
    unsigned char guarded[offsetof(certkv_calibration_info, tokens) + 8];
    certkv_calibration_info *small_one = (certkv_calibration_info *)(void *)words;
    memset(&a, 0, sizeof a);
    b = a;
    EXPECT(CERTKV_STRUCT_SIZE, certkv_calibration_describe(from_file, &a));
    a.struct_size = b.struct_size = (uint32_t)sizeof a;
    EXPECT(CERTKV_OK, certkv_calibration_read(whole, size, NULL, &from_bytes));
    EXPECT(CERTKV_OK, certkv_calibration_describe(from_file, &a));
    EXPECT(CERTKV_OK, certkv_calibration_describe(from_bytes, &b));
    TRUE(memcmp(&a, &b, sizeof a) == 0);
    TRUE(a.layers == 2 && a.q_heads == Q_HEADS && a.kv_heads == KV_HEADS && a.head_dim == DIM && a.rotary == DIM);
    TRUE(a.tokens > 0 && a.interleaved == 0 && a.centred == 1 && a.balanced == 1 && a.tier == 0);
    TRUE(memcmp(a.model, model, sizeof model) == 0 && memcmp(a.digest, a.text, 32) != 0);
    /* An older caller's struct: nothing behind it is written. */
    memset(words, 0xee, sizeof words);
    memcpy(guarded, words, sizeof guarded);
    small_one->struct_size = (uint32_t)offsetof(certkv_calibration_info, tokens);
    EXPECT(CERTKV_OK, certkv_calibration_describe(from_file, small_one));
    TRUE(small_one->layers == 2 && memcmp((char *)words + offsetof(certkv_calibration_info, tokens), guarded, 8) == 0);
    EXPECT(CERTKV_NULL_POINTER, certkv_calibration_describe(NULL, &a));
    EXPECT(CERTKV_NULL_POINTER, certkv_calibration_describe(from_file, NULL));
    EXPECT(CERTKV_MISALIGNED, certkv_calibration_describe(from_file, ODD(certkv_calibration_info, words)));
    EXPECT(CERTKV_INVALID_HANDLE, certkv_calibration_describe(FOREIGN(certkv_calibration), &a));
    a.struct_size = UINT32_MAX;
    EXPECT(CERTKV_STRUCT_SIZE, certkv_calibration_describe(from_file, &a));
    EXPECT(CERTKV_OK, certkv_calibration_destroy(from_file));
    EXPECT(CERTKV_OK, certkv_calibration_destroy(from_bytes));
    EXPECT(CERTKV_INVALID_HANDLE, certkv_calibration_destroy(from_file));
    EXPECT(CERTKV_INVALID_HANDLE, certkv_calibration_destroy(FOREIGN(certkv_calibration)));
    EXPECT(CERTKV_INVALID_HANDLE, certkv_calibration_describe(from_bytes, &b));
    EXPECT(CERTKV_OK, certkv_calibration_destroy(NULL));
}

static certkv_config calibrated(const certkv_calibration *calibration)
{
    certkv_config config = small();
    config.format = "ctq4-v4g64-b16";
    config.calibration = calibration;
    return config;
}

static void configurations(void)
{
    certkv_calibration *calibration = opened();
    certkv_config config = calibrated(NULL);
    certkv_cache *cache = FOREIGN(certkv_cache);
    EXPECT(CERTKV_INVALID_ARGUMENT, certkv_cache_create(&config, &cache));
    SAYS("config->calibration: none");
    TRUE(cache == NULL);
    config = calibrated(calibration);
    config.format = NULL;
    EXPECT(CERTKV_INVALID_ARGUMENT, certkv_cache_create(&config, &cache));
    SAYS("config->calibration: no format has calibrated keys");
    config = calibrated(calibration);
    config.layers = 1;
    EXPECT(CERTKV_FILE_REFUSED, certkv_cache_create(&config, &cache));
    SAYS("config->calibration: made for layers 2, not 1");
    config = calibrated(calibration);
    config.head_dim = 128;
    EXPECT(CERTKV_FILE_REFUSED, certkv_cache_create(&config, &cache));
    SAYS("head_dim");
    config = calibrated(FOREIGN(const certkv_calibration));
    EXPECT(CERTKV_INVALID_HANDLE, certkv_cache_create(&config, &cache));
    SAYS("calibration");
    config = calibrated(calibration);
    EXPECT(CERTKV_OK, certkv_calibration_destroy(calibration));
    EXPECT(CERTKV_INVALID_HANDLE, certkv_cache_create(&config, &cache));
    TRUE(cache == NULL);
}

enum { PROMPT = 64 };
static float rows[PROMPT * KV];

/* A sequence with a prompt. */
static certkv_sequence prompted(certkv_cache *cache)
{
    certkv_sequence sequence = 0;
    certkv_step *step = NULL;
    uint32_t layer;
    size_t i;
    EXPECT(CERTKV_OK, certkv_sequence_create(cache, &sequence));
    for (i = 0; i < PROMPT * KV; i++) {
        rows[i] = (float)((i * 7919) % 257) / 257.0f - 0.5f;
    }
    EXPECT(CERTKV_OK, begin(cache, sequence, PROMPT, &step));
    for (layer = 0; layer < 2; layer++) {
        EXPECT(CERTKV_OK, certkv_step_append(step, layer, rows, rows, PROMPT * KV, CERTKV_F32, CERTKV_SPACE_HOST));
    }
    EXPECT(CERTKV_OK, certkv_step_finish(step));
    return sequence;
}

/* One token behind it: every certificate holds, or if `most` is not 0 has a bound of codes below it. */
static void one_more(certkv_cache *cache, certkv_sequence sequence, double most)
{
    certkv_certificate certificates[Q_HEADS];
    float queries[Q], out[Q];
    certkv_step *step = NULL;
    uint32_t layer;
    size_t i;
    for (i = 0; i < Q; i++) {
        queries[i] = rows[i] * 2.0f;
    }
    EXPECT(CERTKV_OK, begin(cache, sequence, 1, &step));
    for (layer = 0; layer < 2; layer++) {
        EXPECT(CERTKV_OK, certkv_step_append(step, layer, rows, rows, KV, CERTKV_F32, CERTKV_SPACE_HOST));
        EXPECT(CERTKV_OK, certkv_step_attend(step, layer, queries, out, Q, certificates, Q_HEADS, CERTKV_SPACE_HOST));
        for (i = 0; i < Q_HEADS; i++) {
            const certkv_certificate *c = &certificates[i];
            TRUE(most > 0.0 ? c->bound > 0.0 && c->bound < most && c->e_key > 0.0 && c->packed_bytes > 0 : held(c));
        }
    }
    EXPECT(CERTKV_OK, certkv_step_finish(step));
}

/* Decodes behind a prompt; the bounds are finite, and the codes are what was read. */
static void decodes(certkv_calibration *calibration, const char *format, double most)
{
    certkv_config config = calibrated(calibration);
    certkv_cache *cache = NULL;
    config.format = format;
    config.policy = CERTKV_POLICY_PACKED;
    EXPECT(CERTKV_OK, certkv_cache_create(&config, &cache));
    EXPECT(CERTKV_OK, certkv_calibration_destroy(calibration)); /* The cache has what it needs. */
    one_more(cache, prompted(cache), most);
    EXPECT(CERTKV_OK, certkv_cache_destroy(cache));
}

/* Directions of spherical keys are a calibration, too, of formats of their tier. */
static void directions(void)
{
    certkv_calibration *books = FOREIGN(certkv_calibration), *schemes = opened();
    certkv_calibration_info info;
    certkv_config config;
    certkv_cache *cache = FOREIGN(certkv_cache);
    size_t at;
    size = codebooks_bytes(whole);
    EXPECT(CERTKV_FILE_REFUSED, certkv_calibration_read(whole, size, other_model, &books));
    for (at = 0; at < size; at += at < 140 ? 1 : size / 61) {
        whole[at] ^= 0x40;
        EXPECT(at < 12 ? CERTKV_FILE_REFUSED : CERTKV_FILE_DAMAGED, certkv_calibration_read(whole, size, NULL, &books));
        whole[at] ^= 0x40;
        TRUE(books == NULL);
        EXPECT(CERTKV_FILE_DAMAGED, certkv_calibration_read(whole, at, NULL, &books));
    }
    /* A direction that is none, under a checksum that fits. */
    memset(whole + 116 + 16, 0x40, 4);
    EXPECT(CERTKV_FILE_DAMAGED, certkv_calibration_read(whole, calibration_end(whole, size - 8), NULL, &books));
    SAYS("directions[0]");
    size = codebooks_bytes(whole);
    EXPECT(CERTKV_OK, certkv_calibration_read(whole, size, model, &books));
    memset(&info, 0xee, sizeof info);
    info.struct_size = (uint32_t)sizeof info;
    EXPECT(CERTKV_OK, certkv_calibration_describe(books, &info));
    TRUE(info.layers == 2 && info.kv_heads == KV_HEADS && info.head_dim == DIM && info.tier == 3 && info.tokens == 64);
    TRUE(info.q_heads == 0 && info.rotary == 0 && info.interleaved == 0 && info.centred == 0 && info.balanced == 0);
    TRUE(memcmp(info.model, model, sizeof model) == 0 && memcmp(info.digest, info.text, 32) != 0);
    config = calibrated(books);
    EXPECT(CERTKV_INVALID_ARGUMENT, certkv_cache_create(&config, &cache));
    SAYS("config->calibration: none");
    config.format = "s1-v4g64-b16";
    EXPECT(CERTKV_INVALID_ARGUMENT, certkv_cache_create(&config, &cache));
    SAYS("codebooks of tier b3, where s1 needs b1");
    config.format = "s3-v4g64-b16";
    config.calibration = schemes;
    EXPECT(CERTKV_INVALID_ARGUMENT, certkv_cache_create(&config, &cache));
    SAYS("config->calibration");
    config.calibration = NULL;
    EXPECT(CERTKV_INVALID_ARGUMENT, certkv_cache_create(&config, &cache));
    SAYS("--spherical");
    config.calibration = books;
    config.layers = 1;
    EXPECT(CERTKV_FILE_REFUSED, certkv_cache_create(&config, &cache));
    config.layers = 2;
    TRUE(cache == NULL);
    EXPECT(CERTKV_OK, certkv_calibration_destroy(schemes));
    decodes(books, "s3-v4g64-b16", 100.0);
}

/* Formats that need more than one: two layers, or levels of blocks, one of which is changed by hand. */
static void several(void)
{
    static const certkv_level levels[3] = {{"ctq4-v4g64-b16", 128}, {"s3-v4g64-b16", 128}, {"k0-c0-b16", 128}};
    certkv_calibration *books = NULL, *schemes = opened();
    const certkv_calibration *both[3], *bad[2] = {NULL, FOREIGN(const certkv_calibration)};
    certkv_config config = calibrated(NULL);
    certkv_cache *cache = FOREIGN(certkv_cache);
    certkv_sequence sequence = 0;
    uint32_t now = 9;
    size = codebooks_bytes(whole);
    EXPECT(CERTKV_OK, certkv_calibration_read(whole, size, model, &books));
    both[0] = books;
    both[1] = both[2] = schemes;
    config.format = "ctq4-v4g64-b16+s3-v4g64-b16";
    config.n_calibrations = 2;
    EXPECT(CERTKV_NULL_POINTER, certkv_cache_create(&config, &cache));
    SAYS("config->calibrations");
    config.calibrations = ODD(const certkv_calibration *const, words);
    EXPECT(CERTKV_MISALIGNED, certkv_cache_create(&config, &cache));
    config.calibrations = bad;
    EXPECT(CERTKV_NULL_POINTER, certkv_cache_create(&config, &cache));
    config.calibrations = bad + 1;
    config.n_calibrations = 1;
    EXPECT(CERTKV_INVALID_HANDLE, certkv_cache_create(&config, &cache));
    config.calibrations = both;
    EXPECT(CERTKV_INVALID_ARGUMENT, certkv_cache_create(&config, &cache));
    SAYS("config->calibration: none");
    config.n_calibrations = 3;
    EXPECT(CERTKV_INVALID_ARGUMENT, certkv_cache_create(&config, &cache));
    SAYS("more than one without directions");
    config.n_calibrations = 17;
    EXPECT(CERTKV_INVALID_ARGUMENT, certkv_cache_create(&config, &cache));
    SAYS("n_calibrations");
    config.n_calibrations = 2;
    config.calibration = books;
    EXPECT(CERTKV_INVALID_ARGUMENT, certkv_cache_create(&config, &cache));
    SAYS("2 of tier b3");
    TRUE(cache == NULL);
    config.calibration = schemes;
    config.n_calibrations = 1;
    EXPECT(CERTKV_OK, certkv_cache_create(&config, &cache));
    EXPECT(CERTKV_OK, certkv_cache_destroy(cache));
    config.calibration = NULL;
    config.n_calibrations = 2;
    config.format = NULL;
    config.levels = levels;
    config.n_levels = 3;
    EXPECT(CERTKV_OK, certkv_cache_create(&config, &cache));
    EXPECT(CERTKV_OK, certkv_calibration_destroy(books));
    EXPECT(CERTKV_OK, certkv_calibration_destroy(schemes));
    sequence = prompted(cache);
    EXPECT(CERTKV_OK, certkv_sequence_change_level(cache, sequence, 1, 0, 1));
    EXPECT(CERTKV_OK, certkv_sequence_change_level(cache, sequence, 1, 2, 2));
    EXPECT(CERTKV_OK, certkv_sequence_level(cache, sequence, 1, 0, &now));
    TRUE(now == 1);
    one_more(cache, sequence, 0.0);
    EXPECT(CERTKV_OK, certkv_cache_destroy(cache));
}

int main(int count, char **given)
{
    if (count != 2) {
        return 2;
    }
    memset(model, 7, sizeof model);
    memset(other_model, 8, sizeof other_model);
    snprintf(path, sizeof path, "%s/calibration", given[1]);
    TRUE(sealed_file(path, calibration_bytes));
    size = calibration_bytes(whole);
    arguments();
    damage();
    description();
    configurations();
    decodes(opened(), "ctq4-v4g64-b16", 1.0);
    directions();
    several();
    return report();
}
