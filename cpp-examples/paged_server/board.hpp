// The scheduler in numbers, for metrics, for the page, and for tests.
#pragma once
#include "request.hpp"

#include <array>
#include <cstdint>

namespace paged_server {

// Counts by upper end, and their sum.
struct Histogram {
    static constexpr std::array<double, 12> ends = {0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0};
    std::array<std::uint64_t, ends.size() + 1> counts{};
    double sum = 0.0;

    void add(double value)
    {
        std::size_t bucket = 0;
        while (bucket < ends.size() && !(value <= ends[bucket])) {
            bucket++;
        }
        counts[bucket]++;
        sum += value;
    }
};

// One moment: received = waiting + running + swapped + all that ended.
struct Board {
    // Requests. `ended` is by Finish.
    std::uint64_t received = 0, refused_length = 0, refused_queue = 0, refused_stopping = 0;
    std::array<std::uint64_t, 4> ended{};
    std::uint64_t waiting = 0, running = 0, swapped = 0;
    // Tokens: computed of prompts, found in cached prefixes, sampled, and computed again after a request lost its pages.
    std::uint64_t prompt_tokens = 0, cached_tokens = 0, sampled_tokens = 0, recomputed_tokens = 0;
    // Steps, those that the cache refused for want of pages or for another reason, and preemptions.
    std::uint64_t steps = 0, steps_short = 0, steps_failed = 0;
    std::uint64_t swap_outs = 0, swap_ins = 0, drops = 0;
    Histogram step_seconds, first_token_seconds, request_seconds;
    Tally tally;
};

} // namespace paged_server
