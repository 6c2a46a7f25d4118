// The page at `/`, and the numbers that it shows.
#pragma once
#include "completion.hpp"
#include "scheduler.hpp"

#include <deque>
#include <mutex>
#include <string>
#include <vector>

namespace paged_server {

// The last completions.
class Recent {
public:
    struct Entry {
        std::string id;
        Outcome outcome;
    };
    void add(const std::string &id, const Outcome &outcome);
    [[nodiscard]] std::vector<Entry> newest_first() const;

private:
    mutable std::mutex mutex_;
    std::deque<Entry> entries_;
};

// HTML that loads nothing from anywhere but /state.
std::string page();
std::string state_json(const Scheduler &scheduler, const Terms &terms, const Recent &recent);

} // namespace paged_server
