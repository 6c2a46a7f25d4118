// Store, of a class of one's own, of files and of memory; Config::spill_store; Cache::export_prefix, missing_prefix and import_prefix; windows.
// The argument is a folder to write to.
#include "check.hpp"
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>

static_assert(moves_only<certkv::Store> && sizeof(certkv::Store) == sizeof(void *));

struct Seen {
    std::atomic<int> put{0}, got{0}, looked{0}, removed{0}, alive{0};
};

// None of its functions throws: where exceptions are off they have to say so.
class Map {
public:
    explicit Map(Seen &counts) noexcept : seen(counts) { seen.alive++; }
    ~Map() { seen.alive--; }
    void put(certkv::span<certkv_put_item> items) noexcept
    {
        for (certkv_put_item &item : items) {
            seen.put++;
            std::string record(static_cast<const char *>(item.head), item.head_bytes);
            record.append(static_cast<const char *>(item.body), item.body_bytes);
            const std::lock_guard<std::mutex> hold(lock);
            records[name(item.key)] = record;
            item.result = CERTKV_ITEM_DONE;
        }
    }
    void get(certkv::span<certkv_get_item> items) noexcept
    {
        for (certkv_get_item &item : items) {
            seen.got++;
            const std::lock_guard<std::mutex> hold(lock);
            const auto found = records.find(name(item.key));
            item.result = found == records.end() ? CERTKV_ITEM_NOT_FOUND : CERTKV_ITEM_DONE;
            if (found != records.end()) {
                item.bytes = found->second.size();
                std::memcpy(item.buffer, found->second.data(), item.bytes);
            }
        }
    }
    void exists(certkv::span<certkv_key_item> items) noexcept
    {
        for (certkv_key_item &item : items) {
            seen.looked++;
            const std::lock_guard<std::mutex> hold(lock);
            item.result = records.count(name(item.key)) != 0 ? CERTKV_ITEM_DONE : CERTKV_ITEM_NOT_FOUND;
        }
    }
    void remove(certkv::span<certkv_key_item> items) noexcept
    {
        for (certkv_key_item &item : items) {
            seen.removed++;
            const std::lock_guard<std::mutex> hold(lock);
            records.erase(name(item.key));
            item.result = CERTKV_ITEM_DONE;
        }
    }

private:
    static std::string name(const certkv_store_key &key) { return {reinterpret_cast<const char *>(key.bytes), sizeof key.bytes}; }

    Seen &seen;
    std::mutex lock;
    std::map<std::string, std::string> records;
};

static certkv::Config wide()
{
    certkv::Config config = small();
    config.max_tokens = 1024;
    config.max_sequences = 2;
    config.policy = CERTKV_POLICY_DENSE;
    return config;
}

static void spills(const certkv::Store &store)
{
    certkv::Config config = wide();
    const certkv::Cache plain = *certkv::Cache::create(config);
    config.spill_store = store.get();
    config.spill_host_tokens = 64;
    config.spill_in_flight = 4;
    const certkv::Cache cache = *certkv::Cache::create(config);
    const certkv::Sequence a = filled(cache), b = filled(plain);
    for (int i = 0; i < 23; i++) {
        extend(cache, a, TOKENS);
        extend(plain, b, TOKENS);
    }
    const std::vector<float> row = rows(1, 3), query(Q, 0.25f);
    std::vector<float> out[2] = {std::vector<float>(Q), std::vector<float>(Q)};
    const certkv::Sequence *const both[2] = {&a, &b};
    for (std::size_t i = 0; i < 2; i++) {
        const auto ahead = both[i]->prefetch();
        TRUE(ahead && ahead->fetched + ahead->left <= ahead->wanted && (i == 0 || ahead->wanted == 0));
        auto step = (i == 0 ? cache : plain).begin(*both[i]);
        OK(step->append(0, row, row));
        OK(step->attend(0, query, out[i]));
    }
    TRUE(std::memcmp(out[0].data(), out[1].data(), Q * sizeof(float)) == 0 && out[0][0] != 0.0f);
    const auto seen = cache.snapshot();
    TRUE(seen && seen->originals_spilled > 0 && seen->spills.done > 10 && seen->fetches.done > 0 && seen->disk.used > 0);
}

static void carries(const certkv::Store &store)
{
    const std::array<std::uint8_t, 32> secret{1, 2, 3};
    certkv::Config config = wide();
    config.prefix_units = 16;
    config.prefix_secret = secret.data();
    const certkv::Cache one = *certkv::Cache::create(config), other = *certkv::Cache::create(config);
    const certkv::PrefixScope scope("tenant", "model");
    std::vector<std::uint32_t> prompt(TOKENS, 5);
    OK(filled(one).publish(scope, prompt));
    TRUE(*other.missing_prefix(scope, prompt) == 2 && *one.missing_prefix(scope, prompt) == 0);
    TRUE(*one.export_prefix(store, scope, prompt, 1) == 1);
    TRUE(other.missing_prefix(store, scope, prompt)->missing == 2 && other.missing_prefix(store, scope, prompt)->stored == 0);
    TRUE(*other.import_prefix(store, scope, prompt) == 0);
    TRUE(*one.export_prefix(store, scope, prompt) == 2 && other.missing_prefix(store, scope, prompt, 5000)->stored == 2);
    TRUE(*other.import_prefix(store, scope, prompt) == 2 * BLOCK && other.create_from(scope, prompt)->found == 2 * BLOCK);
    REFUSED(CERTKV_NULL_POINTER, "store", one.export_prefix(certkv::Store(), scope, prompt));
    REFUSED(CERTKV_NULL_POINTER, "store", one.missing_prefix(certkv::Store(), scope, prompt));
    REFUSED(CERTKV_NULL_POINTER, "store", one.import_prefix(certkv::Store(), scope, prompt));
    REFUSED(CERTKV_NULL_POINTER, "cache", certkv::Cache().missing_prefix(scope, prompt));
}

static void of_ones_own()
{
    Seen seen;
    {
        auto made = certkv::Store::of(std::make_unique<Map>(seen));
        OK(made);
        certkv::Store store = *std::move(made);
        spills(store);
        TRUE(seen.put > 10 && seen.got > 10 && seen.removed > 10 && seen.looked == 0);
        carries(store);
        TRUE(seen.looked > 0 && seen.alive == 1);
        // A cache keeps the store, not the handle.
        certkv::Config config = wide();
        config.spill_store = store.get();
        certkv::Cache cache = *certkv::Cache::create(config);
        OK(store.close());
        TRUE(!store && seen.alive == 1);
        REFUSED(CERTKV_INVALID_HANDLE, "store", certkv::Cache::create(config));
        OK(cache.close());
        TRUE(seen.alive == 0);
    }
    REFUSED(CERTKV_NULL_POINTER, "backend", certkv::Store::of(std::unique_ptr<Map>()));
    TRUE(seen.alive == 0);
}

static void ready_made(const std::string &folder)
{
    const std::string path = folder + "/store" + std::to_string(__cplusplus); // Units outlive the program.
    {
        const auto memory = certkv::Store::memory();
        const auto files = certkv::Store::files(path.c_str(), 0, CERTKV_FILES_READ_BACK);
        OK(memory);
        OK(files);
        REFUSED(CERTKV_FILE, path.c_str(), certkv::Store::files(path.c_str()));
        spills(*memory);
        spills(*files);
        carries(*memory);
        carries(*files);
    }
    OK(certkv::Store::files(path.c_str())); // Nobody has it open any more.
    REFUSED(CERTKV_INVALID_ARGUMENT, "path", certkv::Store::files(""));
    REFUSED(CERTKV_INVALID_ARGUMENT, "flags", certkv::Store::files(path.c_str(), 0, 8));
    const auto none = certkv::Store::memory(100);
    certkv::Config config = wide();
    config.prefix_units = 4;
    const certkv::Cache cache = *certkv::Cache::create(config);
    const std::vector<std::uint32_t> prompt(TOKENS, 5);
    const certkv::PrefixScope scope("tenant", "model");
    OK(filled(cache).publish(scope, prompt));
    REFUSED(CERTKV_STORE_FULL, "quota", cache.export_prefix(*none, scope, prompt));
}

static void windows()
{
    certkv::Config config = wide();
    const certkv_window window{32, 4, 0};
    config.windows = &window;
    config.n_windows = 1;
    const certkv::Cache cache = *certkv::Cache::create(config);
    const certkv::Sequence a = filled(cache);
    for (int i = 0; i < 15; i++) {
        extend(cache, a, TOKENS);
    }
    TRUE(*a.length() == 16 * TOKENS && cache.memory()->live_pages < 20);
}

int main(int count, char **arguments)
{
    TRUE(count == 2);
    of_ones_own();
    ready_made(arguments[count - 1]);
    windows();
    return report();
}
