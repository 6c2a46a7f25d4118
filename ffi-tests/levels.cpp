// Levels of blocks, who decides on them, and fixed scales: configurations that borrow them, changes, refusals. The argument is a folder to write to.
#include "check.hpp"
#include "calibration.h"
#include <array>
#include <string>

static_assert(moves_only<certkv::Scales> && sizeof(certkv::Scales) == sizeof(void *));

static const certkv_level levels[] = {{"t8-v8g64-b16", 256}, {"t4-v4g64-b16", 256}, {"t2-v2g64-b16", 256}};

static certkv::Config leveled()
{
    certkv::Config config = small();
    config.format = nullptr;
    config.levels = levels;
    config.n_levels = 3;
    return config;
}

static void decode(const certkv::Cache &cache, const certkv::Sequence &sequence, bool finish)
{
    const std::vector<float> row = rows(1, 3), query(Q, 0.25f);
    std::vector<float> out(Q);
    std::vector<certkv_certificate> certificates(Q_HEADS);
    auto step = cache.begin(sequence);
    for (std::uint32_t layer = 0; layer < 2; layer++) {
        OK(step->append(layer, row, row));
        OK(step->attend(layer, query, out, certificates));
        for (const certkv_certificate &certificate : certificates) {
            TRUE(held(&certificate));
        }
    }
    if (finish) {
        OK(step->finish());
    } else {
        OK(step->abort());
    }
}

static void by_hand()
{
    const certkv::Cache cache = *certkv::Cache::create(leveled());
    const certkv::Sequence sequence = filled(cache);
    TRUE(*sequence.level(0, 0) == 0);
    OK(sequence.change_level(0, 0, 2));
    TRUE(*sequence.level(0, 0) == 2 && *sequence.level(1, 0) == 0);
    decode(cache, sequence, false);
    REFUSED(CERTKV_LEVEL, "level 3", sequence.change_level(0, 0, 3));
    REFUSED(CERTKV_LEVEL, "not full", sequence.change_level(0, 1000, 1));
    REFUSED(CERTKV_LEVEL, "not full", sequence.level(0, 1000));
    REFUSED(CERTKV_LAYER, "layer", sequence.level(9, 0));
    REFUSED(CERTKV_NULL_POINTER, "cache", certkv::Sequence().change_level(0, 0, 1));
    TRUE(cache.snapshot()->recodes.done == 1);
    TRUE(sequence.control()->decided == 0);
    const std::uint32_t lists[] = {1, 2};
    TRUE(sequence.set_levels(lists)->changed == 2);
    TRUE(*sequence.level(0, 0) == 1 && *sequence.level(1, 0) == 2);
    REFUSED(CERTKV_SHAPE, "levels", sequence.set_levels({lists, 1}));
    certkv::Config config = leveled();
    config.n_levels = 1;
    REFUSED(CERTKV_INVALID_ARGUMENT, "config->levels", certkv::Cache::create(config));
}

static void heads()
{
    certkv::Config config = leveled();
    config.levels_by_head = 1;
    const certkv::Cache cache = *certkv::Cache::create(config);
    const certkv::Sequence sequence = filled(cache);
    OK(sequence.change_head_level(0, 1, 0, 2));
    TRUE(*sequence.head_level(0, 1, 0) == 2 && *sequence.head_level(0, 0, 0) == 0);
    decode(cache, sequence, true);
    REFUSED(CERTKV_INVALID_ARGUMENT, "level_of", sequence.level(0, 0));
    REFUSED(CERTKV_SHAPE, "kv_head", sequence.change_head_level(0, 9, 0, 1));
}

static void decided()
{
    certkv::Control control(240.0);
    TRUE(control.struct_size == sizeof control && control.interval > 0 && control.bytes_per_token == 240.0);
    certkv::Config config = leveled();
    config.control = &control;
    const certkv::Cache cache = *certkv::Cache::create(config);
    const certkv::Sequence sequence = filled(cache);
    decode(cache, sequence, true);
    const certkv_controlled done = *sequence.control();
    TRUE(done.struct_size == sizeof done && done.decided == 2 && done.failed == 0);
    REFUSED(CERTKV_NULL_POINTER, "cache", certkv::Sequence().control());
    decode(cache, sequence, true);
    std::vector<std::uint32_t> layers;
    const auto told = [&layers](const certkv_control_entry &entry) noexcept {
        TRUE(entry.struct_size == sizeof entry && entry.n_levels == 3 && entry.heads == Q_HEADS && entry.attention != nullptr);
        layers.push_back(entry.layer);
    };
    TRUE(sequence.control(told)->failed == 0 && layers == (std::vector<std::uint32_t>{0, 1}));
    REFUSED(CERTKV_NULL_POINTER, "cache", certkv::Sequence().control(told));
    TRUE(layers.size() == 2);
    control.alpha = -1.0;
    REFUSED(CERTKV_INVALID_ARGUMENT, "config->control->alpha", certkv::Cache::create(config));
    REFUSED(CERTKV_INVALID_ARGUMENT, "config->control", [] {
        const certkv::Control none(0.0);
        certkv::Config without = leveled();
        without.control = &none;
        return certkv::Cache::create(without);
    }());
}

static void planned()
{
    certkv::Retention retention(240.0);
    TRUE(retention.struct_size == sizeof retention && retention.interval > 0 && retention.bytes_per_token == 240.0);
    certkv::BoundBudget budget(240.0);
    TRUE(budget.struct_size == sizeof budget && budget.interval > 0 && budget.bytes_per_token == 240.0);
    certkv::Config config = leveled();
    config.retention = &retention;
    const certkv::Cache retains = *certkv::Cache::create(config);
    const certkv::Sequence kept = filled(retains);
    decode(retains, kept, true);
    TRUE(kept.control()->decided == 2);
    config.bound_budget = &budget;
    REFUSED(CERTKV_INVALID_ARGUMENT, "config->bound_budget", certkv::Cache::create(config));
    config.retention = nullptr;
    const certkv::Cache cache = *certkv::Cache::create(config);
    const certkv::Sequence sequence = filled(cache);
    TRUE(sequence.plan_levels(0.05)->planned == 0);
    decode(cache, sequence, true);
    const certkv_level_plan seen = *sequence.plan_levels(0.05);
    std::vector<std::uint32_t> chosen(2 * seen.blocks, 9);
    const certkv_level_plan plan = *sequence.plan_levels(0.05, UINT64_MAX, chosen);
    TRUE(plan.planned == 1 && plan.bytes == seen.bytes && !chosen.empty() && chosen.front() < 3 && chosen.back() < 3);
    REFUSED(CERTKV_INVALID_ARGUMENT, "epsilon", sequence.plan_levels(0.0));
    REFUSED(CERTKV_NULL_POINTER, "cache", certkv::Sequence().plan_levels(0.05));
    TRUE(sequence.control()->decided == 2);
}

static void fixed(const std::string &path)
{
    std::array<std::uint8_t, 32> model{}, other{};
    model.fill(7);
    static unsigned char bytes[CALIBRATION_MOST];
    const std::size_t size = scales_bytes(bytes);
    TRUE(sealed_file(path.c_str(), scales_bytes));
    certkv::Scales scales = *certkv::Scales::open(path.c_str(), model);
    OK(certkv::Scales::open(path.c_str()));
    REFUSED(CERTKV_FILE_REFUSED, "scales", certkv::Scales::open(path.c_str(), other));
    REFUSED(CERTKV_NULL_POINTER, "path", certkv::Scales::open(nullptr));
    OK(certkv::Scales::read({bytes, size}));
    OK(certkv::Scales::read({bytes, size}, model));
    REFUSED(CERTKV_FILE_REFUSED, "model", certkv::Scales::read({bytes, size}, other));
    bytes[100] ^= 1;
    REFUSED(CERTKV_FILE_DAMAGED, "scales", certkv::Scales::read({bytes, size}));
    TRUE(scales.describe()->percentile == 99.5 && scales.describe()->head_dim == DIM);
    certkv::Config config = small();
    config.format = "p8-p8-b16";
    config.scales = scales.get();
    const certkv::Cache cache = *certkv::Cache::create(config);
    config.layers = 3;
    REFUSED(CERTKV_FILE_REFUSED, "config->scales", certkv::Cache::create(config));
    OK(scales.close());
    REFUSED(CERTKV_NULL_POINTER, "scales", scales.describe());
    const certkv::Sequence sequence = filled(cache);
    decode(cache, sequence, false);
    TRUE(cache.snapshot()->saturated > 0);
}

int main(int count, char **given)
{
    if (count != 2) {
        return 2;
    }
    by_hand();
    heads();
    decided();
    planned();
    fixed(std::string(given[1]) + "/scales");
    return report();
}
