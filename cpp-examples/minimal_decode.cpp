// Prefill of 96 tokens, then 8 decode steps of a one-layer model, with the certificate of every head: minimal_decode.c in C++.
//
// c++ -std=c++17 minimal_decode.cpp -lcertkv -o minimal_decode
#include <certkv.hpp>
#include <cstdio>
#include <vector>

constexpr std::size_t q_heads = 4, kv_heads = 2, dim = 64, prompt = 96, steps = 8;

// Stands in for a model: numbers between -1 and 1.
static std::vector<float> numbers(std::size_t n)
{
    static std::uint32_t state = 1;
    std::vector<float> made(n);
    for (float &number : made) {
        state = state * 1664525u + 1013904223u;
        number = static_cast<float>(state >> 8) / 8388608.0f - 1.0f;
    }
    return made;
}

// Appends `tokens` tokens in one step and attends over everything up to them. An error drops the step, which leaves no trace.
static std::vector<certkv_certificate> step(const certkv::Cache &cache, const certkv::Sequence &sequence, std::size_t tokens)
{
    const std::vector<float> k = numbers(tokens * kv_heads * dim), v = numbers(k.size()), q = numbers(tokens * q_heads * dim);
    std::vector<float> out(q.size());
    std::vector<certkv_certificate> certificates(tokens * q_heads);
    certkv::Step now = cache.begin(sequence, tokens).value_or_throw();
    now.append(0, k, v).value_or_throw();
    now.attend(0, q, out, certificates).value_or_throw();
    now.finish().value_or_throw();
    return certificates;
}

static bool decode()
{
    certkv::Config config;
    config.layers = 1;
    config.q_heads = q_heads;
    config.kv_heads = kv_heads;
    config.head_dim = dim;
    config.max_tokens = prompt + steps;
    const certkv::Cache cache = certkv::Cache::create(config).value_or_throw();
    const certkv::Sequence sequence = cache.create_sequence().value_or_throw();

    std::size_t within = 0, heads = 0;
    step(cache, sequence, prompt);
    for (std::size_t i = 0; i < steps; i++) {
        for (const certkv_certificate &c : step(cache, sequence, 1)) {
            const char *how = c.status == CERTKV_EXACT ? "exact" : c.status == CERTKV_CERTIFIED ? "certified" : "?";
            std::printf("token %zu head %zu: %s, |error| <= %.2e, |out| = %.3f, rung %d\n", prompt + i, heads++ % q_heads, how, c.bound,
                        c.out_norm, c.rung);
            within += c.status == CERTKV_EXACT || c.status == CERTKV_CERTIFIED;
        }
    }
    std::printf("certkv %s: %zu of %zu outputs within tolerance or exact\n", certkv::version(), within, heads);
    return within == heads;
}

int main()
{
    try {
        return decode() ? 0 : 1;
    } catch (const certkv::Exception &e) {
        std::fprintf(stderr, "%s: %s\n", e.error().name(), e.what());
        return 1;
    }
}
