// Sequence: lengths, forks, cuts, swaps, moves, ends.
#include "check.hpp"

static_assert(moves_only<certkv::Sequence>);

static void calls(const certkv::Cache &cache)
{
    certkv::Sequence a = filled(cache);
    TRUE(*a.length() == TOKENS && a.id() != CERTKV_NO_SEQUENCE);
    TRUE(a.chunk(3).sequence == a.id() && a.chunk(3).tokens == 3 && a.chunk().tokens == 1);
    auto fork = a.fork();
    OK(fork);
    TRUE(*fork->length() == TOKENS && fork->id() != a.id());
    OK(fork->truncate(BLOCK));
    TRUE(*fork->length() == BLOCK && *a.length() == TOKENS);
    REFUSED(CERTKV_LENGTH, "17", fork->truncate(BLOCK + 1));
    OK(cache.create_sequence()); // Released at once.
    const auto third = cache.create_sequence();
    OK(third);
    REFUSED(CERTKV_TOO_MANY_SEQUENCES, "3", cache.create_sequence());
    REFUSED(CERTKV_TOO_MANY_SEQUENCES, "3", a.fork());
}

static void swaps(const certkv::Cache &cache)
{
    const certkv::Sequence a = filled(cache);
    TRUE(!*a.is_swapped_out());
    REFUSED(CERTKV_NOT_SWAPPED_OUT, "swapped out", a.swap_in());
    const auto left = a.swap_out();
    TRUE(left && *left > 0 && *a.is_swapped_out());
    REFUSED(CERTKV_SWAPPED_OUT, "swapped out", a.swap_out());
    REFUSED(CERTKV_SWAPPED_OUT, "swapped out", cache.begin(a));
    REFUSED(CERTKV_SWAPPED_OUT, "swapped out", a.fork());
    const auto back = a.swap_in();
    TRUE(back && *back == *left && !*a.is_swapped_out());
}

static void lives(const certkv::Cache &cache)
{
    certkv::Sequence a = filled(cache), b = std::move(a);
    TRUE(b && !a && a.id() == CERTKV_NO_SEQUENCE && *b.length() == TOKENS);
    OK(a.release()); // Empty: nothing.
    REFUSED(CERTKV_NULL_POINTER, "cache", a.length());
    REFUSED(CERTKV_NULL_POINTER, "cache", a.fork());
    REFUSED(CERTKV_NULL_POINTER, "cache", a.truncate(0));
    REFUSED(CERTKV_NULL_POINTER, "cache", a.swap_out());
    REFUSED(CERTKV_NULL_POINTER, "cache", a.swap_in());
    REFUSED(CERTKV_NULL_POINTER, "cache", a.is_swapped_out());
    // Assignment releases what was there.
    certkv::Sequence c = *cache.create_sequence();
    const certkv_sequence old = c.id();
    c = std::move(b);
    certkv::Sequence &itself = c;
    c = std::move(itself);
    TRUE(c && *c.length() == TOKENS);
    certkv::Sequence stale(cache.get(), old);
    REFUSED(CERTKV_UNKNOWN_SEQUENCE, "sequence", stale.length());
    REFUSED(CERTKV_UNKNOWN_SEQUENCE, "sequence", stale.release());
    TRUE(!stale);
    // What was given up lives on, and may be taken back.
    const certkv_sequence id = c.detach();
    TRUE(!c && id != CERTKV_NO_SEQUENCE && cache.snapshot()->sequences == 1);
    c = certkv::Sequence(cache.get(), id);
    // One that a step has is kept.
    {
        auto step = cache.begin(c);
        REFUSED(CERTKV_BUSY_SEQUENCE, "step", c.release());
        TRUE(c);
        REFUSED(CERTKV_BUSY_SEQUENCE, "step", c.length());
        OK(step->abort());
    }
    OK(c.release());
    TRUE(!c && cache.snapshot()->sequences == 0);
    OK(c.release());
    {
        const certkv::Sequence brief = filled(cache);
        TRUE(cache.snapshot()->sequences == 1);
    }
    TRUE(cache.snapshot()->sequences == 0);
}

int main()
{
    certkv::Config config = small();
    config.swap_tokens = 128;
    const certkv::Cache cache = *certkv::Cache::create(config);
    calls(cache);
    TRUE(cache.snapshot()->sequences == 0);
    swaps(cache);
    lives(cache);
    TRUE(cache.memory()->live_pages == 0);
    return report();
}
