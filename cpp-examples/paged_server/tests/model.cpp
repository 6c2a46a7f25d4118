// The forward pass against golden logits, and that a row's numbers do not depend on the rows beside it. Arguments: the folder of the model
// and that of the golden logits.
#include "batch.hpp"

#include "check.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

using namespace paged_server;

namespace {

struct Golden {
    std::vector<std::uint32_t> tokens;
    std::vector<std::size_t> choices;
    std::vector<float> logits; // [tokens][vocabulary]
};

std::vector<Golden> read_golden(const std::string &folder, std::size_t vocabulary)
{
    std::ifstream numbers(folder + "/golden.f32", std::ios::binary), text(folder + "/golden.json");
    const nlohmann::json file = nlohmann::json::parse(text);
    std::vector<Golden> found;
    for (const auto &prompt : file["prompts"]) {
        Golden golden{prompt["tokens"].get<std::vector<std::uint32_t>>(), prompt["argmax"].get<std::vector<std::size_t>>(), {}};
        golden.logits.resize(golden.tokens.size() * vocabulary);
        numbers.read(reinterpret_cast<char *>(golden.logits.data()), static_cast<std::streamsize>(4 * golden.logits.size()));
        TRUE(numbers.good());
        found.push_back(std::move(golden));
    }
    return found;
}

// The largest difference of a logit; other first choices are counted.
float compare(const Golden &golden, const std::vector<float> &logits, std::size_t vocabulary, std::size_t &others)
{
    float worst = logits.size() == golden.logits.size() ? 0.0f : INFINITY;
    for (std::size_t i = 0; i < std::min(logits.size(), golden.logits.size()); i++) {
        const float off = std::fabs(logits[i] - golden.logits[i]);
        worst = off <= worst ? worst : off; // NaN is the worst
    }
    for (std::size_t row = 0; row < logits.size() / vocabulary; row++) {
        const auto first = logits.begin() + static_cast<std::ptrdiff_t>(row * vocabulary);
        const auto best = std::max_element(first, first + static_cast<std::ptrdiff_t>(vocabulary));
        others += static_cast<std::size_t>(best - first) != golden.choices[row];
    }
    return worst;
}

// Each prompt as one chunk through a cache, so keys and values are rounded to 16 bits and the golden ones were not.
void golden(Model &model, const std::string &folder)
{
    const ModelConfig &c = model.config();
    certkv::Config config;
    config.layers = static_cast<std::uint32_t>(c.layers);
    config.q_heads = static_cast<std::uint32_t>(c.q_heads);
    config.kv_heads = static_cast<std::uint32_t>(c.kv_heads);
    config.head_dim = static_cast<std::uint32_t>(c.head_dim);
    config.max_tokens = 4096;
    const certkv::Cache cache = certkv::Cache::create(config).value_or_throw();
    const std::vector<Golden> prompts = read_golden(folder, c.vocabulary);
    TRUE(prompts.size() == 3);
    for (const Golden &prompt : prompts) {
        const certkv::Sequence sequence = cache.create_sequence().value_or_throw();
        certkv::Step now = cache.begin(sequence, prompt.tokens.size()).value_or_throw();
        std::vector<Row> rows;
        std::vector<std::size_t> wanted;
        for (std::size_t i = 0; i < prompt.tokens.size(); i++) {
            rows.push_back({prompt.tokens[i], i});
            wanted.push_back(i);
        }
        std::vector<float> logits = model.forward(rows, wanted, [&](std::uint32_t layer, const auto &k, const auto &v, const auto &q, auto &out) {
            now.append(layer, k, v).value_or_throw();
            now.attend(layer, q, out).value_or_throw();
        });
        std::size_t others = 0;
        const float worst = compare(prompt, logits, c.vocabulary, others);
        TRUE(worst < 0.1f);
        TRUE(others == 0);
        // The comparison can fail.
        logits[5] += 0.2f;
        TRUE(!(compare(prompt, logits, c.vocabulary, others) < 0.1f));
    }
}

// Attention that looks at its own row alone, so that what is left of a row's neighbours would be the products'.
void alone(std::uint32_t, const std::vector<float> &keys, const std::vector<float> &values, const std::vector<float> &queries, std::vector<float> &out)
{
    for (std::size_t i = 0; i < out.size(); i++) {
        out[i] = 0.5f * queries[i] + values[i / 2] - keys[i / 2];
    }
}

void rows_do_not_depend_on_each_other(Model &model)
{
    std::vector<Row> rows;
    for (std::uint32_t i = 0; i < 301; i++) {
        rows.push_back({(i * 37) % 256, (i * 101) % 900});
    }
    const auto logits_of = [&](std::size_t first, std::size_t count) {
        return model.forward({rows.begin() + static_cast<std::ptrdiff_t>(first), rows.begin() + static_cast<std::ptrdiff_t>(first + count)},
                             {0, count - 1}, alone);
    };
    const std::size_t vocabulary = model.config().vocabulary;
    const std::vector<float> one = logits_of(0, 1);
    for (const std::size_t count : {2u, 3u, 4u, 5u, 7u, 16u, 33u, 64u, 100u, 256u, 301u}) {
        const std::vector<float> many = logits_of(0, count), last = logits_of(count - 1, 1);
        TRUE(std::memcmp(one.data(), many.data(), 4 * vocabulary) == 0);
        TRUE(std::memcmp(last.data(), many.data() + vocabulary, 4 * vocabulary) == 0);
    }
    TRUE(std::memcmp(one.data(), logits_of(1, 1).data(), 4 * vocabulary) != 0);
}

} // namespace

int main(int count, char **words)
{
    if (count != 3) {
        return 2;
    }
    for (const unsigned threads : {1u, 2u}) {
        Model model(Checkpoint::read(words[1]), threads);
        golden(model, words[2]);
        rows_do_not_depend_on_each_other(model);
    }
    return report();
}
