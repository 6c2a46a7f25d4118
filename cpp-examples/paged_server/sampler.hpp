// The next token from logits.
#pragma once
#include <cstddef>
#include <cstdint>

namespace paged_server {

// Draws of one request. They depend on its seed and on how many there were, on nothing else: neither on the batch nor on what was swapped out.
class Sampler {
public:
    // `vocabulary` logits at a time; tokens are bytes and `eos`, no other is ever chosen.
    Sampler(std::size_t vocabulary, std::uint32_t eos, double temperature, std::uint64_t seed)
        : vocabulary_(vocabulary), eos_(eos), temperature_(temperature), state_(seed)
    {
    }
    // Temperature 0 takes the largest, the first of equals.
    std::uint32_t next(const float *logits);

private:
    [[nodiscard]] bool allowed(std::size_t token) const { return token < 256 || token == eos_; }
    double uniform();

    std::size_t vocabulary_;
    std::uint32_t eos_;
    double temperature_;
    std::uint64_t state_;
};

} // namespace paged_server
