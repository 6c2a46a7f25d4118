// Checks that every C++ program here makes, and a small cache. Compiles with and without exceptions.
#ifndef CHECK_HPP
#define CHECK_HPP
#include "held.h"
#include <certkv.hpp>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <type_traits>
#include <vector>

constexpr std::size_t Q_HEADS = 4, KV_HEADS = 2, DIM = 64, KV = KV_HEADS * DIM, Q = Q_HEADS * DIM, TOKENS = 40, BLOCK = 16;

inline int checks = 0, failed = 0;

inline void check(int line, const char *what, bool right)
{
    checks++;
    if (!right) {
        failed++;
        std::printf("line %d: %s\n", line, what);
    }
}
#define TRUE(what) check(__LINE__, #what, static_cast<bool>(what))

// An error has its status, and a text that names what was wrong.
template <class R>
void refused(int line, const char *call, const R &result, certkv_status status, const char *word)
{
    checks++;
    const char *text = result.error().message();
    const bool named = status == CERTKV_OK ? *text == '\0' : std::strstr(text, word) != nullptr;
    if (result.ok() != (status == CERTKV_OK) || result.status() != status || !named) {
        failed++;
        std::printf("line %d: %s: %s (%s), not %s\n", line, call, result.error().name(), text, certkv::status_name(status));
    }
}
#define REFUSED(status, word, call) refused(__LINE__, #call, (call), (status), (word))
#define OK(call) refused(__LINE__, #call, (call), CERTKV_OK, "")

inline certkv::Config small()
{
    certkv::Config config;
    config.layers = 2;
    config.q_heads = static_cast<std::uint32_t>(Q_HEADS);
    config.kv_heads = static_cast<std::uint32_t>(KV_HEADS);
    config.head_dim = static_cast<std::uint32_t>(DIM);
    config.format = "k8-v4g32-b16";
    config.max_tokens = 256;
    config.max_sequences = 3;
    return config;
}

// Multiples of 1/256 up to 1/2: exact in all three types of rows.
inline std::vector<float> rows(std::size_t tokens, unsigned from)
{
    std::vector<float> made(tokens * KV);
    for (std::size_t i = 0; i < made.size(); i++) {
        made[i] = static_cast<float>((i * 7919 + from) % 257) / 256.0f - 0.5f;
    }
    return made;
}

// Appends tokens to a sequence, in both layers, and finishes.
inline void extend(const certkv::Cache &cache, const certkv::Sequence &sequence, std::size_t tokens)
{
    auto step = cache.begin(sequence, tokens);
    TRUE(step.ok());
    const std::vector<float> both = rows(tokens, 1);
    OK(step->append(0, both, both));
    OK(step->append(1, both, both));
    OK(step->finish());
}

// A sequence of TOKENS tokens.
inline certkv::Sequence filled(const certkv::Cache &cache)
{
    auto sequence = cache.create_sequence();
    TRUE(sequence.ok());
    extend(cache, *sequence, TOKENS);
    return *std::move(sequence);
}

template <class T>
constexpr bool moves_only = !std::is_copy_constructible_v<T> && !std::is_copy_assignable_v<T> && std::is_nothrow_move_constructible_v<T> &&
                            std::is_nothrow_move_assignable_v<T> && std::is_nothrow_default_constructible_v<T>;

// Says how it went; the result of main.
inline int report()
{
    std::printf("checks %d failed %d\n", checks, failed);
    return failed != 0;
}

#endif
