// Checks that these programs make, and how they say how it went.
#pragma once
#include <cstdio>

inline int checks = 0, failed = 0;

inline void check(int line, const char *what, bool right)
{
    checks++;
    if (!right) {
        failed++;
        std::printf("line %d: %s\n", line, what);
    }
}
#define TRUE(what) check(__LINE__, #what, static_cast<bool>(what))

// The result of main.
inline int report()
{
    std::printf("checks %d failed %d\n", checks, failed);
    return failed != 0;
}
