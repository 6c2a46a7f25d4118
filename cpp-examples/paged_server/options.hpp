// The command line.
#pragma once
#include <cstdint>
#include <stdexcept>
#include <string>

namespace paged_server {

struct Options {
    std::string model = "assets/ref-d128";
    std::string host = "127.0.0.1";
    int port = 8080; // 0: one that is free, printed
    unsigned threads = 2; // of the matrix products, and of certkv
    std::string format; // of the cache; empty for the library's default
    std::uint32_t device = 0; // of the cache: certkv_config.device
    std::string kernels; // folder for machine code of a GPU's kernels; empty for none
    double tolerance = 0.05;
    std::string policy = "certified";
    std::uint64_t cache_tokens = 32768;
    std::uint64_t swap_tokens = 16384;
    std::uint64_t prefix_units = 128;
    unsigned max_batch = 32; // sequences in one step
    unsigned max_waiting = 256; // requests that wait for their first step; more are refused
    unsigned step_tokens = 256; // in one step; what decoding leaves of them goes to prompts
    unsigned connections = 128; // served at once; each has a thread
    unsigned grace_seconds = 10; // for requests under way after SIGTERM
    // A defect on purpose, for tests of the tests; refused by a server that was not built with them (plant.hpp).
    std::string plant;
};

// A word or value that is not understood; the message names it.
struct UsageError : std::runtime_error {
    using runtime_error::runtime_error;
};

// Throws UsageError.
Options parse_options(int count, char **words);

// What `--help` prints.
std::string usage();

} // namespace paged_server
