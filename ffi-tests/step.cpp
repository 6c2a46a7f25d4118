// Step: outputs against attention in double and within their bounds, types of rows, refusals, ends, and no allocation.
#include "check.hpp"
#include <cstdlib>
#include <new>

static_assert(moves_only<certkv::Step> && sizeof(certkv::Step) == sizeof(void *));

static std::size_t allocations = 0;

// Not inlined: g++ would take malloc and free here for a mismatch with new and delete elsewhere.
[[gnu::noinline]] void *operator new(std::size_t size)
{
    allocations++;
    void *made = std::malloc(size == 0 ? 1 : size);
    if (made == nullptr) {
        std::abort();
    }
    return made;
}
[[gnu::noinline]] void operator delete(void *made) noexcept { std::free(made); }
[[gnu::noinline]] void operator delete(void *made, std::size_t) noexcept { std::free(made); }

static std::uint16_t bf16(float value)
{
    std::uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    return static_cast<std::uint16_t>(bits >> 16);
}

// For what f16 holds exactly as a normal number, and 0.
static std::uint16_t f16(float value)
{
    std::uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    const std::uint32_t sign = (bits >> 16) & 0x8000u, rest = bits & 0x7fffffffu;
    return static_cast<std::uint16_t>(rest == 0 ? sign : sign | ((rest >> 13) - (112u << 10)));
}

static std::vector<std::uint16_t> patterns(const std::vector<float> &from, std::uint16_t (*of)(float))
{
    std::vector<std::uint16_t> made;
    for (float value : from) {
        made.push_back(of(value));
    }
    return made;
}

// Distance of one head's output from attention in double over all tokens.
static double distance(const std::vector<float> &keys, const std::vector<float> &values, const float *query, const float *out,
                       std::size_t head)
{
    const std::size_t tokens = keys.size() / KV, at = head / (Q_HEADS / KV_HEADS) * DIM;
    std::vector<double> weights(tokens);
    double sum = 0, most = -1e300, squares = 0;
    for (std::size_t t = 0; t < tokens; t++) {
        for (std::size_t d = 0; d < DIM; d++) {
            weights[t] += static_cast<double>(query[head * DIM + d]) * static_cast<double>(keys[t * KV + at + d]) / 8.0;
        }
        most = std::fmax(most, weights[t]);
    }
    for (double &weight : weights) {
        weight = std::exp(weight - most);
        sum += weight;
    }
    for (std::size_t d = 0; d < DIM; d++) {
        double exact = 0;
        for (std::size_t t = 0; t < tokens; t++) {
            exact += weights[t] / sum * static_cast<double>(values[t * KV + at + d]);
        }
        const double off = static_cast<double>(out[head * DIM + d]) - exact;
        squares += off * off;
    }
    return std::sqrt(squares);
}

// A prompt and one token on top; the output of that token.
static std::vector<float> decoded(certkv_dtype dtype)
{
    const certkv::Cache cache = *certkv::Cache::create(small());
    const certkv::Sequence sequence = *cache.create_sequence();
    std::vector<float> keys = rows(TOKENS, 3), values = rows(TOKENS, 100), queries(Q * TOKENS), out(Q * TOKENS);
    for (std::size_t i = 0; i < queries.size(); i++) {
        queries[i] = static_cast<float>(i % 13) / 3.0f - 2.0f;
    }
    std::vector<certkv_certificate> certificates(Q_HEADS);
    const auto append = [&](certkv::Step &step, std::uint32_t layer, const std::vector<float> &k, const std::vector<float> &v) {
        if (dtype == CERTKV_F32) {
            return step.append(layer, k, v);
        }
        const auto of = dtype == CERTKV_F16 ? f16 : bf16;
        return step.append(layer, patterns(k, of), patterns(v, of), dtype);
    };
    auto prompt = cache.begin(sequence, TOKENS);
    for (std::uint32_t layer = 0; layer < 2; layer++) {
        OK(append(*prompt, layer, keys, values));
        OK(prompt->attend(layer, queries, out));
    }
    // The prompt's last token, and only it, sees all of it.
    TRUE(distance(keys, values, &queries[(TOKENS - 1) * Q], &out[(TOKENS - 1) * Q], 0) < 1e-5);
    TRUE(distance(keys, values, &queries[(TOKENS - 2) * Q], &out[(TOKENS - 2) * Q], 0) > 1e-3);
    OK(prompt->finish());
    TRUE(!*prompt);

    const std::vector<float> key = rows(1, 50), value = rows(1, 60);
    queries.resize(Q);
    out.resize(Q);
    auto step = cache.begin(sequence);
    for (std::uint32_t layer = 0; layer < 2; layer++) {
        OK(append(*step, layer, key, value));
        OK(step->attend(layer, queries, out, certificates));
    }
    OK(step->finish());
    keys.insert(keys.end(), key.begin(), key.end());
    values.insert(values.end(), value.begin(), value.end());
    for (std::size_t head = 0; head < Q_HEADS; head++) {
        const certkv_certificate &c = certificates[head];
        TRUE(c.version == CERTKV_CERTIFICATE_VERSION && (c.status == CERTKV_CERTIFIED || c.status == CERTKV_EXACT));
        TRUE(distance(keys, values, queries.data(), out.data(), head) <= c.bound);
        TRUE(c.bound <= 0.06 * c.out_norm && c.out_norm > 0);
    }
    out[0] += 1.0f; // The check can fail.
    TRUE(!(distance(keys, values, queries.data(), out.data(), 0) <= certificates[0].bound));
    out[0] -= 1.0f;
    return out;
}

static std::vector<float> k(KV), v(KV), q(Q), out(Q);
static std::vector<certkv_certificate> certificates(Q_HEADS + 1);

static void refusals(const certkv::Cache &cache, const certkv::Sequence &sequence)
{
    certkv::Step step = *cache.begin(sequence);
    const std::vector<std::uint16_t> bits(KV);
    const certkv::span<const float> fewer(k.data(), KV - 1);
    const certkv::span<certkv_certificate> four(certificates.data(), Q_HEADS);
    REFUSED(CERTKV_ORDER, "append", step.attend(0, q, out, four));
    REFUSED(CERTKV_SHAPE, "keys and values differ", step.append(0, fewer, v));
    REFUSED(CERTKV_SHAPE, "keys and values differ", step.append(0, k, fewer));
    REFUSED(CERTKV_SHAPE, "keys and values differ", step.append(0, bits, {bits.data(), 1}, CERTKV_F16));
    REFUSED(CERTKV_SHAPE, "127", step.append(0, fewer, fewer));
    REFUSED(CERTKV_INVALID_ARGUMENT, "dtype", step.append(0, bits, bits, CERTKV_F32));
    REFUSED(CERTKV_INVALID_ARGUMENT, "dtype", step.append(0, bits, bits, CERTKV_DTYPE_DEFAULT));
    REFUSED(CERTKV_LAYER, "2", step.append(2, k, v));
    k[3] = NAN;
    REFUSED(CERTKV_NOT_FINITE, "keys", step.append(0, k, v));
    k[3] = 0.0f;
    REFUSED(CERTKV_NULL_POINTER, "keys", step.append(0, {nullptr, KV}, v));
    OK(step.append(0, k, v));
    REFUSED(CERTKV_ORDER, "append", step.append(0, k, v));
    REFUSED(CERTKV_SHAPE, "queries and out differ", step.attend(0, q, {out.data(), Q - 1}, four));
    REFUSED(CERTKV_SHAPE, "queries and out differ", step.attend(0, {q.data(), Q - 1}, out, four)); // C cannot see this one.
    REFUSED(CERTKV_SHAPE, "certificates", step.attend(0, q, out, certificates));
    REFUSED(CERTKV_OVERLAP, "out", step.attend(0, out, out, four));
    OK(step.attend(0, q, out, four));
    TRUE(certificates[0].status != CERTKV_UNCERTIFIED && certificates[Q_HEADS].status == CERTKV_UNCERTIFIED);
    OK(step.attend(0, q, out));
    // What it is held to: a share, a distance, one for each head, and the policy's again.
    const std::vector<certkv_tolerance> each{{0.5, 0.0}, {0.0, 3.0}, {0.25, 1e-9}, {0.125, 0.0}};
    OK(step.set_tolerances(each));
    OK(step.attend(0, q, out, four));
    TRUE(four[0].tol == 0.5 * four[0].out_norm && four[1].tol == 3.0 && four[2].tol == 0.25 * four[2].out_norm);
    const certkv_tolerance distance{0.0, 0.75};
    OK(step.set_tolerances({&distance, 1}));
    OK(step.attend(0, q, out, four));
    TRUE(four[0].tol == 0.75 && four[3].tol == 0.75);
    REFUSED(CERTKV_SHAPE, "tolerances", step.set_tolerances({each.data(), 3}));
    OK(step.set_tolerances({}));
    OK(step.attend(0, q, out, four));
    TRUE(std::fabs(four[0].tol - 0.05 * four[0].out_norm) < 1e-12);
    // The same as tensors, over the queries.
    std::vector<float> both = q;
    OK(step.attend_tensors(0, certkv::Tensor(both.data()), certkv::Tensor(both.data(), CERTKV_F32, CERTKV_SPACE_HOST, Q, DIM), four));
    TRUE(both == out);
    REFUSED(CERTKV_SHAPE, "out", step.attend_tensors(0, certkv::Tensor(q.data()), certkv::Tensor(out.data(), CERTKV_F32, CERTKV_SPACE_HOST, 0, 1)));
    REFUSED(CERTKV_ORDER, "twice", step.append_tensors(0, certkv::Tensor(out.data()), certkv::Tensor(out.data())));
    REFUSED(CERTKV_ORDER, "layer", step.finish()); // Layer 1 is missing: rolled back, and over.
    TRUE(!step && *sequence.length() == 0);
    REFUSED(CERTKV_NULL_POINTER, "step", step.finish());
    REFUSED(CERTKV_NULL_POINTER, "step", step.append(0, k, v));
    REFUSED(CERTKV_NULL_POINTER, "step", step.attend(0, q, out));
    OK(step.abort());
    REFUSED(CERTKV_SHAPE, "chunk", cache.begin(certkv::span<const certkv_chunk>()));
    REFUSED(CERTKV_SHAPE, "token", cache.begin(sequence, 0));
    REFUSED(CERTKV_LENGTH, "", cache.begin(sequence, UINT64_MAX));
}

static void ends(const certkv::Cache &cache, const certkv::Sequence &sequence)
{
    certkv::Step a = *cache.begin(sequence), b = std::move(a);
    TRUE(!a && b && b.get() != nullptr);
    OK(b.append(0, k, v));
    a = std::move(b);
    OK(a.append(1, k, v));
    OK(a.abort());
    TRUE(!a && *sequence.length() == 0);
    OK(a.abort());
    {
        const certkv::Step dropped = *cache.begin(sequence);
        REFUSED(CERTKV_BUSY_SEQUENCE, "step", sequence.length());
    }
    TRUE(*sequence.length() == 0);
    a = *cache.begin(sequence);
    certkv_step *raw = a.detach();
    TRUE(!a);
    certkv::Step twin(raw);
    TRUE(certkv_step_abort(raw) == CERTKV_OK);
    REFUSED(CERTKV_INVALID_HANDLE, "step", twin.abort());
    TRUE(!twin);
    twin = certkv::Step(raw);
    REFUSED(CERTKV_INVALID_HANDLE, "step", twin.finish());
    TRUE(!twin);
    // Assignment aborts what was there.
    a = *cache.begin(sequence);
    a = certkv::Step();
    TRUE(*sequence.length() == 0);
}

static void batches(const certkv::Cache &cache, const certkv::Sequence &sequence)
{
    const certkv::Sequence other = filled(cache);
    const certkv_chunk chunks[] = {sequence.chunk(), other.chunk(2)};
    auto step = cache.begin(chunks);
    OK(step);
    const std::vector<float> three = rows(3, 9);
    OK(step->append(0, three, three));
    OK(step->append(1, three, three));
    OK(step->finish());
    TRUE(*sequence.length() == 1 && *other.length() == TOKENS + 2);
}

static void decode_path(const certkv::Cache &cache, const certkv::Sequence &sequence)
{
    const certkv::span<certkv_certificate> four(certificates.data(), Q_HEADS);
    const std::size_t before = allocations;
    bool good = true;
    for (int token = 0; token < 3; token++) {
        auto step = cache.begin(sequence);
        good = good && step;
        for (std::uint32_t layer = 0; layer < 2; layer++) {
            good = good && step->append(layer, k, v) && step->attend(layer, q, out, four);
            good = good && step->append(layer, k, v).status() == CERTKV_ORDER; // Nor an error.
        }
        good = good && step->finish();
    }
    const std::size_t after = allocations;
    TRUE(good && after == before && *sequence.length() == 4);
    delete new int;
    TRUE(allocations > after); // The count counts.
}

int main()
{
    const std::vector<float> f32 = decoded(CERTKV_F32);
    TRUE(f32 == decoded(CERTKV_F16) && f32 == decoded(CERTKV_BF16));
    for (std::size_t i = 0; i < Q; i++) {
        q[i] = static_cast<float>(i % 7) / 7.0f;
    }
    k = rows(1, 5);
    v = rows(1, 6);
    const certkv::Cache cache = *certkv::Cache::create(small());
    const certkv::Sequence sequence = *cache.create_sequence();
    refusals(cache, sequence);
    ends(cache, sequence);
    batches(cache, sequence);
    decode_path(cache, sequence);
    return report();
}
