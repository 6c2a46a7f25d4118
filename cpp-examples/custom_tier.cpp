// A store of the program's own (Tier-3): originals leave host memory for it and come back, and every certificate is that of a cache whose
// originals never left; on a GPU, where what is read exactly depends on what is near, every output is within its bound of dense attention. Then
// a prompt that one cache published is continued by another one, through the same store.
//
// c++ -std=c++17 custom_tier.cpp -lcertkv -o custom_tier && ./custom_tier [gpu [folder for compiled kernels]]
// Exit code 0: as said; 1: not. With `gpu` the caches are on the first GPU, and 3 is for a machine without, with the reason.
#include <certkv.hpp>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <vector>

constexpr std::uint32_t layers = 6, q_heads = 4, kv_heads = 2, dim = 64, prompt = 1024, chunk = 64, steps = 6;

// Stands in for the client of a server. The library calls it on threads of its own, several at once.
class Server {
public:
    // What is not done when something is thrown (std::bad_alloc, say) has failed, and the cache goes on with what is in host memory.
    void put(certkv::span<certkv_put_item> items)
    {
        for (certkv_put_item &item : items) {
            std::string record(static_cast<const char *>(item.head), item.head_bytes);
            record.append(static_cast<const char *>(item.body), item.body_bytes);
            const std::lock_guard<std::mutex> hold(lock);
            written += record.size();
            records[name(item.key)] = std::move(record);
            item.result = CERTKV_ITEM_DONE;
        }
    }
    void get(certkv::span<certkv_get_item> items)
    {
        for (certkv_get_item &item : items) {
            const std::lock_guard<std::mutex> hold(lock);
            const auto found = records.find(name(item.key));
            item.result = found == records.end() ? CERTKV_ITEM_NOT_FOUND : CERTKV_ITEM_DONE;
            if (item.result == CERTKV_ITEM_DONE) {
                item.bytes = found->second.size();
                if (item.bytes > item.capacity) {
                    item.result = CERTKV_ITEM_TOO_LARGE;
                    continue;
                }
                std::memcpy(item.buffer, found->second.data(), item.bytes);
                read += item.bytes;
            }
        }
    }
    void exists(certkv::span<certkv_key_item> items)
    {
        for (certkv_key_item &item : items) {
            const std::lock_guard<std::mutex> hold(lock);
            item.result = records.count(name(item.key)) != 0 ? CERTKV_ITEM_DONE : CERTKV_ITEM_NOT_FOUND;
        }
    }
    void remove(certkv::span<certkv_key_item> items)
    {
        for (certkv_key_item &item : items) {
            const std::lock_guard<std::mutex> hold(lock);
            records.erase(name(item.key));
            item.result = CERTKV_ITEM_DONE;
        }
    }
    ~Server() { std::printf("store: %zu bytes written, %zu read, %zu records left\n", written, read, records.size()); }

private:
    static std::string name(const certkv_store_key &key) { return std::string(reinterpret_cast<const char *>(key.bytes), sizeof key.bytes); }

    std::mutex lock;
    std::unordered_map<std::string, std::string> records;
    std::size_t written = 0, read = 0;
};

// Stands in for a model: numbers between -1 and 1, the same for every run.
static std::vector<float> numbers(std::size_t n, std::uint32_t state)
{
    std::vector<float> made(n);
    for (float &number : made) {
        state = state * 1664525u + 1013904223u;
        number = static_cast<float>(state >> 8) / 8388608.0f - 1.0f;
    }
    return made;
}

// Of all layers and heads.
struct Decoded {
    std::vector<certkv_certificate> certificates;
    std::vector<float> outputs;
};

// Appends tokens in one step.
static void step(const certkv::Cache &cache, const certkv::Sequence &sequence, std::uint32_t tokens, std::uint32_t seed, Decoded &all)
{
    certkv::Step now = cache.begin(sequence, tokens).value_or_throw();
    for (std::uint32_t layer = 0; layer < layers; layer++) {
        const std::uint32_t from = (seed * layers + layer) * 3;
        const auto k = numbers(tokens * kv_heads * dim, from), v = numbers(k.size(), from + 1), q = numbers(tokens * q_heads * dim, from + 2);
        std::vector<float> out(q.size());
        std::vector<certkv_certificate> certificates(tokens * q_heads);
        now.append(layer, k, v).value_or_throw();
        now.attend(layer, q, out, certificates).value_or_throw();
        all.certificates.insert(all.certificates.end(), certificates.begin(), certificates.end());
        all.outputs.insert(all.outputs.end(), out.begin(), out.end());
    }
    now.finish().value_or_throw();
}

static certkv::Config place; // Device and kernels.

static certkv::Config config()
{
    static const std::uint8_t secret[32] = {1, 2, 3};
    certkv::Config made = place;
    made.layers = layers;
    made.q_heads = q_heads;
    made.kv_heads = kv_heads;
    made.head_dim = dim;
    made.max_tokens = 2 * prompt;
    made.max_sequences = 2;
    made.tolerance = 0.001; // Low, so that originals are read.
    made.prefix_units = 64;
    made.prefix_secret = secret;
    return made;
}

static Decoded decode(const certkv::Cache &cache, const certkv::Sequence &sequence)
{
    Decoded all;
    for (std::uint32_t i = 0; i < steps; i++) {
        step(cache, sequence, 1, 100 + i, all);
    }
    return all;
}

// The same bits; or, where `judge` is dense attention, outputs no farther from it than both bounds say.
static bool agree(const Decoded &a, const Decoded &judge, bool bits)
{
    bool so = a.certificates.size() == judge.certificates.size();
    for (std::size_t i = 0; so && i < a.certificates.size(); i++) {
        double square = 0.0;
        for (std::size_t c = i * dim; c < (i + 1) * dim; c++) {
            square += (static_cast<double>(a.outputs[c]) - judge.outputs[c]) * (static_cast<double>(a.outputs[c]) - judge.outputs[c]);
        }
        so = bits ? std::memcmp(&a.certificates[i], &judge.certificates[i], sizeof a.certificates[i]) == 0
                  : std::sqrt(square) <= a.certificates[i].bound + judge.certificates[i].bound;
    }
    return so;
}

static bool run()
{
    const bool bits = place.device == CERTKV_DEVICE_HOST;
    certkv::Config whole = config(), small = config();
    if (!bits) {
        std::printf("on %s\n", certkv::describe_gpu(place.device).value_or_throw().name);
        whole.device = CERTKV_DEVICE_HOST;
        whole.policy = CERTKV_POLICY_DENSE;
    }
    const certkv::Store store = certkv::Store::of(std::make_unique<Server>()).value_or_throw();
    small.spill_store = store.get();
    small.spill_host_tokens = chunk; // Originals of 64 tokens in every layer, beside the open blocks and one layer's longest sequence.
    const certkv::Cache plain = certkv::Cache::create(whole).value_or_throw(), spilling = certkv::Cache::create(small).value_or_throw();
    certkv::Sequence here = plain.create_sequence().value_or_throw(), there = spilling.create_sequence().value_or_throw();
    Decoded of_prompt;
    for (std::uint32_t i = 0; i < prompt / chunk; i++) {
        step(plain, here, chunk, i, of_prompt);
        step(spilling, there, chunk, i, of_prompt);
    }
    const Decoded stayed = decode(plain, here), returned = decode(spilling, there);
    for (std::size_t head = stayed.certificates.size() - q_heads; head < stayed.certificates.size(); head++) {
        std::printf("head %zu: |error| <= %.6e where originals stayed, %.6e where they were spilled\n", head % q_heads,
                    stayed.certificates[head].bound, returned.certificates[head].bound);
    }
    const certkv_snapshot seen = spilling.snapshot().value_or_throw();
    std::printf("spilled %llu originals of a block in a layer, read back %llu times\n", static_cast<unsigned long long>(seen.spills.done),
                static_cast<unsigned long long>(seen.fetches.done));

    // The prompt goes on in a third cache, which another process could have.
    std::vector<std::uint32_t> tokens(prompt);
    for (std::uint32_t i = 0; i < prompt; i++) {
        tokens[i] = i * i;
    }
    const certkv::PrefixScope scope("tenant", "model");
    static_cast<void>(there.publish(scope, tokens).value_or_throw());
    const certkv::Cache third = certkv::Cache::create(config()).value_or_throw();
    const auto sent = spilling.export_prefix(store, scope, tokens).value_or_throw();
    const auto cached = third.import_prefix(store, scope, tokens).value_or_throw();
    const certkv::Continued one = spilling.create_from(scope, tokens).value_or_throw(), other = third.create_from(scope, tokens).value_or_throw();
    const Decoded again = decode(spilling, one.sequence), carried = decode(third, other.sequence);
    const bool alike = agree(carried, bits ? again : stayed, bits) && (bits || agree(again, stayed, bits)), same = agree(returned, stayed, bits);
    std::printf("carried %llu units, %llu tokens; certificates %s\n", static_cast<unsigned long long>(sent),
                static_cast<unsigned long long>(cached), alike ? "hold" : "DO NOT HOLD");
    std::printf("%zu certificates, %s %s\n", stayed.certificates.size(), same ? "all" : "NOT all", bits ? "equal bit for bit" : "held by their outputs");
    return same && alike && cached == prompt && seen.spills.done > 0 && seen.fetches.done > 0;
}

int main(int count, char **words)
{
    place.device = count > 1 ? CERTKV_DEVICE_CUDA : CERTKV_DEVICE_HOST;
    place.kernels = count > 2 ? words[2] : nullptr;
    try {
        return run() ? 0 : 1;
    } catch (const certkv::Exception &e) {
        std::fprintf(stderr, "%s: %s\n", e.error().name(), e.what());
        return e.error().status() == CERTKV_DEVICE ? 3 : 1;
    }
}
