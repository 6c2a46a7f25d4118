// value_or_throw: values come out, errors are thrown with their status and text, and unwinding ends what was begun.
#include "check.hpp"
#include <string>

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
    return report();
}
