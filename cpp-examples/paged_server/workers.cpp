#include "workers.hpp"

namespace paged_server {

Workers::Workers(unsigned threads)
{
    for (std::size_t part = 1; part < threads; part++) {
        threads_.emplace_back([this, part] { serve(part); });
    }
}

Workers::~Workers()
{
    {
        const std::lock_guard lock(mutex_);
        over_ = true;
    }
    begun_.notify_all();
    for (std::thread &thread : threads_) {
        thread.join();
    }
}

void Workers::run(const std::function<void(std::size_t)> &work)
{
    {
        const std::lock_guard lock(mutex_);
        work_ = &work;
        running_ = threads_.size();
        round_++;
    }
    begun_.notify_all();
    work(0);
    std::unique_lock lock(mutex_);
    done_.wait(lock, [this] { return running_ == 0; });
}

void Workers::serve(std::size_t part)
{
    std::unique_lock lock(mutex_);
    for (std::size_t seen = 0;;) {
        begun_.wait(lock, [&] { return over_ || round_ != seen; });
        if (over_) {
            return;
        }
        seen = round_;
        const std::function<void(std::size_t)> &work = *work_;
        lock.unlock();
        work(part);
        lock.lock();
        if (--running_ == 0) {
            done_.notify_one();
        }
    }
}

} // namespace paged_server
