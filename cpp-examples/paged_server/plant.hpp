// Defects on purpose: a test that cannot fail shows nothing, so the load test and the comparison of answers are run against servers that
// have them. They are compiled only with PAGED_SERVER_PLANTS; without it `planted` is false and what it guards is not there.
#pragma once
#include <string>

namespace paged_server {

#ifdef PAGED_SERVER_PLANTS
constexpr bool plants_are_built = true;
inline std::string &plant_in_use()
{
    static std::string name;
    return name;
}
inline bool planted(const char *name)
{
    return plant_in_use() == name;
}
inline void plant(const std::string &name)
{
    plant_in_use() = name;
}
#else
constexpr bool plants_are_built = false;
constexpr bool planted(const char *)
{
    return false;
}
inline void plant(const std::string &)
{
}
#endif

} // namespace paged_server
