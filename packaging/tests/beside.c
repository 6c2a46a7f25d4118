/* certkv and another Rust library in one program: each works, and has its own allocator. */
#include <certkv.h>
#include <stdbool.h>
#include <stdio.h>

uint64_t other_taken(void);
bool other_catches(void);

int main(void) {
    certkv_config config;
    certkv_cache *cache = NULL;
    if (!other_catches() || other_taken() == 0) {
        puts("the other library does not work");
        return 1;
    }
    uint64_t before = other_taken();
    certkv_config_init(&config, (uint32_t)sizeof config);
    config.layers = 1;
    config.q_heads = 4;
    config.kv_heads = 2;
    config.head_dim = 64;
    config.max_tokens = 1024;
    if (certkv_cache_create(&config, &cache) != CERTKV_OK || certkv_cache_destroy(cache) != CERTKV_OK) {
        puts("no cache");
        return 1;
    }
    if (other_taken() != before) {
        printf("%d allocations of certkv went to the other library\n", (int)(other_taken() - before));
        return 1;
    }
    puts("side by side");
    return 0;
}
