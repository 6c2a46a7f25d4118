#include "scheduler.hpp"

#include "plant.hpp"

#include <algorithm>

namespace paged_server {

Scheduler::Scheduler(Model &model, const SchedulerOptions &options, certkv::Config config) : model_(model), options_(options)
{
    const ModelConfig &c = model.config();
    config.layers = static_cast<std::uint32_t>(c.layers);
    config.q_heads = static_cast<std::uint32_t>(c.q_heads);
    config.kv_heads = static_cast<std::uint32_t>(c.kv_heads);
    config.head_dim = static_cast<std::uint32_t>(c.head_dim);
    // Those that run, as many that are swapped out.
    config.max_sequences = 2 * options.max_batch;
    config.swap_tokens = options.swap_tokens;
    config.plan_apart = 1;
    config.prefix_units = options.prefix_units;
    plan_ = config.plan().value_or_throw();
    cache_ = certkv::Cache::create(config).value_or_throw();
    // Whether it could ever hold so many is the cache's to say (CERTKV_LENGTH), once: on a GPU it says nothing while a step is open. Whether it has
    // pages now is asked later.
    std::uint64_t too_long = config.max_tokens + 1;
    while (too_long - longest_ > 1) {
        const std::uint64_t middle = longest_ + (too_long - longest_) / 2;
        (cache_.admit(middle).status() == CERTKV_LENGTH ? too_long : longest_) = middle;
    }
}

Refusal Scheduler::submit(std::shared_ptr<Request> request)
{
    const std::uint64_t tokens = request->wish.prompt.size() + request->wish.max_tokens;
    const bool too_long = tokens > model_.config().positions || tokens > longest_;
    const std::lock_guard lock(mutex_);
    if (broken_) {
        return Refusal::broken;
    }
    if (stopping_) {
        shown_.refused_stopping++;
        return Refusal::stopping;
    }
    if (too_long) {
        shown_.refused_length++;
        return Refusal::length;
    }
    if (shown_.waiting >= options_.max_waiting) {
        shown_.refused_queue++;
        return Refusal::queue;
    }
    shown_.received++;
    shown_.waiting++;
    live_.emplace(request->id, request);
    incoming_.push_back(std::move(request));
    news_.notify_one();
    return Refusal::none;
}

bool Scheduler::cancel(const std::string &id)
{
    const std::lock_guard lock(mutex_);
    const auto found = live_.find(id);
    if (found == live_.end()) {
        return false;
    }
    found->second->cancel();
    news_.notify_one();
    return true;
}

Board Scheduler::board() const
{
    const std::lock_guard lock(mutex_);
    return shown_;
}

std::future<certkv::Result<std::uint64_t>> Scheduler::evict_prefixes()
{
    const std::lock_guard lock(mutex_);
    if (ended_) {
        return std::promise<certkv::Result<std::uint64_t>>().get_future();
    }
    evictions_.emplace_back();
    news_.notify_one();
    return evictions_.back().get_future();
}

bool Scheduler::stopping() const
{
    const std::lock_guard lock(mutex_);
    return stopping_;
}

void Scheduler::stop(std::chrono::seconds grace)
{
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    deadline_ = Clock::now() + grace;
    news_.notify_one();
}

void Scheduler::run()
{
    for (;;) {
        const bool worked = round();
        std::unique_lock lock(mutex_);
        if (stopping_ && jobs_.empty() && incoming_.empty()) {
            ended_ = true;
            evictions_.clear();
            return;
        }
        if (!worked && incoming_.empty() && evictions_.empty()) {
            news_.wait_for(lock, std::chrono::milliseconds(100));
        }
    }
}

bool Scheduler::round()
{
    collect();
    resume();
    admit();
    const std::vector<Job *> jobs = chosen();
    if (!jobs.empty()) {
        const Clock::time_point from = Clock::now();
        execute(jobs);
        now_.step_seconds.add(std::chrono::duration<double>(Clock::now() - from).count());
    }
    report();
    return !jobs.empty();
}

// New requests come in, prefixes that are to be forgotten go; those whose client has gone leave.
void Scheduler::collect()
{
    bool late = false;
    {
        const std::lock_guard lock(mutex_);
        for (std::shared_ptr<Request> &request : incoming_) {
            jobs_.push_back(std::make_unique<Job>(std::move(request), arrivals_++, model_.config()));
        }
        incoming_.clear();
        for (auto &wanted : evictions_) {
            wanted.set_value(options_.prefix_units > 0 ? cache_.evict_prefixes() : certkv::Result<std::uint64_t>(0));
        }
        evictions_.clear();
        late = stopping_ && Clock::now() >= deadline_;
    }
    for (const std::unique_ptr<Job> &job : jobs_) {
        if (job->request->cancelled() || late) {
            end(*job, Finish::cancelled, late ? "the server is shutting down" : "");
        }
    }
}

std::vector<Job *> Scheduler::at(Stage stage) const
{
    std::vector<Job *> found;
    for (const std::unique_ptr<Job> &job : jobs_) {
        if (job->stage == stage) {
            found.push_back(job.get());
        }
    }
    return found;
}

void Scheduler::end(Job &job, Finish finish, const std::string &message)
{
    if (job.stage == Stage::over) {
        return;
    }
    job.stage = Stage::over;
    full_ = false;
    if (planted("leak") && finish == Finish::cancelled) {
        static_cast<void>(job.sequence.detach());
    }
    job.sequence = {};
    job.outcome.finish = finish;
    job.outcome.message = message;
}

void Scheduler::give_up(const certkv::Error &error)
{
    broken_ = true;
    for (const std::unique_ptr<Job> &job : jobs_) {
        end(*job, Finish::failed, std::string(error.name()) + ": " + error.message());
    }
}

// Shows the numbers of this round, and only then tells those who wait: who has an answer finds it counted.
void Scheduler::report()
{
    std::vector<std::unique_ptr<Job>> over;
    for (std::unique_ptr<Job> &job : jobs_) {
        if (job->stage == Stage::over) {
            over.push_back(std::move(job));
        }
    }
    jobs_.erase(std::remove(jobs_.begin(), jobs_.end(), nullptr), jobs_.end());
    for (const std::unique_ptr<Job> &job : over) {
        Outcome &outcome = job->outcome;
        outcome.prompt_tokens = job->request->wish.prompt.size();
        outcome.completion_tokens = job->sampled();
        outcome.seconds = std::chrono::duration<double>(Clock::now() - job->request->created).count();
        now_.request_seconds.add(outcome.seconds);
        if (!planted("miscount") || outcome.finish != Finish::cancelled) {
            now_.ended[static_cast<std::size_t>(outcome.finish)]++;
        }
    }
    {
        const std::lock_guard lock(mutex_);
        // submit() counts these.
        now_.received = shown_.received;
        now_.refused_length = shown_.refused_length;
        now_.refused_queue = shown_.refused_queue;
        now_.refused_stopping = shown_.refused_stopping;
        now_.waiting = at(Stage::waiting).size() + incoming_.size();
        now_.running = at(Stage::running).size();
        now_.swapped = at(Stage::swapped).size();
        shown_ = now_;
        for (const std::unique_ptr<Job> &job : over) {
            live_.erase(job->request->id);
        }
    }
    for (const std::unique_ptr<Job> &job : over) {
        const std::string rest = job->text.finish();
        if (!rest.empty() && job->outcome.finish != Finish::cancelled) {
            job->request->push(rest);
        }
        job->request->finish(std::move(job->outcome));
    }
}

bool Scheduler::ends_all(certkv_status status)
{
    return status == CERTKV_PANIC || status == CERTKV_POISONED || status == CERTKV_INTERNAL || status == CERTKV_INVALID_HANDLE;
}

} // namespace paged_server
