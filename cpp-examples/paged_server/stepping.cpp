// One step of those who run, and what comes of it.
#include "scheduler.hpp"

#include <algorithm>

namespace paged_server {
namespace {

// Of a prompt in one step, even where decoding leaves nothing of `step_tokens`: prompts go on, if slowly.
constexpr std::uint64_t least_chunk = 16;

} // namespace

// Who is in the next step: all that decode, then prompts as long as there are tokens left.
std::vector<Job *> Scheduler::chosen()
{
    std::vector<Job *> running = at(Stage::running);
    std::stable_partition(running.begin(), running.end(), [](const Job *job) { return job->pending() == 1; });
    return running;
}

void Scheduler::execute(std::vector<Job *> jobs)
{
    while (!jobs.empty()) {
        std::vector<Part> parts;
        const auto decoding = static_cast<std::uint64_t>(
            std::count_if(jobs.begin(), jobs.end(), [](const Job *job) { return job->pending() == 1; }));
        std::uint64_t left = options_.step_tokens > decoding + least_chunk ? options_.step_tokens - decoding : least_chunk;
        for (std::size_t i = 0; i < jobs.size(); i++) {
            const Job &job = *jobs[i];
            std::uint64_t count = 1;
            if (job.pending() > 1) {
                count = std::min(job.pending(), left);
                // One token of a prompt by itself would be a decode step: neither the last one, nor what another prompt has left room for.
                if (job.pending() - count == 1 && count > 2) {
                    count--;
                }
                count = count == 1 ? 0 : count;
                left -= count;
            }
            if (count == 0) {
                jobs.resize(i);
                break;
            }
            parts.push_back({&job.sequence, &job.tokens[job.held], count, job.held, count == job.pending(), {}});
        }
        try {
            const std::vector<float> logits = step(cache_, model_, parts);
            now_.steps++;
            settle(jobs, parts, logits);
            return;
        } catch (const certkv::Exception &e) {
            const certkv::Error error = e.error();
            if (ends_all(error.status())) {
                give_up(error);
                return;
            }
            if (error.status() == CERTKV_CAPACITY) {
                now_.steps_short++;
                if (!make_room(*jobs.front())) {
                    end(*jobs.front(), Finish::failed, "the cache has no pages for it");
                }
                jobs.erase(std::remove_if(jobs.begin(), jobs.end(), [](const Job *job) { return job->stage != Stage::running; }), jobs.end());
            } else {
                now_.steps_failed++;
                if (jobs.size() == 1) {
                    end(*jobs.front(), Finish::failed, std::string(error.name()) + ": " + error.message());
                    return;
                }
                // One of them is at fault: each by itself, and the others are done with this round.
                for (Job *job : jobs) {
                    if (job->stage == Stage::running) {
                        execute({job});
                    }
                }
                return;
            }
        }
    }
}

void Scheduler::settle(const std::vector<Job *> &jobs, const std::vector<Part> &parts, const std::vector<float> &logits)
{
    std::size_t row = 0;
    for (std::size_t i = 0; i < parts.size(); i++) {
        Job &job = *jobs[i];
        const std::uint64_t prompt = job.request->wish.prompt.size();
        const std::uint64_t of_prompt = job.held >= prompt ? 0 : std::min(parts[i].count, prompt - job.held);
        (job.lost ? now_.recomputed_tokens : now_.prompt_tokens) += of_prompt;
        now_.recomputed_tokens += job.lost && parts[i].count > 1 ? parts[i].count - of_prompt : 0;
        job.held += parts[i].count;
        job.outcome.tally.add(parts[i].tally);
        now_.tally.add(parts[i].tally);
        if (job.held >= prompt && !job.published) {
            publish_prefix(job);
        }
        if (parts[i].logits) {
            full_ = full_ && parts[i].count == 1; // A prompt is done: less is promised.
            sample(job, &logits[row++ * model_.config().vocabulary]);
        }
    }
}

void Scheduler::sample(Job &job, const float *logits)
{
    const std::uint32_t token = job.sampler.next(logits);
    if (job.sampled() == 0) {
        job.outcome.seconds_to_first = std::chrono::duration<double>(Clock::now() - job.request->created).count();
        now_.first_token_seconds.add(job.outcome.seconds_to_first);
    }
    job.tokens.push_back(token);
    now_.sampled_tokens++;
    if (token == model_.config().eos) {
        end(job, Finish::stop);
        return;
    }
    const std::string text = job.text.push(static_cast<unsigned char>(token));
    if (!text.empty()) {
        job.request->push(text);
    }
    if (job.text.stopped()) {
        end(job, Finish::stop);
    } else if (job.sampled() == job.request->wish.max_tokens) {
        end(job, Finish::length);
    }
}

// Only prompts are cached: their rows were computed from originals, so they do not depend on who computed them.
void Scheduler::publish_prefix(Job &job)
{
    job.published = true;
    if (options_.prefix_units > 0) {
        // A prefix that could not be cached is computed again by whoever has it: nothing is wrong.
        static_cast<void>(job.sequence.publish(scope(job), job.request->wish.prompt));
    }
}

} // namespace paged_server
