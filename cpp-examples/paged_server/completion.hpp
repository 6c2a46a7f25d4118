// The JSON of /v1/completions: requests in, responses and errors out. Knows nothing of connections.
#pragma once
#include "request.hpp"

#include <optional>
#include <string>

namespace paged_server {

// What a client is told that did wrong, or that the server cannot serve.
struct ApiError {
    int status = 500;
    std::string message;
    std::string type = "server_error";
    std::string param; // the field at fault, if one is
    std::string code;

    [[nodiscard]] std::string json() const;
};

struct Asked {
    Wish wish;
    bool stream = false, usage_in_stream = false, certificate = false;
};

// What of a response does not change from one chunk to the next.
struct Heading {
    std::string id, model;
    std::int64_t created; // seconds since 1970
};

// How certificates are to be read: the policy and tolerance that the cache has.
struct Terms {
    std::string policy;
    double tolerance;
};

// Reads the body of a request to a server of `model`, whose texts begin with token `bos`. Throws ApiError.
Asked parse_completion(const std::string &body, const std::string &model, std::uint32_t bos);

// The whole response; with `terms`, what its certificates came to.
std::string completion_json(const Heading &heading, const std::string &text, const Outcome &outcome, const std::optional<Terms> &terms);
// A chunk of a stream; the last one with text has the outcome.
std::string chunk_json(const Heading &heading, const std::string &text, const Outcome *outcome, const std::optional<Terms> &terms);
// The chunk after it, for those who asked for usage.
std::string usage_json(const Heading &heading, const Outcome &outcome);
// Of a completion that failed.
ApiError failure(const Outcome &outcome);

} // namespace paged_server
