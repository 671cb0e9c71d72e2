// Attention over the paged cache.
#pragma once
#include <cstdint>

#include "dtype.hpp"

struct Attention {
};
