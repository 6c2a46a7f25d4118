#include "request.hpp"

#include <utility>

namespace paged_server {

void Request::push(const std::string &text)
{
    {
        const std::lock_guard lock(mutex_);
        text_ += text;
    }
    news_.notify_one();
}

void Request::finish(Outcome outcome)
{
    {
        const std::lock_guard lock(mutex_);
        outcome_ = std::move(outcome);
        over_ = true;
    }
    news_.notify_one();
}

bool Request::wait(std::chrono::milliseconds longest, std::string &text)
{
    std::unique_lock lock(mutex_);
    news_.wait_for(lock, longest, [this] { return over_ || !text_.empty(); });
    text = std::exchange(text_, {});
    return over_;
}

} // namespace paged_server
