// A request as the scheduler has it.
#pragma once
#include "request.hpp"
#include "sampler.hpp"
#include "text.hpp"

#include <certkv.hpp>

#include <memory>

namespace paged_server {

enum class Stage {
    waiting, // for its first step, or for one after it lost its pages
    running, // in every step
    swapped, // its codes are out of the cache
    over,
};

struct Job {
    Job(std::shared_ptr<Request> asked, std::uint64_t number, const ModelConfig &model)
        : request(std::move(asked)), arrival(number), tokens(request->wish.prompt),
          sampler(model.vocabulary, model.eos, request->wish.temperature, request->wish.seed), text(request->wish.stops)
    {
    }

    std::shared_ptr<Request> request;
    std::uint64_t arrival; // Older requests go first.
    Stage stage = Stage::waiting;
    certkv::Sequence sequence; // not while waiting
    std::vector<std::uint32_t> tokens; // the prompt, then what was sampled
    std::uint64_t held = 0; // of these in the cache
    bool published = false, lost = false; // whether its prompt is cached; whether it lost its pages once
    Sampler sampler;
    Text text;
    Outcome outcome;

    [[nodiscard]] std::uint64_t pending() const { return tokens.size() - held; }
    [[nodiscard]] std::uint64_t sampled() const { return tokens.size() - request->wish.prompt.size(); }
};

} // namespace paged_server
