/* A calibration, codebooks and fixed scales as `certkv calibrate` writes them, of small()'s geometry and of a model whose digest is 32 sevens. Little-endian machines. C and C++. */
#ifndef CALIBRATION_H
#define CALIBRATION_H
#include <stdint.h>
#include <stdio.h>
#include <string.h>

enum { CALIBRATION_LAYERS = 2, CALIBRATION_Q = 4, CALIBRATION_KV = 2, CALIBRATION_DIM = 64, CALIBRATION_MOST = 1 << 16 };

static inline void calibration_put(unsigned char *to, size_t *size, const void *from, size_t bytes)
{
    memcpy(to + *size, from, bytes);
    *size += bytes;
}

static inline void calibration_doubles(unsigned char *to, size_t *size, double number, int n)
{
    for (; n > 0; n--) {
        calibration_put(to, size, &number, sizeof number);
    }
}

static inline void calibration_floats(unsigned char *to, size_t *size, float number, int n)
{
    for (; n > 0; n--) {
        calibration_put(to, size, &number, sizeof number);
    }
}

/* The checksum of what is there, behind it. */
static inline size_t calibration_end(unsigned char *to, size_t size)
{
    uint64_t sum = size;
    size_t at;
    for (at = 0; at < size; at += 8) {
        uint64_t word = 0;
        memcpy(&word, to + at, size - at < 8 ? size - at : 8);
        word = (sum ^ word) + 0x9E3779B97F4A7C15u;
        word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9u;
        word = (word ^ (word >> 27)) * 0x94D049BB133111EBu;
        sum = word ^ (word >> 31);
    }
    calibration_put(to, &size, &sum, sizeof sum);
    return size;
}

/* Fills `to`, of CALIBRATION_MOST bytes; how many it takes. */
static inline size_t calibration_bytes(unsigned char *to)
{
    const int pairs = CALIBRATION_DIM / 2;
    const uint32_t numbers[7] = {1, CALIBRATION_LAYERS, CALIBRATION_Q, CALIBRATION_KV, CALIBRATION_DIM, CALIBRATION_DIM, 4 * CALIBRATION_DIM / 2};
    /* Pairing, score, least and most bits, centred, balanced. */
    const unsigned char rule[8] = {0, 0, 1, 8, 1, 1, 0, 0};
    const uint64_t tokens = 64;
    unsigned char model[32], text[32], bits[CALIBRATION_DIM / 2];
    size_t size = 0;
    int head;
    memset(model, 7, sizeof model);
    memset(text, 1, sizeof text);
    memset(bits, 4, sizeof bits);
    calibration_put(to, &size, "certkvGQ", 8);
    calibration_put(to, &size, numbers, sizeof numbers);
    calibration_put(to, &size, rule, sizeof rule);
    calibration_put(to, &size, &tokens, sizeof tokens);
    calibration_put(to, &size, model, sizeof model);
    calibration_put(to, &size, text, sizeof text);
    for (head = 0; head < CALIBRATION_LAYERS * CALIBRATION_KV; head++) {
        calibration_doubles(to, &size, 1.0, 2 * pairs);              /* Energies of queries and keys. */
        calibration_doubles(to, &size, 0.125, CALIBRATION_DIM);      /* The mean key. */
        calibration_floats(to, &size, -1.0f, CALIBRATION_DIM);       /* The least, */
        calibration_floats(to, &size, 1.0f, CALIBRATION_DIM);        /* and the greatest. */
        calibration_floats(to, &size, 1.0f, CALIBRATION_DIM);        /* The balance scale. */
        calibration_floats(to, &size, 0.125f, CALIBRATION_DIM);      /* The centre. */
        calibration_put(to, &size, bits, sizeof bits);
    }
    return calibration_end(to, size);
}

/* Codebooks of tier b3 of the same model: 8 directions for each 32 channels, one channel each. */
static inline size_t codebooks_bytes(unsigned char *to)
{
    enum { WORDS = 8, CHANNELS = 32, GROUPS = CALIBRATION_DIM / CHANNELS };
    /* Version, heads, rounds. */
    const uint32_t numbers[5] = {1, CALIBRATION_LAYERS, CALIBRATION_KV, CALIBRATION_DIM, 40};
    /* Tier, objective. */
    const unsigned char kind[8] = {2, 1, 0, 0, 0, 0, 0, 0};
    const uint64_t seed = 1, tokens = 64;
    unsigned char model[32], text[32];
    size_t size = 0;
    int head, word, channel;
    memset(model, 7, sizeof model);
    memset(text, 1, sizeof text);
    calibration_put(to, &size, "certkvSP", 8);
    calibration_put(to, &size, numbers, sizeof numbers);
    calibration_put(to, &size, kind, sizeof kind);
    calibration_put(to, &size, &seed, sizeof seed);
    calibration_put(to, &size, &tokens, sizeof tokens);
    calibration_put(to, &size, model, sizeof model);
    calibration_put(to, &size, text, sizeof text);
    for (head = 0; head < CALIBRATION_LAYERS * CALIBRATION_KV; head++) {
        calibration_doubles(to, &size, 0.75, GROUPS); /* What training lost. */
        for (word = 0; word < GROUPS * WORDS; word++) {
            for (channel = 0; channel < CHANNELS; channel++) {
                calibration_floats(to, &size, channel == word % WORDS ? 1.0f : 0.0f, 1);
            }
        }
    }
    return calibration_end(to, size);
}

/* Fixed scales of the same model, with magnitudes of 0.25: rows beyond that saturate. */
static inline size_t scales_bytes(unsigned char *to)
{
    const uint32_t numbers[4] = {1, CALIBRATION_LAYERS, CALIBRATION_KV, CALIBRATION_DIM};
    const double percentile = 99.5;
    const uint64_t tokens = 64;
    unsigned char model[32], text[32];
    size_t size = 0;
    memset(model, 7, sizeof model);
    memset(text, 1, sizeof text);
    calibration_put(to, &size, "certkvSC", 8);
    calibration_put(to, &size, numbers, sizeof numbers);
    calibration_put(to, &size, &percentile, sizeof percentile);
    calibration_put(to, &size, &tokens, sizeof tokens);
    calibration_put(to, &size, model, sizeof model);
    calibration_put(to, &size, text, sizeof text);
    calibration_floats(to, &size, 0.25f, 2 * CALIBRATION_LAYERS * CALIBRATION_KV * CALIBRATION_DIM / 16);
    return calibration_end(to, size);
}

/* Writes what `fill` gives to a file; 0 if that fails. */
static inline int sealed_file(const char *path, size_t (*fill)(unsigned char *))
{
    static unsigned char bytes[CALIBRATION_MOST];
    FILE *file = fopen(path, "wb");
    size_t size = fill(bytes);
    int done;
    if (file == NULL) {
        return 0;
    }
    done = fwrite(bytes, 1, size, file) == size;
    return fclose(file) == 0 && done;
}

#endif
