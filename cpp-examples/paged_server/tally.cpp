#include "tally.hpp"

#include <cmath>

namespace paged_server {

void Tally::add(const certkv_certificate &c, std::uint32_t layer, std::uint32_t head)
{
    by_status[c.status < by_status.size() ? c.status : CERTKV_FAILED]++;
    by_rung[c.rung < by_rung.size() ? c.rung : CERTKV_RUNG_DENSE_LAYER]++;
    if (c.status != CERTKV_CERTIFIED) {
        return;
    }
    // Written so that NaN fails. The bound is a sum that was rounded, and so is this difference.
    const double slack = 1e-12 * c.bound;
    if (!(c.bound - c.e_arith <= c.tol + slack) || !std::isfinite(c.bound)) {
        beyond++;
    }
    const double ratio = c.tol > 0.0 ? c.bound / c.tol : c.bound > 0.0 ? INFINITY : 0.0;
    std::size_t bucket = 0;
    while (bucket < ratio_ends.size() && !(ratio <= ratio_ends[bucket])) {
        bucket++;
    }
    by_ratio[bucket]++;
    ratio_sum += std::isfinite(ratio) ? ratio : 0.0;
    if (!(ratio <= worst_ratio)) {
        worst_ratio = ratio, worst_bound = c.bound, worst_norm = c.out_norm, worst_layer = layer, worst_head = head;
    }
}

void Tally::add(const Tally &other)
{
    steps += other.steps;
    for (std::size_t i = 0; i < by_status.size(); i++) {
        by_status[i] += other.by_status[i];
    }
    for (std::size_t i = 0; i < by_rung.size(); i++) {
        by_rung[i] += other.by_rung[i];
    }
    for (std::size_t i = 0; i < by_ratio.size(); i++) {
        by_ratio[i] += other.by_ratio[i];
    }
    ratio_sum += other.ratio_sum;
    beyond += other.beyond;
    if (!(other.worst_ratio <= worst_ratio)) {
        worst_ratio = other.worst_ratio, worst_bound = other.worst_bound, worst_norm = other.worst_norm;
        worst_layer = other.worst_layer, worst_head = other.worst_head;
    }
}

} // namespace paged_server
