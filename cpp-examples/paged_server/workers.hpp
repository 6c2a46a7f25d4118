// Threads that share out one piece of work at a time.
#pragma once
#include <condition_variable>
#include <cstddef>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace paged_server {

class Workers {
public:
    // The thread that calls run() is one of `threads`.
    explicit Workers(unsigned threads);
    ~Workers();
    Workers(const Workers &) = delete;
    Workers &operator=(const Workers &) = delete;

    [[nodiscard]] std::size_t count() const { return threads_.size() + 1; }
    // Calls `work` once for each part from 0 to count() - 1, side by side, and returns when all are done. One caller at a time; `work` must
    // not throw.
    void run(const std::function<void(std::size_t)> &work);

private:
    void serve(std::size_t part);

    std::mutex mutex_;
    std::condition_variable begun_, done_;
    const std::function<void(std::size_t)> *work_ = nullptr;
    std::size_t round_ = 0, running_ = 0;
    bool over_ = false;
    std::vector<std::thread> threads_;
};

} // namespace paged_server
