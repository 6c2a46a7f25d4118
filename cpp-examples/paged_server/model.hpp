// The forward pass of a Llama model. Attention is the caller's.
#pragma once
#include "checkpoint.hpp"

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

namespace paged_server {

// One token of a step.
struct Row {
    std::uint32_t token;
    std::uint64_t position; // in its sequence
};

// Rows of a layer, one token after another: keys and values [rows][kv_width], queries and out [rows][q_width]. Keys and queries are rotated.
// Fills `out`. May throw, which ends the pass.
using Attend = std::function<void(std::uint32_t layer, const std::vector<float> &keys, const std::vector<float> &values,
                                  const std::vector<float> &queries, std::vector<float> &out)>;

class Model {
public:
    // Throws CheckpointError for a tensor that does not fit.
    Model(const Checkpoint &checkpoint, unsigned threads);
    ~Model();
    Model(const Model &) = delete;
    Model &operator=(const Model &) = delete;

    [[nodiscard]] const ModelConfig &config() const;
    // Logits [wanted][vocabulary] of those rows that `wanted` names. What is computed for a row does not depend on the other rows, to the
    // bit: so a request has the same answer whatever is computed beside it. One caller at a time.
    std::vector<float> forward(const std::vector<Row> &rows, const std::vector<std::size_t> &wanted, const Attend &attend);

private:
    struct State; // Eigen stays in one file, which compiles slowly enough.
    std::unique_ptr<State> state_;
};

} // namespace paged_server
