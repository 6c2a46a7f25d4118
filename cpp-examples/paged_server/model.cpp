#include "model.hpp"

#include "workers.hpp"

#include <Eigen/Core>
#include <algorithm>
#include <cmath>

namespace paged_server {
namespace {

using Matrix = Eigen::MatrixXf; // by columns: one column of activations is one token
using Eigen::Index;

// Columns of a product are a multiple of this. Eigen's kernel takes columns in fours and those that are left over in another order of
// sums; without a rest every column is computed alike, whatever stands beside it.
constexpr std::size_t together = 4;
// Rows of a weight that one thread computes are a multiple of this, the height of Eigen's widest tile, so that the number of threads
// moves no row into a narrower one but the last.
constexpr std::size_t tile = 48;

struct Layer {
    Matrix q, k, v, output, gate, up, down;
    Eigen::VectorXf attention_norm, mlp_norm;
};

Matrix matrix(const Tensor &tensor)
{
    using Rows = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
    return Eigen::Map<const Rows>(tensor.data.data(), static_cast<Index>(tensor.shape[0]), static_cast<Index>(tensor.shape[1]));
}

Eigen::VectorXf vector(const Tensor &tensor)
{
    return Eigen::Map<const Eigen::VectorXf>(tensor.data.data(), static_cast<Index>(tensor.data.size()));
}

// out = weight * in, rows of the weight shared out.
void product(Workers &workers, const Matrix &weight, const Matrix &in, Matrix &out)
{
    out.resize(weight.rows(), in.cols());
    const auto tiles = (static_cast<std::size_t>(weight.rows()) + tile - 1) / tile;
    workers.run([&](std::size_t part) {
        const auto first = static_cast<Index>(tiles * part / workers.count() * tile);
        const auto end = std::min(static_cast<Index>(tiles * (part + 1) / workers.count() * tile), weight.rows());
        if (first < end) {
            out.middleRows(first, end - first).noalias() = weight.middleRows(first, end - first) * in;
        }
    });
}

// Each column divided by its root mean square, times `weight`.
void normalise(const Matrix &in, const Eigen::VectorXf &weight, float eps, Matrix &out)
{
    out.resize(in.rows(), in.cols());
    for (Index column = 0; column < in.cols(); column++) {
        const float square = in.col(column).squaredNorm() / static_cast<float>(in.rows());
        out.col(column) = in.col(column).cwiseProduct(weight) / std::sqrt(square + eps);
    }
}

// Cosines and sines [rows][head_dim / 2]. Angles are formed in double precision: at position 32767 one in single precision would be off by
// a thousandth.
struct Rotation {
    std::vector<float> cos, sin;

    Rotation(const ModelConfig &config, const std::vector<Row> &rows)
    {
        const std::size_t half = config.head_dim / 2;
        for (const Row &row : rows) {
            for (std::size_t i = 0; i < half; i++) {
                const double exponent = -2.0 * static_cast<double>(i) / static_cast<double>(config.head_dim);
                const double angle = static_cast<double>(row.position) * std::pow(config.rope_theta, exponent);
                cos.push_back(static_cast<float>(std::cos(angle)));
                sin.push_back(static_cast<float>(std::sin(angle)));
            }
        }
    }
    // Channel i of a head is paired with i + head_dim / 2. `to` has a row for each of `rows`, as the columns of `from` have.
    void apply(const Matrix &from, std::size_t rows, std::size_t head_dim, std::vector<float> &to) const
    {
        const auto width = static_cast<std::size_t>(from.rows());
        const std::size_t half = head_dim / 2;
        to.resize(rows * width);
        for (std::size_t row = 0; row < rows; row++) {
            const float *in = from.data() + row * width, *c = &cos[row * half], *s = &sin[row * half];
            float *out = &to[row * width];
            for (std::size_t head = 0; head < width; head += head_dim) {
                for (std::size_t i = 0; i < half; i++) {
                    const float a = in[head + i], b = in[head + half + i];
                    out[head + i] = a * c[i] - b * s[i];
                    out[head + half + i] = a * s[i] + b * c[i];
                }
            }
        }
    }
};

} // namespace

struct Model::State {
    ModelConfig config;
    Matrix embedding, head; // a column a token; a row a token
    std::vector<Layer> layers;
    Eigen::VectorXf norm;
    Workers workers;
};

Model::Model(const Checkpoint &checkpoint, unsigned threads) : state_(new State{checkpoint.config, {}, {}, {}, {}, Workers(threads)})
{
    const ModelConfig &c = checkpoint.config;
    const Tensor &embedding = checkpoint.get("model.embed_tokens.weight", {c.vocabulary, c.hidden});
    state_->embedding = matrix(embedding).transpose();
    state_->head = matrix(c.tied ? embedding : checkpoint.get("lm_head.weight", {c.vocabulary, c.hidden}));
    state_->norm = vector(checkpoint.get("model.norm.weight", {c.hidden}));
    for (std::size_t i = 0; i < c.layers; i++) {
        const auto get = [&](const char *name, const std::vector<std::size_t> &shape) -> const Tensor & {
            return checkpoint.get("model.layers." + std::to_string(i) + "." + name + ".weight", shape);
        };
        Layer layer;
        layer.q = matrix(get("self_attn.q_proj", {c.q_width(), c.hidden}));
        layer.k = matrix(get("self_attn.k_proj", {c.kv_width(), c.hidden}));
        layer.v = matrix(get("self_attn.v_proj", {c.kv_width(), c.hidden}));
        layer.output = matrix(get("self_attn.o_proj", {c.hidden, c.q_width()}));
        layer.gate = matrix(get("mlp.gate_proj", {c.intermediate, c.hidden}));
        layer.up = matrix(get("mlp.up_proj", {c.intermediate, c.hidden}));
        layer.down = matrix(get("mlp.down_proj", {c.hidden, c.intermediate}));
        layer.attention_norm = vector(get("input_layernorm", {c.hidden}));
        layer.mlp_norm = vector(get("post_attention_layernorm", {c.hidden}));
        state_->layers.push_back(std::move(layer));
    }
}

Model::~Model() = default;

const ModelConfig &Model::config() const
{
    return state_->config;
}

std::vector<float> Model::forward(const std::vector<Row> &rows, const std::vector<std::size_t> &wanted, const Attend &attend)
{
    State &s = *state_;
    const ModelConfig &c = s.config;
    const auto padded = [](std::size_t n) { return static_cast<Index>((n + together - 1) / together * together); };
    const auto count = static_cast<Index>(rows.size());
    const auto eps = static_cast<float>(c.norm_eps);
    const Rotation rotation(c, rows);
    Matrix x = Matrix::Zero(static_cast<Index>(c.hidden), padded(rows.size()));
    for (Index i = 0; i < count; i++) {
        x.col(i) = s.embedding.col(static_cast<Index>(rows[static_cast<std::size_t>(i)].token));
    }
    Matrix h, q, k, v, gate, up, sum;
    Matrix mixed = Matrix::Zero(static_cast<Index>(c.q_width()), x.cols());
    std::vector<float> queries, keys, values, out(rows.size() * c.q_width());
    for (std::size_t i = 0; i < c.layers; i++) {
        const Layer &layer = s.layers[i];
        normalise(x, layer.attention_norm, eps, h);
        product(s.workers, layer.q, h, q);
        product(s.workers, layer.k, h, k);
        product(s.workers, layer.v, h, v);
        rotation.apply(q, rows.size(), c.head_dim, queries);
        rotation.apply(k, rows.size(), c.head_dim, keys);
        values.assign(v.data(), v.data() + rows.size() * c.kv_width());
        attend(static_cast<std::uint32_t>(i), keys, values, queries, out);
        std::copy(out.begin(), out.end(), mixed.data());
        product(s.workers, layer.output, mixed, sum);
        x += sum;
        normalise(x, layer.mlp_norm, eps, h);
        product(s.workers, layer.gate, h, gate);
        product(s.workers, layer.up, h, up);
        up.array() *= gate.array() / (1.0f + (-gate.array()).exp()); // SwiGLU
        product(s.workers, layer.down, up, sum);
        x += sum;
    }
    if (wanted.empty()) {
        return {};
    }
    Matrix last = Matrix::Zero(x.rows(), padded(wanted.size()));
    for (std::size_t i = 0; i < wanted.size(); i++) {
        last.col(static_cast<Index>(i)) = x.col(static_cast<Index>(wanted[i]));
    }
    normalise(last, s.norm, eps, h);
    product(s.workers, s.head, h, sum);
    return {sum.data(), sum.data() + wanted.size() * c.vocabulary};
}

} // namespace paged_server
