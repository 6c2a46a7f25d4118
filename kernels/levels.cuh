// Levels that blocks may have, at most: `MOST_LEVELS` of the host's tables.
#pragma once
constexpr u32 MOST_LEVELS = 8;
