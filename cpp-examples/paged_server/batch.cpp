#include "batch.hpp"

namespace paged_server {

std::vector<float> step(const certkv::Cache &cache, Model &model, std::vector<Part> &parts)
{
    std::vector<certkv_chunk> chunks;
    std::vector<Row> rows;
    std::vector<std::size_t> wanted;
    for (const Part &part : parts) {
        chunks.push_back(part.sequence->chunk(part.count));
        for (std::uint64_t i = 0; i < part.count; i++) {
            rows.push_back({part.tokens[i], part.position + i});
        }
        if (part.logits) {
            wanted.push_back(rows.size() - 1);
        }
    }
    const std::size_t heads = model.config().q_heads;
    std::vector<certkv_certificate> certificates(rows.size() * heads);
    std::vector<Tally> tallies(parts.size());
    certkv::Step now = cache.begin(chunks).value_or_throw();
    std::vector<float> logits = model.forward(
        rows, wanted,
        [&](std::uint32_t layer, const std::vector<float> &keys, const std::vector<float> &values, const std::vector<float> &queries,
            std::vector<float> &out) {
            now.append(layer, keys, values).value_or_throw();
            now.attend(layer, queries, out, certificates).value_or_throw();
            now.plan(layer).value_or_throw(); // On a GPU while the host goes on.
            std::size_t row = 0;
            for (std::size_t i = 0; i < parts.size(); row += parts[i++].count) {
                for (std::size_t head = 0; head < heads && parts[i].count == 1; head++) {
                    tallies[i].add(certificates[row * heads + head], layer, static_cast<std::uint32_t>(head));
                }
            }
        });
    now.finish().value_or_throw(); // Dropped before this, by an exception, the step leaves no trace.
    for (std::size_t i = 0; i < parts.size(); i++) {
        tallies[i].steps = parts[i].count == 1 ? 1 : 0;
        parts[i].tally = tallies[i];
    }
    return logits;
}

} // namespace paged_server
