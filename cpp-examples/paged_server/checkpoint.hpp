// A folder in the Hugging Face layout of a Llama model: config.json and model.safetensors.
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

namespace paged_server {

// A file that is missing or not what it should be; the message names file and field.
struct CheckpointError : std::runtime_error {
    using runtime_error::runtime_error;
};

struct ModelConfig {
    std::size_t hidden, intermediate, layers, q_heads, kv_heads, head_dim, vocabulary, positions;
    double rope_theta, norm_eps;
    bool tied; // The output matrix is the embedding.
    std::uint32_t bos, eos;

    [[nodiscard]] std::size_t q_width() const { return q_heads * head_dim; }
    [[nodiscard]] std::size_t kv_width() const { return kv_heads * head_dim; }
};

// A tensor widened to single precision, the last size fastest.
struct Tensor {
    std::vector<std::size_t> shape;
    std::vector<float> data;
};

struct Checkpoint {
    ModelConfig config;
    std::map<std::string, Tensor> tensors;

    // Throws CheckpointError.
    static Checkpoint read(const std::string &folder);
    // The tensor of that name and shape; throws CheckpointError.
    [[nodiscard]] const Tensor &get(const std::string &name, const std::vector<std::size_t> &shape) const;
};

} // namespace paged_server
