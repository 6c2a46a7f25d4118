// SaveScope, Sequence::save and Cache::restore. The argument is a folder to write to.
#include "check.hpp"
#include <string>

int main(int count, char **arguments)
{
    const std::array<std::uint8_t, 32> key{1, 2, 3};
    const certkv::SaveScope scope("model"), other("other"), keyed = certkv::SaveScope("model").with_key(key);
    const std::string path = std::string(arguments[count - 1]) + "/saved";
    TRUE(count == 2 && scope.struct_size == sizeof scope && scope.model_bytes == 5 && scope.key == nullptr && keyed.key == key.data());
    const certkv::Cache cache = *certkv::Cache::create(small());
    const certkv::Sequence a = filled(cache);
    REFUSED(CERTKV_FILE, path.c_str(), cache.restore(scope, path.c_str()));
    REFUSED(CERTKV_INVALID_ARGUMENT, "path", a.save(scope, ""));
    REFUSED(CERTKV_NULL_POINTER, "path", a.save(scope, nullptr));
    certkv::SaveScope wrong("model");
    wrong.reserved = 1;
    REFUSED(CERTKV_RESERVED, "scope", a.save(wrong, path.c_str()));
    REFUSED(CERTKV_NULL_POINTER, "cache", certkv::Sequence().save(scope, path.c_str()));
    const auto written = a.save(scope, path.c_str());
    TRUE(written && *written > TOKENS * KV * 4);
    REFUSED(CERTKV_FILE_REFUSED, "model", cache.restore(other, path.c_str()));
    REFUSED(CERTKV_FILE_DAMAGED, "", cache.restore(keyed, path.c_str()));
    {
        const auto restored = cache.restore(scope, path.c_str());
        OK(restored);
        TRUE(*restored->length() == TOKENS && restored->id() != a.id());
    }
    OK(a.save(keyed, path.c_str()));
    OK(cache.restore(keyed, path.c_str()));
    // A name may be no byte at all, from no pointer at all.
    const certkv::SaveScope nameless{std::string_view()};
    TRUE(nameless.model != nullptr && nameless.model_bytes == 0);
    OK(a.save(nameless, path.c_str()));
    REFUSED(CERTKV_FILE_REFUSED, "model", cache.restore(scope, path.c_str()));
    OK(cache.restore(nameless, path.c_str()));
    TRUE(std::remove(path.c_str()) == 0 && cache.snapshot()->sequences == 1);
    return report();
}
