#include "checkpoint.hpp"

#include <cmath>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

namespace paged_server {
namespace {

using nlohmann::json;

std::string contents(const std::string &path)
{
    std::ifstream file(path, std::ios::binary);
    std::string bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    if (!file || bytes.empty()) {
        throw CheckpointError(path + " cannot be read, or is empty");
    }
    return bytes;
}

// Sizes beyond this are mistakes; the bound keeps every product of two far from overflow.
constexpr std::uint64_t largest = 1u << 24;

class Fields {
public:
    Fields(json object, std::string path) : object_(std::move(object)), path_(std::move(path)) {}

    [[noreturn]] void refuse(const char *field, const std::string &why) const
    {
        throw CheckpointError(path_ + ": " + field + " " + why);
    }
    [[nodiscard]] bool has(const char *field) const { return object_.contains(field) && !object_[field].is_null(); }
    [[nodiscard]] std::size_t size(const char *field, std::size_t otherwise = 0) const
    {
        if (!has(field) && otherwise != 0) {
            return otherwise;
        }
        if (!has(field) || !object_[field].is_number_unsigned()) {
            refuse(field, "is missing, or no whole number");
        }
        const std::uint64_t value = object_[field].get<std::uint64_t>();
        if (value == 0 || value > largest) {
            refuse(field, "is " + std::to_string(value) + ", out of range");
        }
        return value;
    }
    [[nodiscard]] double number(const char *field, double least, double most) const
    {
        const double value = has(field) && object_[field].is_number() ? object_[field].get<double>() : NAN;
        if (!(value > least && value < most)) {
            refuse(field, "is missing or out of range");
        }
        return value;
    }
    [[nodiscard]] bool flag(const char *field) const { return has(field) && object_[field] == true; }
    // What is not computed here must not be there.
    void only(const char *field, const char *value) const
    {
        if (has(field) && object_[field] != value) {
            refuse(field, "is " + object_[field].dump() + "; only " + value + " is computed");
        }
    }

private:
    json object_;
    std::string path_;
};

ModelConfig read_config(const std::string &path)
{
    const json parsed = json::parse(contents(path), nullptr, false);
    if (!parsed.is_object()) {
        throw CheckpointError(path + " is no JSON object");
    }
    const Fields fields(parsed, path);
    if (!fields.has("model_type")) {
        fields.refuse("model_type", "is missing");
    }
    fields.only("model_type", "llama");
    fields.only("hidden_act", "silu");
    if (fields.has("rope_scaling")) {
        fields.refuse("rope_scaling", "is set; only unscaled rotary positions are computed");
    }
    for (const char *bias : {"attention_bias", "mlp_bias"}) {
        if (fields.flag(bias)) {
            fields.refuse(bias, "is true; biases are not computed");
        }
    }
    ModelConfig c{};
    c.hidden = fields.size("hidden_size");
    c.intermediate = fields.size("intermediate_size");
    c.layers = fields.size("num_hidden_layers");
    c.q_heads = fields.size("num_attention_heads");
    c.kv_heads = fields.size("num_key_value_heads", c.q_heads);
    c.head_dim = fields.size("head_dim", c.hidden / c.q_heads);
    c.vocabulary = fields.size("vocab_size");
    c.positions = fields.size("max_position_embeddings");
    c.rope_theta = fields.has("rope_theta") ? fields.number("rope_theta", 1.0, 1e12) : 10000.0;
    c.norm_eps = fields.number("rms_norm_eps", 0.0, 1.0);
    c.tied = fields.flag("tie_word_embeddings");
    c.bos = static_cast<std::uint32_t>(fields.size("bos_token_id"));
    c.eos = static_cast<std::uint32_t>(fields.size("eos_token_id"));
    if (c.q_heads % c.kv_heads != 0 || c.head_dim % 2 != 0) {
        fields.refuse("num_key_value_heads", "or head_dim does not divide as it should");
    }
    // Tokens are bytes; what follows them are marks.
    if (c.vocabulary <= 256 || c.bos < 256 || c.eos < 256 || c.bos >= c.vocabulary || c.eos >= c.vocabulary) {
        fields.refuse("vocab_size", "is not that of a model over bytes");
    }
    return c;
}

float from_half(std::uint16_t bits)
{
    const std::uint32_t sign = static_cast<std::uint32_t>(bits >> 15) << 31;
    const int exponent = (bits >> 10) & 31;
    const std::uint32_t mantissa = bits & 1023u;
    if (exponent == 0) {
        return std::copysign(std::ldexp(static_cast<float>(mantissa), -24), sign != 0 ? -1.0f : 1.0f);
    }
    const std::uint32_t wide = sign | (exponent == 31 ? 0x7f800000u : static_cast<std::uint32_t>(exponent + 112) << 23) | mantissa << 13;
    float value = 0;
    std::memcpy(&value, &wide, sizeof value);
    return value;
}

template <class T>
T little(const char *bytes)
{
    T value{};
    std::memcpy(&value, bytes, sizeof value); // The formats are little endian, as is every machine that certkv is tested on.
    return value;
}

float element(const std::string &dtype, const char *bytes)
{
    if (dtype == "F32") {
        return little<float>(bytes);
    }
    const auto bits = little<std::uint16_t>(bytes);
    if (dtype == "F16") {
        return from_half(bits);
    }
    const std::uint32_t wide = static_cast<std::uint32_t>(bits) << 16;
    float value = 0;
    std::memcpy(&value, &wide, sizeof value);
    return value;
}

Tensor read_tensor(const std::string &path, const std::string &name, const json &entry, const char *data, std::uint64_t bytes)
{
    const auto refuse = [&](const char *why) -> CheckpointError { return CheckpointError(path + ": " + name + " " + why); };
    if (!entry.is_object() || !entry.contains("dtype") || !entry.contains("shape") || !entry.contains("data_offsets")) {
        throw refuse("has no dtype, shape or data_offsets");
    }
    const json &offsets = entry["data_offsets"], &shape = entry["shape"];
    const std::string dtype = entry["dtype"].is_string() ? entry["dtype"].get<std::string>() : "";
    const std::uint64_t width = dtype == "F32" ? 4 : dtype == "F16" || dtype == "BF16" ? 2 : 0;
    if (width == 0) {
        throw refuse("is neither F32 nor F16 nor BF16");
    }
    Tensor tensor;
    std::uint64_t elements = 1;
    for (const json &size : shape) {
        if (!size.is_number_unsigned() || size.get<std::uint64_t>() > largest || elements > (1u << 31)) {
            throw refuse("has an impossible shape");
        }
        tensor.shape.push_back(size.get<std::size_t>());
        elements *= tensor.shape.back();
    }
    if (!offsets.is_array() || offsets.size() != 2 || !offsets[0].is_number_unsigned() || !offsets[1].is_number_unsigned()) {
        throw refuse("has no data_offsets");
    }
    const auto from = offsets[0].get<std::uint64_t>(), to = offsets[1].get<std::uint64_t>();
    if (from > to || to > bytes || to - from != elements * width) {
        throw refuse("has data_offsets that do not fit its shape or the file");
    }
    tensor.data.resize(elements);
    for (std::uint64_t at = 0; at < elements; at++) {
        tensor.data[at] = element(dtype, data + from + at * width);
        if (!std::isfinite(tensor.data[at])) {
            throw refuse("holds a number that is not finite");
        }
    }
    return tensor;
}

std::map<std::string, Tensor> read_tensors(const std::string &path)
{
    const std::string file = contents(path);
    const std::uint64_t header = file.size() < 8 ? UINT64_MAX : little<std::uint64_t>(file.data());
    if (header > file.size() - 8) {
        throw CheckpointError(path + " is no safetensors file: its header would be longer than the file");
    }
    const json parsed = json::parse(file.data() + 8, file.data() + 8 + header, nullptr, false);
    if (!parsed.is_object()) {
        throw CheckpointError(path + " is no safetensors file: its header is no JSON object");
    }
    std::map<std::string, Tensor> tensors;
    for (const auto &[name, entry] : parsed.items()) {
        if (name != "__metadata__") {
            tensors.emplace(name, read_tensor(path, name, entry, file.data() + 8 + header, file.size() - 8 - header));
        }
    }
    return tensors;
}

} // namespace

Checkpoint Checkpoint::read(const std::string &folder)
{
    return {read_config(folder + "/config.json"), read_tensors(folder + "/model.safetensors")};
}

const Tensor &Checkpoint::get(const std::string &name, const std::vector<std::size_t> &shape) const
{
    const auto found = tensors.find(name);
    if (found == tensors.end()) {
        throw CheckpointError("model.safetensors: " + name + " is missing");
    }
    if (found->second.shape != shape) {
        throw CheckpointError("model.safetensors: " + name + " has not the shape that config.json says");
    }
    return found->second;
}

} // namespace paged_server
