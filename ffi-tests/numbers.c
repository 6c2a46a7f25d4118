/* A host whose threads compute in another way than C begins with: rounded up, and without subnormal numbers, as programs of -ffast-math are. Outputs and
 * certificates are those of any other host, and the host goes on as it did. */
#include "life.h"
#if defined(__x86_64__) || defined(_M_X64)
#include <xmmintrin.h>
#define STRANGE 1
/* Rounding up, results and operands that are subnormal taken for 0. */
enum { FLUSHED = 0x4000 | 0x8000 | 0x0040, STATUS = 0x3f };
static unsigned environment(void) { return _mm_getcsr() & ~(unsigned)STATUS; }
static void compute(unsigned with) { _mm_setcsr(with); }
#else
#define STRANGE 0
enum { FLUSHED = 0 };
static unsigned environment(void) { return 0; }
static void compute(unsigned with) { (void)with; }
#endif

enum { STEPS = 30 };

typedef struct {
    float outputs[STEPS][2][Q];
    certkv_certificate certificates[STEPS][2][Q_HEADS];
} life;

static life usual, strange;

/* Numbers of all sizes that halves have, a third of them subnormal. */
static float number(size_t i)
{
    float x = (float)((i * 7919) % 257) / 257.0f - 0.5f;
    return i % 3 == 0 ? x * 6.0e-5f : x;
}

/* Every call is made in `with`, and leaves it as it was. */
static void live(unsigned with, uint32_t policy, const char *format, life *all)
{
    certkv_config config = small();
    certkv_cache *cache = NULL;
    certkv_sequence sequence = 0;
    static float own[TOKENS * KV], query[Q];
    uint32_t layer;
    size_t i, t;
    config.format = format;
    config.max_tokens = 256;
    config.threads = 2;
    config.policy = policy;
    for (i = 0; i < TOKENS * KV; i++) {
        own[i] = number(i);
    }
    for (i = 0; i < Q; i++) {
        query[i] = number(i + 1);
    }
    memset(all, 0, sizeof *all);
    compute(with);
    EXPECT(CERTKV_OK, certkv_cache_create(&config, &cache));
    EXPECT(CERTKV_OK, certkv_sequence_create(cache, &sequence));
    for (t = 0; t < STEPS; t++) {
        certkv_step *step = NULL;
        uint64_t tokens = t == 0 ? TOKENS : 1;
        EXPECT(CERTKV_OK, begin(cache, sequence, tokens, &step));
        for (layer = 0; layer < 2; layer++) {
            const float *row = own + t * KV * (t > 0);
            EXPECT(CERTKV_OK, certkv_step_append(step, layer, row, row, tokens * KV, CERTKV_F32, CERTKV_SPACE_HOST));
            if (tokens == 1) {
                EXPECT(CERTKV_OK, certkv_step_attend(step, layer, query, all->outputs[t][layer], Q, all->certificates[t][layer],
                                                     Q_HEADS, CERTKV_SPACE_HOST));
            }
        }
        EXPECT(CERTKV_OK, certkv_step_finish(step));
        TRUE(environment() == with);
    }
    EXPECT(CERTKV_OK, certkv_cache_destroy(cache));
    TRUE(environment() == with);
}

int main(void)
{
    static const char *const formats[] = {"k8-v4g32-b16", "tq4-tq4-b16", "e4m3-e4m3-b16", "f16-f16-b16"};
    static const uint32_t policies[] = {CERTKV_POLICY_CERTIFIED, CERTKV_POLICY_PACKED, CERTKV_POLICY_DENSE};
    const unsigned first = environment();
    volatile float least = 1.0e-40f, ten = 10.0f;
    size_t i, p;
    for (i = 0; i < sizeof formats / sizeof *formats; i++) {
        for (p = 0; p < sizeof policies / sizeof *policies; p++) {
            live(first, policies[p], formats[i], &usual);
            live(first | FLUSHED, policies[p], formats[i], &strange);
            /* It was another one: neither number is what C says it is. */
            TRUE(!STRANGE || (least * 1.0f == 0.0f && 7.0f / ten > 0.7f));
            compute(first);
            TRUE(memcmp(&usual, &strange, sizeof usual) == 0);
        }
    }
    return report();
}
