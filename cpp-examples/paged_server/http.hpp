// The server's face: routes, streams, and what becomes of a request whose client goes away.
#pragma once
#include "completion.hpp"
#include "options.hpp"
#include "page.hpp"
#include "scheduler.hpp"

#include <memory>
#include <string>

namespace paged_server {

class Http {
public:
    // `model`: the name by which requests know it.
    Http(const Options &options, Scheduler &scheduler, const std::string &model, std::uint32_t bos);
    ~Http();
    Http(const Http &) = delete;
    Http &operator=(const Http &) = delete;

    // The port that it has now, or -1.
    int bind();
    // Serves until stop(). False if it could not.
    bool serve();
    // After the scheduler's last round: answers that are ready are sent.
    void stop();

private:
    struct State; // cpp-httplib stays in one file.
    std::unique_ptr<State> state_;
};

} // namespace paged_server
