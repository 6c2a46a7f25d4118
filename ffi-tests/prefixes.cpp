// PrefixScope, Sequence::publish, Cache::create_from and Cache::evict_prefixes.
#include "check.hpp"

static std::vector<std::uint32_t> prompt;

static void scopes()
{
    certkv::PrefixScope scope("tenant", "model");
    TRUE(scope.struct_size == sizeof scope && scope.domain_bytes == 6 && scope.model_bytes == 5 && scope.tolerance_class == 0);
    TRUE(scope.adapter == nullptr && scope.salt == nullptr && scope.first_position == 0);
    scope.with_adapter({}).with_salt("ab");
    TRUE(scope.adapter != nullptr && scope.adapter_bytes == 0 && scope.salt_bytes == 2 && std::memcmp(scope.salt, "ab", 2) == 0);
}

static void hits(const certkv::Cache &cache)
{
    const certkv::PrefixScope scope("tenant", "model"), other("other", "model");
    const certkv::PrefixScope adapted = certkv::PrefixScope("tenant", "model").with_adapter("");
    certkv::Sequence a = filled(cache);
    const auto published = a.publish(scope, prompt);
    OK(published);
    TRUE(published->stop == CERTKV_STOP_NONE && published->cached == 2 * BLOCK && published->added == 2 * BLOCK);
    const auto elsewhere = a.publish(other, prompt);
    TRUE(elsewhere && elsewhere->stop == CERTKV_STOP_ELSEWHERE && elsewhere->cached == 0);
    TRUE(a.admit(1)->verdict == CERTKV_FITS && cache.admit(256)->verdict == CERTKV_LACKS);
    TRUE(cache.admit(256)->pages == 2 && cache.admit(256)->units == 0);
    OK(a.release());
    TRUE(cache.admit(256)->verdict == CERTKV_FITS_AFTER_EVICTION && cache.admit(256)->units == 2);
    REFUSED(CERTKV_LENGTH, "tokens", cache.admit(1000));
    auto next = cache.create_from(scope, prompt);
    OK(next);
    TRUE(next->found == 2 * BLOCK && *next->sequence.length() == 2 * BLOCK);
    TRUE(cache.create_from(other, prompt)->found == 0 && cache.create_from(adapted, prompt)->found == 0);
    certkv::PrefixScope later("tenant", "model");
    later.first_position = 1;
    TRUE(cache.create_from(later, prompt)->found == 0 && cache.create_from(scope, {})->found == 0);
    const std::vector<certkv_mark> marks{{BLOCK, "image", 5}};
    certkv::PrefixScope marked("tenant", "model");
    TRUE(cache.create_from(marked.with_marks(marks), prompt)->found == BLOCK && marked.n_marks == 1);
    TRUE(*cache.evict_prefixes() == 0); // In use.
    const certkv::Sequence taken = std::move(next->sequence);
    TRUE(*taken.length() == 2 * BLOCK);
    extend(cache, taken, TOKENS - 2 * BLOCK); // The caller appends what follows.
    TRUE(*taken.length() == TOKENS);
    REFUSED(CERTKV_NULL_POINTER, "tokens", taken.publish(scope, {nullptr, 3}));
    REFUSED(CERTKV_NULL_POINTER, "tokens", cache.create_from(scope, {nullptr, 3}));
    REFUSED(CERTKV_NULL_POINTER, "cache", certkv::Sequence().publish(scope, prompt));
}

int main()
{
    for (std::uint32_t i = 0; i < TOKENS; i++) {
        prompt.push_back(i * i);
    }
    scopes();
    certkv::Config config = small();
    config.prefix_units = 4;
    const certkv::Cache cache = *certkv::Cache::create(config), without = *certkv::Cache::create(small());
    hits(cache);
    TRUE(*cache.evict_prefixes(1) == 1 && *cache.evict_prefixes() == 1);
    const certkv::Sequence b = filled(without);
    const certkv::PrefixScope scope("tenant", "model");
    REFUSED(CERTKV_UNSUPPORTED, "prefix", b.publish(scope, prompt));
    REFUSED(CERTKV_UNSUPPORTED, "prefix", without.create_from(scope, prompt));
    REFUSED(CERTKV_UNSUPPORTED, "prefix", without.evict_prefixes());
    return report();
}
