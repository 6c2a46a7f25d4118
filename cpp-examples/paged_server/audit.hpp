// Whether a server that has nothing to do any more holds nothing any more.
#pragma once
#include "scheduler.hpp"

#include <string>
#include <vector>

namespace paged_server {

// Forgets cached prefixes, then names what is left in the cache, and every figure of its memory that the planner had said otherwise.
std::vector<std::string> leaks(const Scheduler &scheduler);

} // namespace paged_server
