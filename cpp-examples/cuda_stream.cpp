// A server's decode loop on its own CUDA stream: three sequences of different length, one of them a fork of another; rows, queries and
// outputs stay in device memory, copies on the stream stand for the model between its attention layers. The first half of the steps is
// enqueued call by call, the second half is one CUDA graph, recorded once and launched for every step while the sequences grow. Nothing
// waits but the check: every output against dense attention on the host, within the bound of its certificate.
//
// c++ -std=c++17 cuda_stream.cpp -lcertkv -ldl -o cuda_stream && ./cuda_stream [folder for compiled kernels]
// Exit code 0: all within their bounds; 1: not; 3: no GPU, with the reason.
#include <certkv.hpp>
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <dlfcn.h>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

constexpr std::uint32_t layers = 2, q_heads = 8, kv_heads = 2, dim = 128;
constexpr std::size_t steps = 40, width = kv_heads * dim, wide = q_heads * dim;
constexpr std::array<std::size_t, 2> prompts{300, 70};
constexpr std::size_t batch = prompts.size() + 1;

// The driver's calls that a server has anyway.
class Driver {
public:
    using Address = unsigned long long;

    Driver()
    {
        void *context = nullptr;
        int device = 0;
        call<int, unsigned>("cuInit", 0);
        call<int, int *, int>("cuDeviceGet", &device, 0);
        call<int, void **, int>("cuDevicePrimaryCtxRetain", &context, device);
        call<int, void *>("cuCtxSetCurrent", context);
        call<int, void **, unsigned>("cuStreamCreate", &stream, 1);
    }

    // Memory for numbers, until the process ends.
    Address numbers(std::size_t n)
    {
        Address made = 0;
        call<int, Address *, std::size_t>("cuMemAlloc_v2", &made, n * sizeof(float));
        return made;
    }
    void write(Address to, const std::vector<float> &from)
    {
        call<int, Address, const void *, std::size_t, void *>("cuMemcpyHtoDAsync_v2", to, from.data(), from.size() * sizeof(float), stream);
    }
    void read(std::vector<float> &to, Address from)
    {
        call<int, void *, Address, std::size_t, void *>("cuMemcpyDtoHAsync_v2", to.data(), from, to.size() * sizeof(float), stream);
        call<int, void *>("cuStreamSynchronize", stream);
    }
    void copy(Address to, Address from, std::size_t n)
    {
        call<int, Address, Address, std::size_t, void *>("cuMemcpyDtoDAsync_v2", to, from, n * sizeof(float), stream);
    }
    void begin_recording() { call<int, void *, int>("cuStreamBeginCapture_v2", stream, 1); }
    void *end_recording()
    {
        void *graph = nullptr, *run = nullptr;
        call<int, void *, void **>("cuStreamEndCapture", stream, &graph);
        call<int, void **, void *, unsigned long long>("cuGraphInstantiateWithFlags", &run, graph, 0);
        call<int, void *>("cuGraphDestroy", graph);
        return run;
    }
    void launch(void *run) { call<int, void *, void *>("cuGraphLaunch", run, stream); }
    void end(void *run) { call<int, void *>("cuGraphExecDestroy", run); }

    void *stream = nullptr;

private:
    template <class Returned, class... Given>
    void call(const char *name, Given... given)
    {
        void *found = library_ == nullptr ? nullptr : dlsym(library_, name);
        if (found == nullptr) {
            throw std::runtime_error(std::string(name) + " is missing");
        }
        const Returned result = reinterpret_cast<Returned (*)(Given...)>(found)(given...);
        if (result != 0) {
            throw std::runtime_error(std::string(name) + ": CUresult " + std::to_string(result));
        }
    }

    void *library_ = dlopen("libcuda.so.1", RTLD_NOW);
};

// Stands in for a model: numbers between -1 and 1.
static std::vector<float> numbers(std::size_t n)
{
    static std::uint32_t state = 11;
    std::vector<float> made(n);
    for (float &number : made) {
        state = state * 1664525u + 1013904223u;
        number = static_cast<float>(state >> 8) / 8388608.0f - 1.0f;
    }
    return made;
}

// A cache with its sequences: on the GPU and, as the judge, dense on the host.
struct Side {
    certkv::Cache cache;
    std::vector<certkv::Sequence> sequences;

    Side(certkv_policy policy, std::uint32_t device, const char *kernels)
    {
        certkv::Config config;
        config.layers = layers;
        config.q_heads = q_heads;
        config.kv_heads = kv_heads;
        config.head_dim = dim;
        config.max_tokens = 1024;
        config.max_sequences = batch;
        config.policy = policy;
        config.device = device;
        config.kernels = kernels;
        config.plan_apart = 1;
        cache = certkv::Cache::create(config).value_or_throw();
    }
    // Prompts come from host memory; the last sequence is a fork of the first.
    void fill(const std::vector<std::vector<float>> &rows)
    {
        for (std::size_t i = 0; i < prompts.size(); i++) {
            sequences.push_back(cache.create_sequence().value_or_throw());
            certkv::Step step = cache.begin(sequences[i], prompts[i]).value_or_throw();
            for (std::uint32_t layer = 0; layer < layers; layer++) {
                const std::vector<float> &keys = rows[(i * layers + layer) * 2], &values = rows[(i * layers + layer) * 2 + 1];
                step.append(layer, keys, values).value_or_throw();
            }
            step.finish().value_or_throw();
        }
        sequences.push_back(sequences[0].fork().value_or_throw());
    }
    // A token for every sequence.
    certkv::Step begin() const
    {
        std::vector<certkv_chunk> chunks;
        for (const certkv::Sequence &sequence : sequences) {
            chunks.push_back(sequence.chunk());
        }
        return cache.begin(chunks).value_or_throw();
    }
};

// Keys, values, queries and outputs of a layer.
using Boxes = std::array<Driver::Address, 4>;
constexpr std::array<std::size_t, 4> sizes{batch * width, batch * width, batch * wide, batch * wide};

// All layers of a step on the stream; `rows` is where the cache finds and leaves what the model has in `boxes`.
static void enqueue(Driver &gpu, certkv::Step &step, const Boxes &rows, const std::vector<Boxes> &boxes)
{
    const auto at = [](Driver::Address address) { return reinterpret_cast<float *>(static_cast<std::uintptr_t>(address)); };
    for (std::uint32_t layer = 0; layer < layers; layer++) {
        for (std::size_t i = 0; i < 3; i++) {
            gpu.copy(rows[i], boxes[layer][i], sizes[i]);
        }
        step.after_stream(gpu.stream).value_or_throw();
        step.append_device(layer, at(rows[0]), at(rows[1]), sizes[0], CERTKV_F32).value_or_throw();
        step.attend_device(layer, at(rows[2]), at(rows[3]), sizes[2]).value_or_throw();
        // Beside what the stream does next.
        step.plan(layer).value_or_throw();
        step.before_stream(gpu.stream).value_or_throw();
        gpu.copy(boxes[layer][3], rows[3], sizes[3]);
    }
}

static int decode(const char *kernels)
{
    // The GPU first: without one there is nothing to compare.
    Side fast(CERTKV_POLICY_CERTIFIED, CERTKV_DEVICE_CUDA, kernels), exact(CERTKV_POLICY_DENSE, CERTKV_DEVICE_HOST, nullptr);
    Driver gpu;
    std::vector<std::vector<float>> prompt;
    for (const std::size_t tokens : prompts) {
        for (std::uint32_t i = 0; i < 2 * layers; i++) {
            prompt.push_back(numbers(tokens * width));
        }
    }
    fast.fill(prompt);
    exact.fill(prompt);
    Boxes rows{};
    std::vector<Boxes> boxes(layers);
    for (std::size_t i = 0; i < sizes.size(); i++) {
        rows[i] = gpu.numbers(sizes[i]);
        std::for_each(boxes.begin(), boxes.end(), [&](Boxes &box) { box[i] = gpu.numbers(sizes[i]); });
    }

    // Destroyed after its graph is.
    certkv::Capture capture;
    void *run = nullptr;
    std::size_t outputs = 0, beyond = 0;
    double widest = 0.0;
    std::vector<float> out(sizes[3]), dense(sizes[3]);
    std::vector<certkv_certificate> certificates(batch * q_heads);
    for (std::size_t t = 0; t < steps; t++) {
        if (t == steps / 2) {
            certkv::Step recorded = fast.begin();
            gpu.begin_recording();
            enqueue(gpu, recorded, rows, boxes);
            capture = recorded.captured(gpu.stream).value_or_throw();
            run = gpu.end_recording();
        }
        std::vector<std::array<std::vector<float>, 3>> inputs;
        for (const Boxes &box : boxes) {
            inputs.push_back({numbers(sizes[0]), numbers(sizes[1]), numbers(sizes[2])});
            for (std::size_t i = 0; i < 3; i++) {
                gpu.write(box[i], inputs.back()[i]);
            }
            gpu.write(box[3], std::vector<float>(sizes[3], std::numeric_limits<float>::quiet_NaN()));
        }
        certkv::Step step = fast.begin(), judge = exact.begin();
        if (run != nullptr) {
            step.before_stream(gpu.stream).value_or_throw();
            gpu.launch(run);
            step.after_stream(gpu.stream).value_or_throw();
            step.replayed(capture).value_or_throw();
        } else {
            enqueue(gpu, step, rows, boxes);
        }
        for (std::uint32_t layer = 0; layer < layers; layer++) {
            const auto &[keys, values, queries] = inputs[layer];
            judge.append(layer, keys, values).value_or_throw();
            judge.attend(layer, queries, dense).value_or_throw();
            gpu.read(out, boxes[layer][3]);
            step.certificates(layer, certificates).value_or_throw();
            for (std::size_t head = 0; head < certificates.size(); head++, outputs++) {
                double error = 0.0, norm = 0.0;
                for (std::size_t i = head * dim; i < (head + 1) * dim; i++) {
                    error += std::pow(static_cast<double>(out[i]) - static_cast<double>(dense[i]), 2);
                    norm += std::pow(static_cast<double>(dense[i]), 2);
                }
                // The dense outputs are in single precision themselves. NaN is beyond every bound.
                beyond += std::sqrt(error) <= certificates[head].bound + 1e-5 * std::sqrt(norm) ? 0 : 1;
                widest = std::max(widest, certificates[head].bound / std::sqrt(norm));
            }
        }
        step.finish().value_or_throw();
        judge.finish().value_or_throw();
    }
    gpu.end(run);
    std::printf("certkv %s: %zu outputs of %zu sequences, %zu beyond their bound, widest bound %.3f of the norm\n", certkv::version(),
                outputs, batch, beyond, widest);
    return beyond == 0 ? 0 : 1;
}

int main(int argc, char **argv)
{
    try {
        return decode(argc > 1 ? argv[1] : nullptr);
    } catch (const certkv::Exception &e) {
        std::fprintf(stderr, "%s: %s\n", e.error().name(), e.what());
        return e.error().status() == CERTKV_DEVICE ? 3 : 1;
    } catch (const std::exception &e) {
        std::fprintf(stderr, "%s\n", e.what());
        return 1;
    }
}
