#include "sampler.hpp"

#include "plant.hpp"

#include <cmath>

namespace paged_server {

// splitmix64: the same draws on every machine, as those of <random> distributions are not.
double Sampler::uniform()
{
    state_ += 0x9e3779b97f4a7c15u;
    std::uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return static_cast<double>((z ^ (z >> 31)) >> 11) * 0x1p-53;
}

std::uint32_t Sampler::next(const float *logits)
{
    std::size_t best = eos_;
    for (std::size_t token = 0; token < vocabulary_; token++) {
        if (allowed(token) && (logits[token] > logits[best] || (logits[token] == logits[best] && token < best))) {
            best = token;
        }
    }
    if (planted("second-best") && uniform() < 0.2) {
        return static_cast<std::uint32_t>(best == 'e' ? 'a' : 'e');
    }
    if (temperature_ == 0.0) {
        return static_cast<std::uint32_t>(best);
    }
    const auto weight = [&](std::size_t token) {
        return allowed(token) ? std::exp((static_cast<double>(logits[token]) - static_cast<double>(logits[best])) / temperature_) : 0.0;
    };
    double total = 0.0;
    for (std::size_t token = 0; token < vocabulary_; token++) {
        total += weight(token);
    }
    double left = uniform() * total;
    for (std::size_t token = 0; token < vocabulary_; token++) {
        left -= weight(token);
        if (left < 0.0) {
            return static_cast<std::uint32_t>(token);
        }
    }
    return static_cast<std::uint32_t>(best); // Rounding left something over.
}

} // namespace paged_server
