// Numbers in Prometheus' text form.
#pragma once
#include "scheduler.hpp"

#include <string>

namespace paged_server {

std::string metrics(const Scheduler &scheduler);

} // namespace paged_server
