#include "options.hpp"

#include "plant.hpp"

#include <certkv.hpp>
#include <cstdlib>
#include <functional>
#include <sstream>
#include <vector>

namespace paged_server {
namespace {

struct Option {
    const char *name;
    const char *what;
    std::function<void(Options &, const std::string &)> set;
};

// Digits alone: strtoull would take signs, spaces and overflow.
std::uint64_t whole(const std::string &name, const std::string &text, std::uint64_t least, std::uint64_t most)
{
    std::uint64_t value = 0;
    bool good = !text.empty() && text.size() <= 12;
    for (const char c : text) {
        good = good && c >= '0' && c <= '9';
        value = value * 10 + static_cast<std::uint64_t>(c - '0');
    }
    if (!good || value < least || value > most) {
        throw UsageError(name + " is '" + text + "'; it must be a whole number from " + std::to_string(least) + " to " + std::to_string(most));
    }
    return value;
}

template <class T>
Option number(const char *name, const char *what, T Options::*field, std::uint64_t least, std::uint64_t most)
{
    return {name, what, [=](Options &options, const std::string &text) { options.*field = static_cast<T>(whole(name, text, least, most)); }};
}

Option text(const char *name, const char *what, std::string Options::*field)
{
    return {name, what, [=](Options &options, const std::string &value) { options.*field = value; }};
}

void set_tolerance(Options &options, const std::string &value)
{
    char *end = nullptr;
    options.tolerance = std::strtod(value.c_str(), &end);
    if (value.empty() || *end != '\0' || !(options.tolerance > 0.0 && options.tolerance <= 1.0)) {
        throw UsageError("--tolerance is '" + value + "'; it must be above 0 and at most 1");
    }
}

void set_device(Options &options, const std::string &value)
{
    const std::string gpu = "cuda:";
    if (value.compare(0, gpu.size(), gpu) == 0) {
        options.device = CERTKV_DEVICE_CUDA + static_cast<std::uint32_t>(whole("--device " + gpu, value.substr(gpu.size()), 0, 255));
    } else if (value == "host") {
        options.device = CERTKV_DEVICE_HOST;
    } else {
        throw UsageError("--device is '" + value + "'; it must be host, or cuda: and a number");
    }
}

void set_policy(Options &options, const std::string &value)
{
    if (value != "certified" && value != "dense" && value != "packed" && value != "seed000") {
        throw UsageError("--policy is '" + value + "'; it must be certified, dense, packed or seed000");
    }
    options.policy = value;
}

void set_plant(Options &options, const std::string &value)
{
    if (!plants_are_built) {
        throw UsageError("--plant: this server was built without defects");
    }
    options.plant = value;
}

const std::vector<Option> &all()
{
    static const std::vector<Option> options = {
        text("--model", "folder with config.json and model.safetensors (assets/ref-d128)", &Options::model),
        text("--host", "address to listen on (127.0.0.1)", &Options::host),
        number("--port", "port to listen on; 0 picks one and prints it (8080)", &Options::port, 0, 65535),
        number("--threads", "threads of the matrix products and of certkv (2)", &Options::threads, 1, 256),
        text("--format", "format of the cache, as k8-v4g64-b64 (certkv's default)", &Options::format),
        {"--device", "of the cache: host, or a GPU as cuda:0; the model is on the host either way (host)", set_device},
        text("--kernels", "folder where machine code of a GPU's kernels is kept", &Options::kernels),
        {"--tolerance", "of the certified policy, relative to the norm of an output (0.05)", set_tolerance},
        {"--policy", "certified, dense, packed or seed000 (certified)", set_policy},
        number("--cache-tokens", "tokens that the cache holds (32768)", &Options::cache_tokens, 64, 1u << 30),
        number("--swap-tokens", "tokens whose codes may be swapped out; 0 for none (16384)", &Options::swap_tokens, 0, 1u << 30),
        number("--prefix-units", "blocks that outlive their requests; 0 for none (128)", &Options::prefix_units, 0, 1u << 24),
        number("--max-batch", "sequences in one step (32)", &Options::max_batch, 1, 4096),
        number("--max-waiting", "requests that may wait for their first step (256)", &Options::max_waiting, 1, 1u << 20),
        number("--step-tokens", "tokens of one step, decoding first, then prompts (256)", &Options::step_tokens, 1, 65536),
        number("--connections", "connections served at once (128)", &Options::connections, 2, 4096),
        number("--grace", "seconds that requests have after SIGTERM (10)", &Options::grace_seconds, 0, 3600),
        {"--plant", nullptr, set_plant},
    };
    return options;
}

} // namespace

Options parse_options(int count, char **words)
{
    Options options;
    for (int at = 1; at < count; at += 2) {
        const std::string name = words[at];
        const Option *found = nullptr;
        for (const Option &option : all()) {
            if (name == option.name) {
                found = &option;
            }
        }
        if (found == nullptr) {
            throw UsageError("'" + name + "' is no option; --help lists them");
        }
        if (at + 1 == count) {
            throw UsageError(name + " needs a value");
        }
        found->set(options, words[at + 1]);
    }
    return options;
}

std::string usage()
{
    std::ostringstream out;
    out << "paged_server: OpenAI-style completions of a Llama model over bytes, on a certkv cache\n\n";
    for (const Option &option : all()) {
        if (option.what != nullptr) {
            out << "  " << option.name << std::string(17 - std::string(option.name).size(), ' ') << option.what << '\n';
        }
    }
    return out.str();
}

} // namespace paged_server
