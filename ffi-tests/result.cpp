// span, Error and Result, and what the library says of itself.
#include "check.hpp"
#include <array>
#include <string>
#include <thread>
#if __has_include(<span>)
#include <span>
#endif

static std::size_t total(certkv::span<const float> of)
{
    float sum = 0;
    for (float one : of) {
        sum += one;
    }
    return static_cast<std::size_t>(sum) + of.size() * 1000;
}

static void fill(certkv::span<float> these)
{
    for (std::size_t i = 0; i < these.size(); i++) {
        these[i] = 2.0f;
    }
}

struct Base {
    int a;
};
struct Derived : Base {
    int b;
};

static void spans()
{
    std::vector<float> vector(3);
    std::array<float, 2> array{};
    float plain[4];
    fill(vector);
    fill(array);
    fill(plain);
    fill({vector.data(), 1});
    const std::vector<float> fixed = vector;
    const float constant[1] = {2.0f};
    TRUE(total(vector) == 3006 && total(fixed) == 3006 && total(array) == 2004 && total(plain) == 4008 && total(constant) == 1002);
    TRUE(total(std::vector<float>{1.0f, 2.0f}) == 2003 && total({vector.data(), 2}) == 2004 && total({}) == 0);
    const certkv::span<float> mutable_span = vector;
    TRUE(total(mutable_span) == 3006 && mutable_span.data() == vector.data() && !mutable_span.empty());
    TRUE(certkv::span<float>().empty() && certkv::span<float>().data() == nullptr && mutable_span.end() - mutable_span.begin() == 3);
#ifdef __cpp_lib_span
    fill(std::span(plain));
    fill(std::span<float>(vector).first(2));
    TRUE(total(std::span<const float>(fixed)) == 3006);
#endif
    static_assert(!std::is_constructible_v<certkv::span<float>, const std::vector<float> &>);
    static_assert(!std::is_constructible_v<certkv::span<float>, std::vector<float>>);
    static_assert(!std::is_constructible_v<certkv::span<float>, const float (&)[1]>);
    static_assert(!std::is_constructible_v<certkv::span<const float>, std::vector<double> &>);
    static_assert(!std::is_constructible_v<certkv::span<const Base>, std::vector<Derived> &>);
    static_assert(!std::is_constructible_v<certkv::span<const float>, int>);
}

static void errors()
{
    const certkv::Error none, mine(CERTKV_SHAPE, "mine", 3);
    TRUE(none.status() == CERTKV_OK && *none.message() == '\0' && none.cuda_result() == 0);
    TRUE(mine.status() == CERTKV_SHAPE && mine.cuda_result() == 3 && std::string("CERTKV_SHAPE") == mine.name());
    certkv::Error copy = mine;
    TRUE(std::string("mine") == copy.message() && copy.message() != mine.message() && copy.cuda_result() == 3);
    copy = none;
    TRUE(copy.status() == CERTKV_OK && *copy.message() == '\0');
    copy = *&copy;
    copy = mine;
    copy = *&copy;
    TRUE(std::string("mine") == copy.message());
    // Long texts are cut between characters.
    const certkv::Error plain(CERTKV_FILE, std::string(247, 'x').c_str()), longer(CERTKV_FILE, std::string(300, 'x').c_str());
    TRUE(std::string(247, 'x') == plain.message() && std::string(247, 'x') == longer.message());
    std::string wide;
    for (int i = 0; i < 100; i++) {
        wide += "\xe2\x82\xac";
    }
    TRUE(wide.substr(0, 246) == certkv::Error(CERTKV_FILE, wide.c_str()).message());
    // The library's text, and what a thread without a failure has.
    certkv::Config config = small();
    config.head_dim = 65;
    const auto first = certkv::Cache::create(config);
    REFUSED(CERTKV_INVALID_ARGUMENT, "65", first);
    TRUE(certkv::Error::latest().status() == CERTKV_INVALID_ARGUMENT);
    TRUE(std::string(first.error().message()) == certkv::Error::latest().message());
    config = small();
    config.layers = 0;
    REFUSED(CERTKV_INVALID_ARGUMENT, "layer", certkv::Cache::create(config));
    REFUSED(CERTKV_INVALID_ARGUMENT, "65", first); // Its own copy.
    TRUE(std::string(certkv::Error::of(CERTKV_LAYER).message()) == "CERTKV_LAYER"); // Not the text of another failure.
    TRUE(std::string(certkv::Error::of(CERTKV_INVALID_ARGUMENT).message()) == certkv::Error::latest().message());
    std::thread([] { TRUE(certkv::Error::latest().status() == CERTKV_OK); }).join();
}

struct Counted {
    explicit Counted(int *living) : alive(living) { ++*alive; }
    Counted(Counted &&other) noexcept : alive(other.alive) { ++*alive; }
    ~Counted() { --*alive; }
    int *alive;
};

static void results()
{
    certkv::Result<int> seven = 7;
    const certkv::Result<int> eight = 8, failed_one = certkv::Error(CERTKV_LENGTH, "too long");
    TRUE(seven && seven.ok() && seven.status() == CERTKV_OK && *seven == 7 && *eight == 8);
    *seven = 9;
    TRUE(*seven == 9 && *std::move(seven) == 9 && certkv::Result<int>(5).value_or(1) == 5);
    TRUE(!failed_one && certkv::Result<int>(failed_one.error()).value_or(1) == 1);
    REFUSED(CERTKV_LENGTH, "too long", failed_one);
    certkv::Result<std::string> text = std::string("abc");
    const certkv::Result<std::string> fixed = *text;
    TRUE(text->size() == 3 && fixed->size() == 3);
    certkv::Result<void> nothing;
    TRUE(nothing && nothing.ok());
    nothing = certkv::Result<void>(certkv::Error(CERTKV_ORDER, "order"));
    TRUE(!nothing);
    REFUSED(CERTKV_ORDER, "order", nothing);
    int alive = 0;
    {
        certkv::Result<Counted> one{Counted(&alive)};
        certkv::Result<Counted> two = std::move(one);
        Counted three = *std::move(two);
        TRUE(alive == 3);
    }
    TRUE(alive == 0);
}

int main()
{
    spans();
    errors();
    results();
    TRUE(std::string(CERTKV_VERSION_STRING) == certkv::version() && CERTKV_VERSION_NUMBER == certkv::version_number());
    TRUE(std::string("CERTKV_OVERLAP") == certkv::status_name(CERTKV_OVERLAP));
    return report();
}
