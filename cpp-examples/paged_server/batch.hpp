// One step of several sequences: the model's rows through the cache.
#pragma once
#include "model.hpp"
#include "tally.hpp"

#include <certkv.hpp>

#include <cstdint>
#include <vector>

namespace paged_server {

// New tokens of one sequence. One token is a decode step, whose outputs are certified; more are computed from the originals.
struct Part {
    const certkv::Sequence *sequence;
    const std::uint32_t *tokens;
    std::uint64_t count; // at least 1
    std::uint64_t position; // of the first: the sequence's length
    bool logits; // of the last token are wanted
    Tally tally; // filled, for a decode step
};

// Appends and attends in every layer. Logits [parts that want them][vocabulary]. Throws certkv::Exception; the sequences are as before
// then, and tallies empty.
std::vector<float> step(const certkv::Cache &cache, Model &model, std::vector<Part> &parts);

} // namespace paged_server
