// What the certificates of many outputs come to.
#pragma once
#include <certkv.h>

#include <array>
#include <cstdint>

namespace paged_server {

// Upper ends of the histogram of bound over tolerance; the last bucket has none.
constexpr std::array<double, 7> ratio_ends = {0.1, 0.25, 0.5, 0.75, 0.9, 1.0, 1.1};

// Outputs of decode steps, one per token, layer and query head. Prompts are computed from the originals and carry no bound.
struct Tally {
    std::uint64_t steps = 0;
    std::array<std::uint64_t, 4> by_status{}; // CERTKV_UNCERTIFIED to CERTKV_FAILED
    std::array<std::uint64_t, 5> by_rung{}; // CERTKV_RUNG_PACKED to CERTKV_RUNG_DENSE_LAYER
    std::array<std::uint64_t, ratio_ends.size() + 1> by_ratio{}; // of those that are certified
    double ratio_sum = 0.0;
    // Certified, and yet bound without arithmetic above the tolerance, or not finite: there must be none.
    std::uint64_t beyond = 0;
    // The certified output with the largest bound over tolerance. The bound counts the kernel's own rounding too, the tolerance does not:
    // a ratio a little above 1 is possible.
    double worst_ratio = 0.0, worst_bound = 0.0, worst_norm = 0.0;
    std::uint32_t worst_layer = 0, worst_head = 0;

    [[nodiscard]] std::uint64_t outputs() const { return by_status[0] + by_status[1] + by_status[2] + by_status[3]; }
    [[nodiscard]] std::uint64_t repaired() const { return by_rung[CERTKV_RUNG_MORE_KEYS] + by_rung[CERTKV_RUNG_EXACT_VALUES]; }
    void add(const certkv_certificate &certificate, std::uint32_t layer, std::uint32_t head);
    void add(const Tally &other);
};

} // namespace paged_server
