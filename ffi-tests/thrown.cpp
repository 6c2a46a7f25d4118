// value_or_throw: values come out, errors are thrown with their status and text, and unwinding ends what was begun. What a store of the
// program's own throws is a status of the call that needed it; what its log throws is nothing.
#include "check.hpp"
#include <memory>
#include <stdexcept>
#include <string>

// Does the first item of a batch, and throws; or all, once it is told to.
struct Throwing {
    explicit Throwing(const bool &told) : calm(told) {}
    template <class Item>
    void first(certkv::span<Item> items, certkv_item_result result)
    {
        items[0].result = result;
        throw std::runtime_error("no more");
    }
    void put(certkv::span<certkv_put_item> items) { first(items, CERTKV_ITEM_FULL); }
    void get(certkv::span<certkv_get_item>) { throw 5; }
    void exists(certkv::span<certkv_key_item> items)
    {
        for (certkv_key_item &item : items) {
            if (!calm) {
                first(items, CERTKV_ITEM_DONE);
            }
            item.result = CERTKV_ITEM_DONE;
        }
    }
    void remove(certkv::span<certkv_key_item> items) { first(items, CERTKV_ITEM_DONE); }

    const bool &calm;
};

static void stores()
{
    bool calm = false;
    certkv::Config config = small();
    config.prefix_units = 8;
    const certkv::Store store = certkv::Store::of(std::make_unique<Throwing>(calm)).value_or_throw();
    const certkv::Cache cache = certkv::Cache::create(config).value_or_throw(), other = certkv::Cache::create(config).value_or_throw();
    const certkv::PrefixScope scope("tenant", "model");
    const std::vector<std::uint32_t> prompt(240, 5);
    {
        const certkv::Sequence long_one = filled(cache);
        extend(cache, long_one, 200);
        static_cast<void>(long_one.publish(scope, prompt).value_or_throw());
    }
    REFUSED(CERTKV_STORE_FULL, "room", cache.export_prefix(store, scope, prompt));
    REFUSED(CERTKV_STORE_FAILED, "failed", other.import_prefix(store, scope, prompt));
    REFUSED(CERTKV_STORE_FAILED, "failed", other.missing_prefix(store, scope, prompt));
    calm = true;
    TRUE(other.missing_prefix(store, scope, prompt).value_or_throw().stored == 15);
    // A cache that spills to it keeps what it has room for.
    config = small();
    config.spill_store = store.get();
    config.spill_host_tokens = 32;
    config.spill_in_flight = 2;
    config.spill_deadline_ms = 500;
    const certkv::Cache spilling = certkv::Cache::create(config).value_or_throw();
    certkv::Sequence sequence = filled(spilling);
    extend(spilling, sequence, TOKENS);
    sequence.release().value_or_throw();
}

// A log that throws is heard, and what it throws ends there.
static void logs()
{
    struct {
        int said = 0;
        void operator()(certkv_log_level, std::string_view, std::string_view)
        {
            said++;
            throw std::runtime_error("no more");
        }
    } loud;
    certkv::set_log(CERTKV_LOG_INFO, loud).value_or_throw();
    certkv::Cache::create(small()).value_or_throw().close().value_or_throw();
    TRUE(loud.said == 2);
    certkv::unset_log().value_or_throw();
}

int main()
{
    certkv::Config config = small();
    certkv::Cache cache = certkv::Cache::create(config).value_or_throw();
    certkv::Sequence sequence = cache.create_sequence().value_or_throw();
    const std::vector<float> row = rows(1, 1);
    int caught = 0;
    try {
        certkv::Step step = cache.begin(sequence).value_or_throw();
        step.append(0, row, row).value_or_throw();
        step.append(7, row, row).value_or_throw();
        TRUE(false);
    } catch (const certkv::Exception &e) {
        caught++;
        TRUE(e.error().status() == CERTKV_LAYER && std::string(e.what()) == e.error().message() && std::strstr(e.what(), "7") != nullptr);
    }
    TRUE(sequence.length().value_or_throw() == 0); // The step was aborted on the way.
    config.kv_heads = 3;
    try {
        cache = certkv::Cache::create(config).value_or_throw();
        TRUE(false);
    } catch (const std::exception &e) {
        caught++;
        TRUE(std::strstr(e.what(), "3") != nullptr);
    }
    TRUE(cache && caught == 2);
    sequence.release().value_or_throw();
    cache.close().value_or_throw();
    stores();
    logs();
    return report();
}
