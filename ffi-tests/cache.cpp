// Cache and Config: making, moving, ending, and what every call says of a cache that is not there.
#include "check.hpp"

static_assert(moves_only<certkv::Cache> && sizeof(certkv::Cache) == sizeof(void *));

static void configs()
{
    const certkv::Config fresh;
    certkv_config c;
    TRUE(certkv_config_init(&c, static_cast<std::uint32_t>(sizeof c)) == CERTKV_OK);
    TRUE(fresh.struct_size == sizeof(certkv_config) && fresh.layers == c.layers && fresh.tolerance == c.tolerance);
    TRUE(fresh.max_sequences == c.max_sequences && fresh.format == c.format && fresh.policy == c.policy && fresh.erase == 0);
    certkv::Config config = small();
    config.erase = 2;
    REFUSED(CERTKV_INVALID_ARGUMENT, "erase", certkv::Cache::create(config));
    config = small();
    config.format = "k8";
    REFUSED(CERTKV_FORMAT, "k8", certkv::Cache::create(config));
    config = small();
    config.host_budget = 1;
    REFUSED(CERTKV_BUDGET, "host", certkv::Cache::create(config));
}

static void lives()
{
    auto made = certkv::Cache::create(small());
    OK(made);
    certkv::Cache cache = *std::move(made);
    TRUE(cache && !*made && cache.get() != nullptr); // NOLINT: a moved-from cache is empty.
    certkv::Cache other = std::move(cache);
    TRUE(other && !cache && cache.get() == nullptr);
    cache = std::move(other);
    certkv::Cache &itself = cache;
    cache = std::move(itself);
    TRUE(cache && !other);
    // Assignment ends what was there, and so does a destructor.
    certkv::Cache second = *certkv::Cache::create(small());
    certkv_cache *const before = second.get();
    second = std::move(cache);
    TRUE(certkv_cache_destroy(before) == CERTKV_INVALID_HANDLE);
    certkv_cache *inside = nullptr;
    {
        const certkv::Cache brief = *certkv::Cache::create(small());
        inside = brief.get();
    }
    TRUE(certkv_cache_destroy(inside) == CERTKV_INVALID_HANDLE);
    // What was given up lives on, and may be taken back.
    certkv_cache *raw = second.detach();
    TRUE(raw != nullptr && !second);
    certkv::Cache taken(raw);
    OK(taken.create_sequence());
    OK(taken.close());
    TRUE(!taken);
    OK(taken.close()); // There is nothing left to end.
    TRUE(certkv_cache_destroy(raw) == CERTKV_INVALID_HANDLE);
    certkv::Cache stale(raw);
    REFUSED(CERTKV_INVALID_HANDLE, "cache", stale.create_sequence());
    REFUSED(CERTKV_INVALID_HANDLE, "cache", stale.close());
    TRUE(!stale);
    OK(stale.close());
}

static void empty()
{
    const certkv::Cache none;
    const certkv::Sequence no_sequence;
    const certkv::SaveScope saved("model");
    const certkv::PrefixScope prefix("tenant", "model");
    REFUSED(CERTKV_NULL_POINTER, "cache", none.create_sequence());
    REFUSED(CERTKV_NULL_POINTER, "cache", none.begin(no_sequence));
    REFUSED(CERTKV_NULL_POINTER, "cache", none.restore(saved, "file"));
    REFUSED(CERTKV_NULL_POINTER, "cache", none.create_from(prefix, {}));
    REFUSED(CERTKV_NULL_POINTER, "cache", none.evict_prefixes());
    REFUSED(CERTKV_NULL_POINTER, "cache", none.admit(1));
    REFUSED(CERTKV_NULL_POINTER, "cache", none.scrub(1));
    REFUSED(CERTKV_NULL_POINTER, "cache", none.residue());
    REFUSED(CERTKV_NULL_POINTER, "cache", none.open_ring());
    REFUSED(CERTKV_NULL_POINTER, "cache", none.memory());
    REFUSED(CERTKV_NULL_POINTER, "cache", none.snapshot());
}

// A cache ends before what it lent: nothing dangles, and destructors are quiet.
static void outlived()
{
    certkv::Sequence sequence;
    certkv::Step step;
    {
        const certkv::Cache cache = *certkv::Cache::create(small());
        sequence = filled(cache);
        step = *cache.begin(sequence);
    }
    REFUSED(CERTKV_INVALID_HANDLE, "cache", sequence.length());
    REFUSED(CERTKV_INVALID_HANDLE, "cache", sequence.release());
    TRUE(!sequence);
    OK(step.abort());
}

// A step under a policy of its own.
static void policies()
{
    const certkv::Cache cache = *certkv::Cache::create(small());
    const certkv::Sequence sequence = filled(cache);
    const std::vector<float> row = rows(1, 3), queries(Q, 0.25f);
    std::vector<float> out(Q);
    std::vector<certkv_certificate> certificates(Q_HEADS);
    const auto decode = [&](certkv::Result<certkv::Step> step) {
        OK(step);
        for (std::uint32_t layer = 0; layer < 2; layer++) {
            OK(step->append(layer, row, row));
            OK(step->attend(layer, queries, out, certificates));
        }
        OK(step->finish());
        return certificates[0].status;
    };
    TRUE(decode(cache.begin(sequence, 1, certkv::StepOptions(CERTKV_POLICY_DENSE))) == CERTKV_EXACT);
    TRUE(decode(cache.begin(sequence, 1, certkv::StepOptions(CERTKV_POLICY_PACKED))) == CERTKV_UNCERTIFIED);
    TRUE(decode(cache.begin(sequence, 1, certkv::StepOptions())) == CERTKV_CERTIFIED);
    REFUSED(CERTKV_POLICY, "tol", cache.begin(sequence, 1, certkv::StepOptions(CERTKV_POLICY_CERTIFIED, -1)));
    REFUSED(CERTKV_INVALID_ARGUMENT, "options->policy", cache.begin(sequence, 1, certkv::StepOptions(9)));
}

// Pages in use are what was written, and nothing is left of those that are not.
static void upkeep()
{
    certkv::Config config = small();
    config.erase = 1;
    const certkv::Cache cache = *certkv::Cache::create(config);
    {
        const certkv::Sequence sequence = filled(cache);
        std::vector<certkv_damage> damages(2);
        const auto found = cache.scrub(UINT64_MAX, true, damages);
        OK(found);
        TRUE(found->pages > 0 && found->complete == 1 && found->mended == 0 && found->damaged == 0 && cache.scrub(1)->pages >= 1);
    }
    TRUE(*cache.residue() == 0 && cache.scrub(1)->pages == 0);
}

int main()
{
    upkeep();
    policies();
    configs();
    lives();
    empty();
    outlived();
    return report();
}
