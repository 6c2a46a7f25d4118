// The scheduler without HTTP: answers do not depend on what runs beside a request, nor on its being swapped out; nobody is forgotten;
// nothing is left. Argument: the folder of the model.
#include "audit.hpp"
#include "scheduler.hpp"

#include "check.hpp"

#include <string>

using namespace paged_server;
using std::chrono::milliseconds;

namespace {

struct Setting {
    std::uint64_t cache_tokens = 8192;
    certkv_policy policy = CERTKV_POLICY_DENSE;
    SchedulerOptions options;
};

struct Bench {
    Model &model;
    Scheduler scheduler;
    unsigned asked = 0;

    Bench(Model &of, const Setting &setting) : model(of), scheduler(of, setting.options, config(setting)) {}
    static certkv::Config config(const Setting &setting)
    {
        certkv::Config made;
        made.max_tokens = setting.cache_tokens;
        made.policy = setting.policy;
        return made;
    }
    std::shared_ptr<Request> request(const std::string &prompt, std::uint32_t tokens, const std::string &domain = "")
    {
        Wish wish;
        wish.prompt = {model.config().bos};
        for (const char c : prompt) {
            wish.prompt.push_back(static_cast<unsigned char>(c));
        }
        wish.max_tokens = tokens;
        wish.temperature = asked % 2 == 0 ? 0.0 : 0.7;
        wish.seed = asked;
        wish.domain = domain;
        return std::make_shared<Request>("r" + std::to_string(asked++), std::move(wish));
    }
    std::shared_ptr<Request> submit(const std::string &prompt, std::uint32_t tokens, const std::string &domain = "")
    {
        std::shared_ptr<Request> made = request(prompt, tokens, domain);
        TRUE(scheduler.submit(made) == Refusal::none);
        return made;
    }
    void rounds(unsigned most = 100000)
    {
        while (most-- > 0 && (scheduler.round() || scheduler.board().waiting + scheduler.board().swapped > 0)) {
        }
    }
    // Every request is somewhere, and every output has a status and a rung.
    void balance() const
    {
        const Board b = scheduler.board();
        TRUE(b.received == b.waiting + b.running + b.swapped + b.ended[0] + b.ended[1] + b.ended[2] + b.ended[3]);
        std::uint64_t rungs = 0;
        for (const std::uint64_t count : b.tally.by_rung) {
            rungs += count;
        }
        TRUE(b.tally.outputs() == rungs && rungs == b.tally.steps * model.config().layers * model.config().q_heads);
        TRUE(b.tally.beyond == 0);
    }
    void empty() const
    {
        balance();
        for (const std::string &leak : leaks(scheduler)) {
            std::printf("leak: %s\n", leak.c_str());
            TRUE(!"nothing is left");
        }
    }
};

std::string text_of(Request &request)
{
    std::string text;
    TRUE(request.wait(milliseconds(0), text));
    return text;
}

std::vector<std::string> prompts()
{
    std::vector<std::string> made;
    for (int i = 0; i < 4; i++) {
        std::string text = "Chapter " + std::to_string(i) + ". ";
        for (int line = 0; line < 2 + i % 2; line++) {
            text += "The value of item " + std::to_string(17 * i + line) + " is " + std::to_string(i * i + line) + ".\n";
        }
        made.push_back(text + "The value of item");
    }
    return made;
}

constexpr std::uint32_t answer = 96;

std::vector<std::string> answers(Bench &bench, bool together)
{
    std::vector<std::shared_ptr<Request>> requests;
    for (const std::string &prompt : prompts()) {
        requests.push_back(bench.submit(prompt, answer));
        if (!together) {
            bench.rounds();
        }
    }
    bench.rounds();
    std::vector<std::string> found;
    for (const auto &request : requests) {
        found.push_back(text_of(*request));
        TRUE(request->outcome().finish == Finish::length || request->outcome().finish == Finish::stop);
    }
    bench.empty();
    return found;
}

void company_changes_no_answer(Model &model, certkv_policy policy)
{
    Setting wide;
    wide.policy = policy;
    Bench alone(model, wide);
    const std::vector<std::string> expected = answers(alone, false);
    TRUE(expected[0] != expected[1] && !expected[0].empty());

    Setting chunked = wide; // prompts in pieces, beside the others' decoding
    chunked.options.step_tokens = 40;
    Bench together(model, chunked);
    TRUE(answers(together, true) == expected);
    TRUE(together.scheduler.board().steps < alone.scheduler.board().steps);

    Setting tight = chunked; // not enough pages for all of them
    tight.cache_tokens = 256;
    tight.options.swap_tokens = 2048;
    Bench swapping(model, tight);
    TRUE(answers(swapping, true) == expected);
    const Board swapped = swapping.scheduler.board();
    TRUE(swapped.swap_outs > 0 && swapped.swap_ins + swapped.drops >= swapped.swap_outs);

    tight.options.swap_tokens = 0; // nor room to swap: tokens are computed again, the sampled ones in chunks
    Bench dropping(model, tight);
    TRUE(answers(dropping, true).size() == expected.size());
    TRUE(dropping.scheduler.board().drops > 0 && dropping.scheduler.board().recomputed_tokens > 0);
}

void prefixes_are_shared_within_a_domain(Model &model)
{
    Setting setting;
    setting.options.prefix_units = 16;
    Bench bench(model, setting);
    const std::string prompt = prompts()[3];
    const auto ask = [&](const std::string &domain) {
        bench.asked = 0; // the same seed and temperature
        auto request = bench.submit(prompt, 16, domain);
        bench.rounds();
        return request;
    };
    const auto first = ask("a"), second = ask("a"), other = ask("b");
    TRUE(first->outcome().cached_tokens == 0 && other->outcome().cached_tokens == 0);
    TRUE(second->outcome().cached_tokens == prompt.size() / 64 * 64 && second->outcome().cached_tokens > 0);
    const std::string text = text_of(*first);
    TRUE(!text.empty() && text_of(*second) == text && text_of(*other) == text);
    bench.empty();
}

void cancelling(Model &model)
{
    Setting setting;
    setting.cache_tokens = 384;
    setting.options.swap_tokens = 1024;
    setting.options.max_batch = 3;
    Bench bench(model, setting);
    std::vector<std::shared_ptr<Request>> requests;
    for (const std::string &prompt : prompts()) {
        requests.push_back(bench.submit(prompt, 200));
    }
    while (bench.scheduler.board().swapped == 0 && bench.scheduler.round()) {
        bench.balance();
    }
    const Board b = bench.scheduler.board();
    TRUE(b.running > 0 && b.swapped > 0 && b.waiting > 0);
    TRUE(bench.scheduler.cancel(requests[1]->id) && !bench.scheduler.cancel("nobody"));
    for (const auto &request : requests) {
        request->cancel();
    }
    bench.rounds();
    for (const auto &request : requests) {
        text_of(*request);
        TRUE(request->outcome().finish == Finish::cancelled || request->outcome().finish == Finish::stop);
    }
    TRUE(!bench.scheduler.cancel(requests[1]->id));
    bench.empty();
    // What is left is named: a sequence that nobody has any more.
    certkv::Sequence lost = bench.scheduler.cache().create_sequence().value_or_throw();
    TRUE(!leaks(bench.scheduler).empty());
    TRUE(lost.release().ok());
    bench.empty();
}

void refusals(Model &model)
{
    Setting setting;
    setting.cache_tokens = 512;
    setting.options.max_waiting = 2;
    Bench bench(model, setting);
    TRUE(bench.scheduler.submit(bench.request("a", 600)) == Refusal::length);
    TRUE(bench.scheduler.submit(bench.request(std::string(600, 'a'), 1)) == Refusal::length);
    auto whole = bench.submit(std::string(400, 'a'), 111); // all that there is
    auto next = bench.submit("b", 4);
    TRUE(bench.scheduler.submit(bench.request("c", 4)) == Refusal::queue);
    bench.rounds();
    text_of(*whole), text_of(*next);
    TRUE(whole->outcome().finish == Finish::length || whole->outcome().finish == Finish::stop);
    auto late = bench.submit("d", 4);
    bench.scheduler.stop(std::chrono::seconds(0));
    TRUE(bench.scheduler.submit(bench.request("e", 4)) == Refusal::stopping);
    bench.scheduler.run();
    text_of(*late);
    TRUE(late->outcome().finish == Finish::cancelled && !late->outcome().message.empty());
    const Board b = bench.scheduler.board();
    TRUE(b.refused_length == 2 && b.refused_queue == 1 && b.refused_stopping == 1 && b.received == 3);
    bench.empty();
}

} // namespace

int main(int count, char **words)
{
    if (count != 2) {
        return 2;
    }
    Model model(Checkpoint::read(words[1]), 1);
    company_changes_no_answer(model, CERTKV_POLICY_DENSE);
    company_changes_no_answer(model, CERTKV_POLICY_CERTIFIED);
    prefixes_are_shared_within_a_domain(model);
    cancelling(model);
    refusals(model);
    return report();
}
