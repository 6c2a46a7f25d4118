#include "http.hpp"

#include "connection.hpp"
#include "metrics.hpp"
#include "plant.hpp"

#include <atomic>
#include <cstdio>
#include <httplib.h>
#include <random>
#include <sys/socket.h>
#include <thread>

namespace paged_server {
namespace {

// How long a thread waits for text before it looks whether its client is there.
constexpr std::chrono::milliseconds look(50);
// How long a client may take to accept what is written to it.
constexpr std::chrono::seconds longest_write(10);

void refuse(httplib::Response &response, const ApiError &error)
{
    response.status = error.status;
    if (error.status == 429 || error.status == 503) {
        response.set_header("Retry-After", "1");
    }
    response.set_content(error.json(), "application/json");
}

std::string event(const std::string &data)
{
    return "data: " + data + "\n\n";
}

} // namespace

struct Http::State {
    Options options;
    Scheduler &scheduler;
    std::string model;
    std::uint32_t bos;
    Terms terms;
    Recent recent;
    httplib::Server server;
    std::uint64_t salt = std::random_device()();
    std::atomic<std::uint64_t> requests = 0;
    std::atomic<int> streams = 0; // under way
    std::atomic<bool> ended = false; // nothing is served any more
    int listener = -1;

    State(const Options &o, Scheduler &s, const std::string &name, std::uint32_t first)
        : options(o), scheduler(s), model(name), bos(first), terms{o.policy, o.tolerance}
    {
    }

    std::string new_id()
    {
        char id[48];
        std::snprintf(id, sizeof id, "cmpl-%08llx%08llx", static_cast<unsigned long long>(salt & 0xffffffffu),
                      static_cast<unsigned long long>(requests++));
        return id;
    }

    void submit(const std::shared_ptr<Request> &request)
    {
        switch (scheduler.submit(request)) {
        case Refusal::none:
            return;
        case Refusal::length:
            throw ApiError{400, "prompt and max_tokens are more tokens than the cache or the model can hold", "invalid_request_error",
                           "prompt", "context_length_exceeded"};
        case Refusal::queue:
            throw ApiError{429, "too many requests are waiting", "rate_limit_error", "", "queue_full"};
        case Refusal::stopping:
            throw ApiError{503, "the server is shutting down", "server_error", "", "stopping"};
        case Refusal::broken:
            throw ApiError{503, "the cache is broken", "server_error", "", "broken"};
        }
    }

    void complete(const httplib::Request &asked_by, httplib::Response &response)
    {
        Asked asked = parse_completion(asked_by.body, model, bos);
        // Who shares a key shares cached prompts; a client without one is of the circle of those without one.
        asked.wish.domain = asked_by.get_header_value("Authorization");
        const Heading heading{new_id(), model, std::time(nullptr)};
        const auto request = std::make_shared<Request>(heading.id, std::move(asked.wish));
        submit(request);
        response.set_header("X-Request-Id", heading.id);
        const std::optional<Terms> wanted = asked.certificate ? std::optional<Terms>(terms) : std::nullopt;
        if (asked.stream) {
            stream(heading, request, wanted, asked.usage_in_stream, response);
            return;
        }
        const Connection connection(asked_by.remote_addr, asked_by.remote_port);
        std::string text, more;
        for (bool over = false; !over; text += more) {
            over = request->wait(look, more);
            if (!over && connection.gone()) {
                request->cancel();
            }
        }
        recent.add(heading.id, request->outcome());
        if (request->outcome().finish == Finish::failed) {
            throw failure(request->outcome());
        }
        std::string body = completion_json(heading, text, request->outcome(), wanted);
        if (planted("garble") && request->outcome().completion_tokens % 3 == 0) {
            body.resize(body.size() / 2);
        }
        response.set_content(body, "application/json");
    }

    void stream(const Heading &heading, const std::shared_ptr<Request> &request, const std::optional<Terms> &wanted, bool with_usage,
                httplib::Response &response)
    {
        response.set_header("Cache-Control", "no-store");
        const auto provide = [this, heading, request, wanted, with_usage](std::size_t, httplib::DataSink &sink) {
            std::string text;
            const bool over = request->wait(look, text);
            if (!over && text.empty()) {
                return sink.is_writable();
            }
            std::string out;
            if (!over) {
                out = event(chunk_json(heading, text, nullptr, std::nullopt));
            } else if (request->outcome().finish == Finish::failed) {
                out = event(failure(request->outcome()).json());
            } else {
                out = event(chunk_json(heading, text, &request->outcome(), wanted));
                out += with_usage ? event(usage_json(heading, request->outcome())) : "";
                out += event("[DONE]");
            }
            if (planted("garble") && over) {
                out.erase(out.size() / 2, 3);
            }
            if (!sink.write(out.data(), out.size())) {
                return false;
            }
            if (over) {
                recent.add(heading.id, request->outcome());
                sink.done();
            }
            return true;
        };
        streams++;
        // Called at the end, however it came: a request that is over does not mind.
        response.set_chunked_content_provider("text/event-stream", provide, [this, request](bool) {
            request->cancel();
            streams--;
        });
    }

    void routes()
    {
        using httplib::Request, httplib::Response;
        server.Post("/v1/completions", [this](const Request &asked, Response &response) { complete(asked, response); });
        server.Get("/v1/completions", [](const Request &, Response &response) {
            response.set_header("Allow", "POST");
            refuse(response, {405, "completions are asked for by POST", "invalid_request_error", "", "method_not_allowed"});
        });
        server.Post(R"(/v1/completions/([0-9a-z-]+)/cancel)", [this](const Request &asked, Response &response) {
            const std::string id = asked.matches[1];
            if (!scheduler.cancel(id)) {
                throw ApiError{404, "no completion of that id is under way", "invalid_request_error", "id", "not_found"};
            }
            response.set_content("{\"id\":\"" + id + "\",\"cancelled\":true}", "application/json");
        });
        server.Get("/metrics", [this](const Request &, Response &response) {
            response.set_content(metrics(scheduler), "text/plain; version=0.0.4; charset=utf-8");
        });
        server.Get("/healthz", [this](const Request &, Response &response) {
            if (scheduler.broken()) {
                throw ApiError{503, "the cache is broken", "server_error", "", "broken"};
            }
            if (scheduler.stopping()) {
                throw ApiError{503, "the server is stopping", "server_error", "", "stopping"};
            }
            response.set_content("ok\n", "text/plain");
        });
        server.Get("/", [](const Request &, Response &response) { response.set_content(page(), "text/html; charset=utf-8"); });
        server.Get("/state", [this](const Request &, Response &response) {
            response.set_content(state_json(scheduler, terms, recent), "application/json");
        });
        // For new weights, or to see that nothing but prefixes is left.
        server.Post("/admin/evict_prefixes", [this](const Request &, Response &response) {
            auto done = scheduler.evict_prefixes();
            if (done.wait_for(std::chrono::seconds(60)) != std::future_status::ready) {
                throw ApiError{503, "a step of the cache does not end", "server_error", "", "busy"};
            }
            const auto evicted = [&] {
                try {
                    return done.get();
                } catch (const std::future_error &) {
                    throw ApiError{503, "the server is stopping", "server_error", "", "stopping"};
                }
            }();
            if (!evicted) {
                throw ApiError{500, evicted.error().message(), "server_error", "", evicted.error().name()};
            }
            response.set_content("{\"evicted\":" + std::to_string(*evicted) + "}", "application/json");
        });
    }

    void errors()
    {
        // The limit of a body is of what it says to have. One that says it otherwise, or becomes longer when it is read, is not read. Its bytes
        // are not the next request's: a connection has one.
        server.set_keep_alive_max_count(1);
        server.set_pre_routing_handler([](const httplib::Request &asked, httplib::Response &response) {
            const bool has_body = asked.method != "GET" && asked.method != "HEAD" && asked.method != "OPTIONS";
            if (asked.has_header("Transfer-Encoding") || (has_body && !asked.has_header("Content-Length"))) {
                refuse(response, {411, "the body says no Content-Length", "invalid_request_error", "", "length_required"});
                return httplib::Server::HandlerResponse::Handled;
            }
            if (asked.has_header("Content-Encoding")) {
                refuse(response, {415, "the body is encoded", "invalid_request_error", "", "unsupported_encoding"});
                return httplib::Server::HandlerResponse::Handled;
            }
            return httplib::Server::HandlerResponse::Unhandled;
        });
        server.set_exception_handler([](const httplib::Request &, httplib::Response &response, std::exception_ptr thrown) {
            try {
                std::rethrow_exception(thrown);
            } catch (const ApiError &error) {
                refuse(response, error);
            } catch (const std::exception &error) {
                refuse(response, {500, error.what(), "server_error", "", "internal"});
            }
        });
        // What cpp-httplib refuses by itself: unknown paths, bodies that are too long, requests that are none.
        server.set_error_handler([](const httplib::Request &, httplib::Response &response) {
            if (response.body.empty()) {
                const std::string message = response.status == 404   ? "there is nothing under this path"
                                            : response.status == 413 ? "the body is too long"
                                                                     : "the request could not be read";
                refuse(response, {response.status, message, "invalid_request_error", "", ""});
            }
        });
    }
};

Http::Http(const Options &options, Scheduler &scheduler, const std::string &model, std::uint32_t bos)
    : state_(new State(options, scheduler, model, bos))
{
    httplib::Server &server = state_->server;
    server.new_task_queue = [count = options.connections] { return new httplib::ThreadPool(count); };
    // A byte of a prompt takes six in JSON at most.
    server.set_payload_max_length(6 * options.cache_tokens + 65536);
    server.set_read_timeout(10);
    server.set_write_timeout(longest_write);
    server.set_tcp_nodelay(true);
    server.set_socket_options([state = state_.get()](socket_t socket) {
        httplib::default_socket_options(socket);
        state->listener = socket;
    });
    state_->routes();
    state_->errors();
}

Http::~Http() = default;

int Http::bind()
{
    httplib::Server &server = state_->server;
    const Options &options = state_->options;
    int port = options.port;
    if (port == 0) {
        port = server.bind_to_any_port(options.host.c_str());
    } else if (!server.bind_to_port(options.host.c_str(), port)) {
        port = -1;
    }
    // cpp-httplib lets five connections wait to be accepted. Many clients that come at once are more, and a kernel may reset those beyond.
    if (port > 0) {
        listen(state_->listener, static_cast<int>(options.connections));
    }
    return port;
}

bool Http::serve()
{
    const bool served = state_->server.listen_after_bind();
    state_->ended = true;
    return served;
}

void Http::stop()
{
    // Before it accepts, cpp-httplib does not hear that it is to stop.
    while (!state_->server.is_running() && !state_->ended) {
        std::this_thread::sleep_for(look / 10);
    }
    // It cuts off streams that are under way when it is told to stop; their requests are over, so their last words are short.
    const Clock::time_point latest = Clock::now() + longest_write;
    while (state_->streams > 0 && Clock::now() < latest) {
        std::this_thread::sleep_for(look / 10);
    }
    state_->server.stop();
}

} // namespace paged_server
