#include "completion.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <random>

namespace paged_server {
namespace {

using nlohmann::json;

constexpr std::size_t most_stops = 4, longest_stop = 256;

// A model's name comes from the name of its folder, which need not be UTF-8.
std::string text_of(const json &value)
{
    return value.dump(-1, ' ', false, json::error_handler_t::replace);
}

[[noreturn]] void refuse(const std::string &param, const std::string &why, const std::string &code = "invalid_value")
{
    throw ApiError{400, param + " " + why, "invalid_request_error", param, code};
}

// Fields by name; what was not asked for by the end is refused, as a field that is not understood would be ignored without a word.
class Body {
public:
    explicit Body(const std::string &text) : object_(json::parse(text, nullptr, false))
    {
        if (!object_.is_object()) {
            throw ApiError{400, "the body is no JSON object in UTF-8", "invalid_request_error", "", "invalid_json"};
        }
    }
    // The field, or nothing where it is absent or null.
    const json *field(const char *name)
    {
        known_.push_back(name);
        const auto found = object_.find(name);
        return found == object_.end() || found->is_null() ? nullptr : &*found;
    }
    bool flag(const char *name)
    {
        const json *value = field(name);
        if (value != nullptr && !value->is_boolean()) {
            refuse(name, "is not true or false", "invalid_type");
        }
        return value != nullptr && value->get<bool>();
    }
    std::uint64_t whole(const char *name, std::uint64_t least, std::uint64_t most, std::uint64_t otherwise)
    {
        const json *value = field(name);
        if (value == nullptr) {
            return otherwise;
        }
        if (!value->is_number_integer()) {
            refuse(name, "is no whole number", "invalid_type");
        }
        if (!value->is_number_unsigned() || value->get<std::uint64_t>() < least || value->get<std::uint64_t>() > most) {
            refuse(name, "must be from " + std::to_string(least) + " to " + std::to_string(most));
        }
        return value->get<std::uint64_t>();
    }
    void nothing_else() const
    {
        for (const auto &[name, value] : object_.items()) {
            if (std::find(known_.begin(), known_.end(), name) == known_.end() && !value.is_null()) {
                throw ApiError{400, "this server has no parameter of that name", "invalid_request_error", name, "unsupported_parameter"};
            }
        }
    }

private:
    json object_;
    std::vector<std::string> known_;
};

std::vector<std::string> stops(const json *value)
{
    std::vector<std::string> found;
    if (value == nullptr) {
        return found;
    }
    // Nothing of it is copied before it is known to be a string: a copy of what is nested deep enough ends the stack.
    const auto take = [&](const json &stop) {
        if (!stop.is_string()) {
            refuse("stop", "is neither a string nor an array of strings", "invalid_type");
        }
        found.push_back(stop.get<std::string>());
        if (found.back().empty() || found.back().size() > longest_stop) {
            refuse("stop", "holds a string that is empty or longer than " + std::to_string(longest_stop) + " bytes");
        }
    };
    if (value->is_array()) {
        std::for_each(value->begin(), value->end(), take);
    } else {
        take(*value);
    }
    if (found.size() > most_stops) {
        refuse("stop", "holds more than " + std::to_string(most_stops) + " strings");
    }
    return found;
}

std::uint64_t any_seed()
{
    static thread_local std::random_device device;
    return static_cast<std::uint64_t>(device()) << 32 | device();
}

json usage(const Outcome &o)
{
    return {{"prompt_tokens", o.prompt_tokens},
            {"completion_tokens", o.completion_tokens},
            {"total_tokens", o.prompt_tokens + o.completion_tokens},
            {"prompt_tokens_details", {{"cached_tokens", o.cached_tokens}}}};
}

json certificate(const Tally &t, const Terms &terms, std::uint32_t preemptions)
{
    json out = {{"policy", terms.policy},
                {"tolerance", terms.tolerance},
                {"decode_steps", t.steps},
                {"outputs",
                 {{"certified", t.by_status[CERTKV_CERTIFIED]},
                  {"exact", t.by_status[CERTKV_EXACT]},
                  {"uncertified", t.by_status[CERTKV_UNCERTIFIED]},
                  {"failed", t.by_status[CERTKV_FAILED]},
                  {"repaired", t.repaired()},
                  {"beyond_tolerance", t.beyond}}},
                {"rungs",
                 {{"packed", t.by_rung[0]},
                  {"more_keys", t.by_rung[1]},
                  {"exact_values", t.by_rung[2]},
                  {"dense_head", t.by_rung[3]},
                  {"dense_layer", t.by_rung[4]}}},
                {"preemptions", preemptions},
                {"worst", nullptr}};
    if (t.by_status[CERTKV_CERTIFIED] > 0) {
        out["worst"] = {{"bound_over_tolerance", t.worst_ratio},
                        {"bound", t.worst_bound},
                        {"output_norm", t.worst_norm},
                        {"layer", t.worst_layer},
                        {"head", t.worst_head}};
    }
    return out;
}

json frame(const Heading &heading)
{
    return {{"id", heading.id}, {"object", "text_completion"}, {"created", heading.created}, {"model", heading.model}};
}

json with_choice(const Heading &heading, const std::string &text, const Outcome *outcome, const std::optional<Terms> &terms)
{
    static const char *const reasons[] = {"stop", "length", "cancelled", "error"};
    json out = frame(heading);
    json reason = outcome == nullptr ? json(nullptr) : json(reasons[static_cast<std::size_t>(outcome->finish)]);
    out["choices"] = json::array({{{"text", text}, {"index", 0}, {"logprobs", nullptr}, {"finish_reason", reason}}});
    if (outcome != nullptr && terms) {
        out["certificate"] = certificate(outcome->tally, *terms, outcome->preemptions);
    }
    return out;
}

} // namespace

std::string ApiError::json() const
{
    const auto or_null = [](const std::string &value) { return value.empty() ? nlohmann::json(nullptr) : nlohmann::json(value); };
    const nlohmann::json error = {{"message", message}, {"type", type}, {"param", or_null(param)}, {"code", or_null(code)}};
    // What a client sent may be in the text, and may be no UTF-8.
    return text_of(nlohmann::json({{"error", error}}));
}

Asked parse_completion(const std::string &text, const std::string &model, std::uint32_t bos)
{
    Body body(text);
    Asked asked;
    const json *name = body.field("model");
    if (name != nullptr && (!name->is_string() || name->get<std::string>() != model)) {
        throw ApiError{404, "this server has the model " + model + " alone", "invalid_request_error", "model", "model_not_found"};
    }
    const json *prompt = body.field("prompt");
    if (prompt == nullptr || !prompt->is_string()) {
        refuse("prompt", "is missing, or no string", prompt == nullptr ? "missing" : "invalid_type");
    }
    asked.wish.prompt.push_back(bos);
    for (const char c : prompt->get_ref<const std::string &>()) {
        asked.wish.prompt.push_back(static_cast<unsigned char>(c));
    }
    asked.wish.max_tokens = static_cast<std::uint32_t>(body.whole("max_tokens", 1, 1u << 24, 16));
    const json *temperature = body.field("temperature");
    if (temperature != nullptr) {
        if (!temperature->is_number()) {
            refuse("temperature", "is no number", "invalid_type");
        }
        asked.wish.temperature = temperature->get<double>();
        if (!(asked.wish.temperature >= 0.0 && asked.wish.temperature <= 2.0)) {
            refuse("temperature", "must be from 0 to 2");
        }
        // Below this the largest weight is all that is left, and a division by almost nothing is not finite.
        if (asked.wish.temperature < 1e-6) {
            asked.wish.temperature = 0.0;
        }
    }
    const json *seed = body.field("seed");
    if (seed != nullptr && !seed->is_number_integer()) {
        refuse("seed", "is no whole number", "invalid_type");
    }
    asked.wish.seed = seed == nullptr ? any_seed() : seed->is_number_unsigned() ? seed->get<std::uint64_t>()
                                                                                 : static_cast<std::uint64_t>(seed->get<std::int64_t>());
    asked.wish.stops = stops(body.field("stop"));
    asked.stream = body.flag("stream");
    asked.certificate = body.flag("certificate");
    static_cast<void>(body.whole("n", 1, 1, 1));
    const json *options = body.field("stream_options");
    if (options != nullptr) {
        if (!asked.stream || !options->is_object()) {
            refuse("stream_options", "is for streams, and an object");
        }
        for (const auto &[option, given] : options->items()) {
            if (option != "include_usage") {
                throw ApiError{400, "this server has no such option of streams", "invalid_request_error", "stream_options", "unsupported_parameter"};
            }
            if (!given.is_boolean() && !given.is_null()) {
                refuse("stream_options", "include_usage is not true or false", "invalid_type");
            }
            asked.usage_in_stream = given.is_boolean() && given.get<bool>();
        }
    }
    static_cast<void>(body.field("user")); // says nothing that matters here
    body.nothing_else();
    return asked;
}

std::string completion_json(const Heading &heading, const std::string &text, const Outcome &outcome, const std::optional<Terms> &terms)
{
    json out = with_choice(heading, text, &outcome, terms);
    out["usage"] = usage(outcome);
    return text_of(out);
}

std::string chunk_json(const Heading &heading, const std::string &text, const Outcome *outcome, const std::optional<Terms> &terms)
{
    return text_of(with_choice(heading, text, outcome, terms));
}

std::string usage_json(const Heading &heading, const Outcome &outcome)
{
    json out = frame(heading);
    out["choices"] = json::array();
    out["usage"] = usage(outcome);
    return text_of(out);
}

ApiError failure(const Outcome &outcome)
{
    return {500, outcome.message, "server_error", "", "cache"};
}

} // namespace paged_server
