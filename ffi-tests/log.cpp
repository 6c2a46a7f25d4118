// set_log and unset_log: a sink of the program's own.
#include "check.hpp"
#include <string>

struct Lines {
    std::vector<std::string> lines;
    void operator()(certkv_log_level level, std::string_view target, std::string_view message) noexcept
    {
        lines.push_back(std::to_string(level) + " " + std::string(target) + " " + std::string(message));
    }
};

int main()
{
    Lines heard;
    REFUSED(CERTKV_INVALID_ARGUMENT, "level", certkv::set_log(9, heard));
    OK(certkv::set_log(CERTKV_LOG_DEBUG, heard));
    certkv::Config config = small();
    config.prefix_units = 4;
    certkv::Cache cache = *certkv::Cache::create(config);
    TRUE(heard.lines.size() == 1 && heard.lines[0].find("3 certkv cache created on the host: 2 layers") == 0);
    const certkv::Sequence a = filled(cache);
    const std::vector<std::uint32_t> prompt(TOKENS, 1);
    heard.lines.clear();
    OK(a.publish(certkv::PrefixScope("tenant", "model"), prompt));
    TRUE(heard.lines.size() == 1 && heard.lines[0].find("4 certkv publish asked=40 added=32 in ") == 0);
    heard.lines.clear();
    // A cache with a log of its own beside it, and a silent one.
    Lines own;
    {
        const certkv::CacheLog log(CERTKV_LOG_INFO, own), nothing;
        certkv::Config other = small();
        other.log = &log;
        certkv::Cache mine = *certkv::Cache::create(other);
        other.log = &nothing;
        OK(certkv::Cache::create(other)->close());
        TRUE(own.lines.size() == 1 && own.lines[0].find("3 certkv cache created") == 0 && heard.lines.empty());
        OK(mine.close());
        TRUE(own.lines.size() == 2 && own.lines[1] == "3 certkv cache destroyed" && heard.lines.empty());
        const certkv::CacheLog wrong(9, own);
        other.log = &wrong;
        REFUSED(CERTKV_INVALID_ARGUMENT, "config->log->level", certkv::Cache::create(other));
    }
    TRUE(heard.lines.size() == 1);
    heard.lines.clear();
    OK(certkv::unset_log());
    OK(cache.close());
    TRUE(heard.lines.empty());
    return report();
}
