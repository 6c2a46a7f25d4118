// Continuous batching on a certkv cache: which requests run, wait or are swapped out, and one step of those that run. Knows nothing of HTTP.
#pragma once
#include "batch.hpp"
#include "board.hpp"
#include "job.hpp"

#include <atomic>
#include <condition_variable>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace paged_server {

struct SchedulerOptions {
    std::uint64_t swap_tokens = 0, prefix_units = 0; // as in the cache's configuration
    unsigned max_batch = 8, max_waiting = 64, step_tokens = 256;
    std::string model_name = "model"; // part of the scope of cached prefixes
};

enum class Refusal { none, length, queue, stopping, broken };

class Scheduler {
public:
    // Makes the cache: `config` with geometry and max_sequences set from `model` and `options`. Throws certkv::Exception.
    Scheduler(Model &model, const SchedulerOptions &options, certkv::Config config);

    // From any thread, at any time.
    Refusal submit(std::shared_ptr<Request> request);
    bool cancel(const std::string &id); // false: no such request, or it is over
    [[nodiscard]] Board board() const;
    [[nodiscard]] const certkv::Cache &cache() const { return cache_; }
    [[nodiscard]] const certkv_plan &plan() const { return plan_; }
    [[nodiscard]] bool broken() const { return broken_; } // The cache can do nothing any more.
    [[nodiscard]] bool stopping() const;
    // Forgets cached prefixes between two rounds: on a GPU a step has the whole cache. Broken if the scheduler stops first.
    std::future<certkv::Result<std::uint64_t>> evict_prefixes();
    // Refuses new requests; run() returns when those it has are over, at the latest after `grace`, when it cancels them.
    void stop(std::chrono::seconds grace);

    // By one thread: rounds until stop().
    void run();
    // One round: takes in what came, makes one step, says who is done. False if there is nothing to do.
    bool round();

private:
    void collect();
    void report();
    void end(Job &job, Finish finish, const std::string &message = {});
    void give_up(const certkv::Error &error);
    // After these the cache, or the scheduler's idea of it, is not to be used any more.
    static bool ends_all(certkv_status status);
    [[nodiscard]] std::vector<Job *> at(Stage stage) const;

    // admission.cpp
    void resume();
    void admit();
    bool begin(Job &job);
    bool make_room(const Job &needy);
    void preempt(Job &job);
    void drop(Job &job);
    [[nodiscard]] std::uint64_t promised() const;
    [[nodiscard]] bool fits(const Job &job, std::uint64_t tokens) const;

    // stepping.cpp
    [[nodiscard]] std::vector<Job *> chosen();
    void execute(std::vector<Job *> jobs);
    void settle(const std::vector<Job *> &jobs, const std::vector<Part> &parts, const std::vector<float> &logits);
    void sample(Job &job, const float *logits);
    void publish_prefix(Job &job);
    [[nodiscard]] certkv::PrefixScope scope(const Job &job) const { return {job.request->wish.domain, options_.model_name}; }

    Model &model_;
    SchedulerOptions options_;
    certkv_plan plan_{};
    std::uint64_t longest_ = 0; // sequence that the cache could ever hold
    certkv::Cache cache_; // before the jobs, whose sequences it must outlive
    std::vector<std::unique_ptr<Job>> jobs_; // oldest first
    std::uint64_t arrivals_ = 0;
    bool full_ = false; // The oldest waiting request found no pages, and since then none came free and no promise ended.
    Board now_; // what the scheduler's thread knows; report() shows it
    std::atomic<bool> broken_ = false;

    mutable std::mutex mutex_; // of what follows
    std::condition_variable news_;
    Board shown_;
    std::vector<std::shared_ptr<Request>> incoming_;
    std::vector<std::promise<certkv::Result<std::uint64_t>>> evictions_;
    std::map<std::string, std::shared_ptr<Request>> live_;
    bool stopping_ = false;
    bool ended_ = false;
    Clock::time_point deadline_{};
};

} // namespace paged_server
