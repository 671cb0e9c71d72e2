// Quantized matrices.
#pragma once
#include <cstdint>

#include "dtype.hpp"

struct PackedLinear {
};
