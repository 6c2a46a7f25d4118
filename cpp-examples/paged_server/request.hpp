// One completion: what was asked for, and the way back from the scheduler to whoever waits for it.
#pragma once
#include "tally.hpp"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

namespace paged_server {

using Clock = std::chrono::steady_clock;

enum class Finish {
    stop, // a stop, or the model's end of document
    length, // max_tokens
    cancelled, // by its client, or by the end of the server
    failed, // the cache refused it; `message` says why
};

// How a completion ended.
struct Outcome {
    Finish finish = Finish::failed;
    std::string message;
    std::uint64_t prompt_tokens = 0, cached_tokens = 0, completion_tokens = 0;
    std::uint32_t preemptions = 0;
    double seconds_to_first = 0.0, seconds = 0.0;
    Tally tally;
};

// What was asked for. Read-only once submitted.
struct Wish {
    std::vector<std::uint32_t> prompt; // never empty
    std::uint32_t max_tokens = 16; // at least 1
    double temperature = 1.0;
    std::uint64_t seed = 0;
    std::vector<std::string> stops; // none empty
    std::string domain; // Prefixes are shared within it and never across.
};

// Shared by two threads: one that waits, and the scheduler's.
class Request {
public:
    Request(std::string name, Wish what) : id(std::move(name)), wish(std::move(what)) {}

    const std::string id;
    const Wish wish;
    const Clock::time_point created = Clock::now();

    // For the scheduler.
    void push(const std::string &text);
    void finish(Outcome outcome);
    [[nodiscard]] bool cancelled() const { return cancelled_.load(std::memory_order_relaxed); }

    // For who waits. The scheduler looks at each round; the outcome comes all the same.
    void cancel() { cancelled_.store(true, std::memory_order_relaxed); }
    // Waits for text or the outcome, at most that long; takes the text that is there. True once the outcome is there and no text follows.
    bool wait(std::chrono::milliseconds longest, std::string &text);
    // After wait() returned true.
    [[nodiscard]] const Outcome &outcome() const { return outcome_; }

private:
    std::atomic<bool> cancelled_ = false;
    std::mutex mutex_;
    std::condition_variable news_;
    std::string text_;
    bool over_ = false;
    Outcome outcome_;
};

} // namespace paged_server
