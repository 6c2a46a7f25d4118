// A store of the program's own (Tier-3): originals leave host memory for it and come back, and every certificate is that of a cache whose
// originals never left. Then a prompt that one cache published is continued by another one, through the same store.
//
// c++ -std=c++17 custom_tier.cpp -lcertkv -o custom_tier
#include <certkv.hpp>
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

// Appends tokens in one step; the certificates of all layers.
static std::vector<certkv_certificate> step(const certkv::Cache &cache, const certkv::Sequence &sequence, std::uint32_t tokens, std::uint32_t seed)
{
    std::vector<certkv_certificate> all;
    certkv::Step now = cache.begin(sequence, tokens).value_or_throw();
    for (std::uint32_t layer = 0; layer < layers; layer++) {
        const std::uint32_t from = (seed * layers + layer) * 3;
        const auto k = numbers(tokens * kv_heads * dim, from), v = numbers(k.size(), from + 1), q = numbers(tokens * q_heads * dim, from + 2);
        std::vector<float> out(q.size());
        std::vector<certkv_certificate> certificates(tokens * q_heads);
        now.append(layer, k, v).value_or_throw();
        now.attend(layer, q, out, certificates).value_or_throw();
        all.insert(all.end(), certificates.begin(), certificates.end());
    }
    now.finish().value_or_throw();
    return all;
}

static certkv::Config config()
{
    static const std::uint8_t secret[32] = {1, 2, 3};
    certkv::Config made;
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

static std::vector<certkv_certificate> decode(const certkv::Cache &cache, const certkv::Sequence &sequence)
{
    std::vector<certkv_certificate> all;
    for (std::uint32_t i = 0; i < steps; i++) {
        const auto one = step(cache, sequence, 1, 100 + i);
        all.insert(all.end(), one.begin(), one.end());
    }
    return all;
}

static bool same(const std::vector<certkv_certificate> &a, const std::vector<certkv_certificate> &b)
{
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof a[0]) == 0;
}

static bool run()
{
    const certkv::Store store = certkv::Store::of(std::make_unique<Server>()).value_or_throw();
    certkv::Config small = config();
    small.spill_store = store.get();
    small.spill_host_tokens = chunk; // Originals of 64 tokens in every layer, beside the open blocks and one layer's longest sequence.
    const certkv::Cache plain = certkv::Cache::create(config()).value_or_throw(), spilling = certkv::Cache::create(small).value_or_throw();
    certkv::Sequence here = plain.create_sequence().value_or_throw(), there = spilling.create_sequence().value_or_throw();
    for (std::uint32_t i = 0; i < prompt / chunk; i++) {
        step(plain, here, chunk, i);
        step(spilling, there, chunk, i);
    }
    const auto stayed = decode(plain, here), returned = decode(spilling, there);
    for (std::size_t head = 0; head < q_heads; head++) {
        const certkv_certificate &a = stayed[stayed.size() - q_heads + head], &b = returned[returned.size() - q_heads + head];
        std::printf("head %zu: |error| <= %.6e where originals stayed, %.6e where they were spilled\n", head, a.bound, b.bound);
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
    const bool alike = same(decode(spilling, one.sequence), decode(third, other.sequence));
    std::printf("carried %llu units, %llu tokens; certificates %s\n", static_cast<unsigned long long>(sent),
                static_cast<unsigned long long>(cached), alike ? "equal" : "DIFFER");
    std::printf("%zu certificates, %s bit for bit\n", stayed.size(), same(stayed, returned) ? "equal" : "NOT equal");
    return same(stayed, returned) && alike && cached == prompt && seen.spills.done > 0 && seen.fetches.done > 0;
}

int main()
{
    try {
        return run() ? 0 : 1;
    } catch (const certkv::Exception &e) {
        std::fprintf(stderr, "%s: %s\n", e.error().name(), e.what());
        return 1;
    }
}
