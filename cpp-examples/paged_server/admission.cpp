// Who gets pages, who waits for them, and who gives them up.
#include "scheduler.hpp"

namespace paged_server {
namespace {

constexpr std::uint64_t block = 64; // tokens at most
// Tokens that a request is promised beyond those it has. Few: most requests end before all that they may grow to, and those that find no
// page take it from the youngest, who is swapped out. None: the first block that is full would do that.
constexpr std::uint64_t ahead = 16;

std::uint64_t whole_blocks(std::uint64_t tokens)
{
    return (tokens + block - 1) / block * block;
}

} // namespace

// Tokens that those who run want pages for: the rest of their prompts, and a little to go on.
std::uint64_t Scheduler::promised() const
{
    std::uint64_t tokens = 0;
    for (const Job *job : at(Stage::running)) {
        tokens += (job->pending() > 1 ? whole_blocks(job->pending()) : 0) + ahead;
    }
    return tokens;
}

// The cache's own verdict. It reserves nothing, so what was promised to others is asked for along with it.
bool Scheduler::fits(const Job &job, std::uint64_t tokens) const
{
    const certkv::Result<certkv_admission> verdict = job.sequence.admit(tokens);
    return verdict && verdict->verdict != CERTKV_LACKS;
}

// Requests that were swapped out return, oldest first, and before any new one begins.
void Scheduler::resume()
{
    for (Job *job : at(Stage::swapped)) {
        const std::vector<Job *> running = at(Stage::running);
        if (running.size() >= options_.max_batch) {
            return;
        }
        if (job->stage != Stage::swapped) {
            continue; // It gave way to one before it.
        }
        // Where nobody runs, nobody will make room: it returns, or it begins again.
        if (!running.empty() && !fits(*job, whole_blocks(job->pending()) + promised())) {
            return;
        }
        certkv::Result<std::uint64_t> moved = job->sequence.swap_in();
        while (moved.status() == CERTKV_CAPACITY && running.empty() && make_room(*job)) {
            moved = job->sequence.swap_in();
        }
        if (moved) {
            job->stage = Stage::running;
            now_.swap_ins++;
        } else if (ends_all(moved.status())) {
            give_up(moved.error());
        } else if (moved.status() != CERTKV_CAPACITY || running.empty()) {
            drop(*job); // Its codes were damaged outside, say: its tokens are known.
        } else {
            return;
        }
    }
}

void Scheduler::admit()
{
    for (Job *job : at(Stage::waiting)) {
        if (full_ || at(Stage::running).size() >= options_.max_batch || !at(Stage::swapped).empty()) {
            return;
        }
        if (!begin(*job)) {
            return;
        }
    }
}

// Gives a waiting request a sequence, with what is cached of its tokens, if the cache says that the rest fits. All but the last token is
// looked up: its logits are needed.
bool Scheduler::begin(Job &job)
{
    const bool alone = at(Stage::running).empty();
    certkv::Error why;
    if (options_.prefix_units > 0) {
        certkv::Result<certkv::Continued> made =
            cache_.create_from(scope(job), certkv::span<const std::uint32_t>(job.tokens.data(), job.tokens.size() - 1));
        if (made) {
            job.sequence = std::move(made->sequence);
            job.held = made->found;
        }
        why = made.error();
    } else {
        certkv::Result<certkv::Sequence> made = cache_.create_sequence();
        if (made) {
            job.sequence = *std::move(made);
        }
        why = made.error();
    }
    if (!job.sequence) {
        if (ends_all(why.status())) {
            give_up(why);
        } else if (alone) {
            end(job, Finish::failed, std::string(why.name()) + ": " + why.message());
        }
        return false;
    }
    // Alone it is tried whatever the cache says: a step evicts what it must, and submit() has seen that it can fit.
    if (!alone && !fits(job, whole_blocks(job.pending()) + promised())) {
        full_ = true;
        job.held = 0;
        job.sequence = {};
        return false;
    }
    job.stage = Stage::running;
    if (!job.lost) {
        job.outcome.cached_tokens = job.held;
        now_.cached_tokens += job.held;
    }
    return true;
}

// The youngest of those who run gives up its pages; where only `needy` runs, the youngest that is swapped out loses its originals, which
// stay in the cache, too.
bool Scheduler::make_room(const Job &needy)
{
    const std::vector<Job *> running = at(Stage::running), swapped = at(Stage::swapped);
    for (auto job = running.rbegin(); job != running.rend(); ++job) {
        if (running.size() > 1 || *job != &needy) {
            preempt(**job);
            return true;
        }
    }
    for (auto job = swapped.rbegin(); job != swapped.rend(); ++job) {
        if (*job != &needy) {
            drop(**job);
            return true;
        }
    }
    return false;
}

void Scheduler::preempt(Job &job)
{
    job.outcome.preemptions++;
    full_ = false;
    if (options_.swap_tokens > 0 && at(Stage::swapped).size() < options_.max_batch && job.sequence.swap_out()) {
        job.stage = Stage::swapped;
        now_.swap_outs++;
    } else {
        drop(job);
    }
}

// Its tokens are computed again when it has pages.
void Scheduler::drop(Job &job)
{
    job.sequence = {};
    job.held = 0;
    job.stage = Stage::waiting;
    job.lost = true;
    full_ = false;
    now_.drops++;
}

} // namespace paged_server
