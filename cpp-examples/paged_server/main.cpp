// paged_server: completions of a small model over HTTP, on a certkv cache. README.md says how to build and run it.
#include "audit.hpp"
#include "http.hpp"
#include "plant.hpp"

#include <atomic>
#include <csignal>
#include <cstdio>
#include <thread>
#include <unistd.h>

namespace paged_server {
namespace {

certkv::Config cache_config(const Options &options)
{
    certkv::Config config;
    config.max_tokens = options.cache_tokens;
    config.threads = options.threads;
    config.tolerance = options.tolerance;
    config.device = options.device;
    config.kernels = options.kernels.empty() ? nullptr : options.kernels.c_str();
    config.format = options.format.empty() ? nullptr : options.format.c_str();
    config.policy = options.policy == "dense"     ? CERTKV_POLICY_DENSE
                    : options.policy == "packed"  ? CERTKV_POLICY_PACKED
                    : options.policy == "seed000" ? CERTKV_POLICY_SEED000
                                                  : CERTKV_POLICY_CERTIFIED;
    return config;
}

// The folder's own name.
std::string name_of(std::string folder)
{
    while (folder.size() > 1 && folder.back() == '/') {
        folder.pop_back();
    }
    return folder.substr(folder.find_last_of('/') + 1);
}

// What is left after the last request: 0 if that is nothing.
int report_leaks(const Scheduler &scheduler)
{
    const std::vector<std::string> found = leaks(scheduler);
    for (const std::string &leak : found) {
        std::printf("leak: %s\n", leak.c_str());
    }
    const Board board = scheduler.board();
    const certkv_plan &plan = scheduler.plan();
    std::printf("%llu requests, %llu tokens sampled; %s; %llu bytes of device memory and %llu of host memory, as planned\n",
                static_cast<unsigned long long>(board.received), static_cast<unsigned long long>(board.sampled_tokens),
                found.empty() ? "no sequence, page or byte is in use" : "the cache is not empty",
                static_cast<unsigned long long>(plan.device_bytes), static_cast<unsigned long long>(plan.host_bytes));
    return found.empty() ? 0 : 3;
}

int serve(const Options &options)
{
    // Threads inherit the mask: the signals wait for sigwait below.
    sigset_t ends;
    sigemptyset(&ends);
    sigaddset(&ends, SIGTERM);
    sigaddset(&ends, SIGINT);
    pthread_sigmask(SIG_BLOCK, &ends, nullptr);

    Model model(Checkpoint::read(options.model), options.threads);
    SchedulerOptions scheduling;
    scheduling.swap_tokens = options.swap_tokens;
    scheduling.prefix_units = options.prefix_units;
    scheduling.max_batch = options.max_batch;
    scheduling.max_waiting = options.max_waiting;
    scheduling.step_tokens = options.step_tokens;
    scheduling.model_name = name_of(options.model);
    Scheduler scheduler(model, scheduling, cache_config(options));
    Http http(options, scheduler, scheduling.model_name, model.config().bos);
    const int port = http.bind();
    if (port < 0) {
        std::fprintf(stderr, "paged_server: %s:%d cannot be listened on\n", options.host.c_str(), options.port);
        return 1;
    }
    const std::string gpu = options.device == CERTKV_DEVICE_HOST ? "" : std::string(", cache on ") + certkv::describe_gpu(options.device).value_or_throw().name;
    std::printf("certkv %s, model %s, policy %s%s, listening on http://%s:%d\n", certkv::version(), scheduling.model_name.c_str(),
                options.policy.c_str(), gpu.c_str(), options.host.c_str(), port);
    std::fflush(stdout);

    std::thread rounds([&] { scheduler.run(); });
    std::atomic<bool> stopping = false;
    std::thread serving([&] {
        if (!http.serve() && !stopping) {
            std::fprintf(stderr, "paged_server: the listening socket failed\n");
            kill(getpid(), SIGTERM);
        }
    });
    int signal = 0;
    sigwait(&ends, &signal);
    stopping = true;
    // Requests under way have their answers, or are told, before connections close.
    scheduler.stop(std::chrono::seconds(options.grace_seconds));
    rounds.join();
    http.stop();
    serving.join();
    return report_leaks(scheduler);
}

} // namespace
} // namespace paged_server

int main(int count, char **words)
{
    using namespace paged_server;
    if (count == 2 && (std::string(words[1]) == "--help" || std::string(words[1]) == "-h")) {
        std::fputs(usage().c_str(), stdout);
        return 0;
    }
    try {
        const Options options = parse_options(count, words);
        plant(options.plant);
        return serve(options);
    } catch (const UsageError &e) {
        std::fprintf(stderr, "paged_server: %s\n", e.what());
        return 2;
    } catch (const certkv::Exception &e) {
        std::fprintf(stderr, "paged_server: %s: %s\n", e.error().name(), e.what());
    } catch (const std::exception &e) {
        std::fprintf(stderr, "paged_server: %s\n", e.what());
    }
    return 1;
}
