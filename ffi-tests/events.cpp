// Cache::events, Cache::cached_prefixes and Cache::prefix_key: a router's list of what is cached.
#include "check.hpp"

static bool same(const certkv_store_key &a, const certkv_store_key &b) { return std::memcmp(a.bytes, b.bytes, sizeof a.bytes) == 0; }

int main()
{
    std::vector<std::uint32_t> prompt(TOKENS), tokens(4 * BLOCK);
    for (std::size_t i = 0; i < prompt.size(); i++) {
        prompt[i] = static_cast<std::uint32_t>(i + 1);
    }
    std::vector<certkv_prefix_event> events(4);
    const certkv::PrefixScope scope("tenant", "model");
    certkv::Config config = small();
    config.prefix_units = 4;
    config.prefix_events = 3;
    const certkv::Cache cache = *certkv::Cache::create(config), without = *certkv::Cache::create(small());
    certkv::Sequence a = filled(cache);
    OK(a.publish(scope, prompt));
    const auto read = cache.events(0, events, tokens);
    OK(read);
    TRUE(read->read == 2 && read->next == 2 && read->lost == 0 && read->unit_tokens == BLOCK);
    const auto key = cache.prefix_key(scope, prompt);
    OK(key);
    TRUE(same(events[1].key, *key) && same(events[1].parent, events[0].key) && tokens[BLOCK] == prompt[BLOCK]);
    TRUE(same(events[0].parent, *cache.prefix_key(scope, {})));
    TRUE(cache.events(1, events)->read == 1 && events[0].number == 1);
    certkv_events_read now{};
    OK(cache.cached_prefixes(events, tokens, now));
    TRUE(now.read == 2 && now.next == 2 && events[1].kind == CERTKV_EVENT_STORED);
    REFUSED(CERTKV_SHAPE, "events", cache.cached_prefixes({events.data(), 1}, {}, now));
    REFUSED(CERTKV_SHAPE, "tokens", cache.cached_prefixes(events, {tokens.data(), BLOCK}, now));
    REFUSED(CERTKV_SHAPE, "tokens", cache.events(0, events, {tokens.data(), 1}));
    REFUSED(CERTKV_INVALID_ARGUMENT, "from", cache.events(3, events));
    REFUSED(CERTKV_NULL_POINTER, "events", cache.events(0, {nullptr, 1}));
    REFUSED(CERTKV_NULL_POINTER, "tokens", cache.events(0, events, {nullptr, 1}));
    REFUSED(CERTKV_NULL_POINTER, "tokens", cache.prefix_key(scope, {nullptr, 1}));
    REFUSED(CERTKV_UNSUPPORTED, "prefix_events", without.events(0, events));
    REFUSED(CERTKV_UNSUPPORTED, "prefix_events", without.cached_prefixes(events, tokens, now));
    REFUSED(CERTKV_UNSUPPORTED, "prefix_units", without.prefix_key(scope, prompt));
    // What a store has is told, too, under the same name.
    const certkv::Store store = *certkv::Store::memory();
    TRUE(*cache.export_prefix(store, scope, prompt) == 2);
    OK(a.release());
    TRUE(*cache.evict_prefixes() == 2);
    const auto late = cache.events(2, events);
    TRUE(late->read == 3 && late->lost == 1 && events[0].kind == CERTKV_EVENT_EXPORTED && same(events[0].key, *key) && events[0].unit == 1);
    TRUE(events[1].kind == CERTKV_EVENT_REMOVED && same(events[1].key, *key));
    // Moves have numbers of their own.
    config.swap_tokens = 64;
    config.move_events = 4;
    const certkv::Cache swapping = *certkv::Cache::create(config);
    const certkv::Sequence b = filled(swapping);
    OK(b.swap_out());
    std::vector<certkv_move_event> moves(4);
    const auto moved = swapping.moves(0, moves);
    TRUE(moved->read == 2 && moved->next == 2 && moves[1].kind == CERTKV_MOVE_SWAPPED_OUT && moves[1].sequence == b.id());
    REFUSED(CERTKV_INVALID_ARGUMENT, "from", swapping.moves(3, moves));
    REFUSED(CERTKV_UNSUPPORTED, "move_events", cache.moves(0, moves));
    return report();
}
