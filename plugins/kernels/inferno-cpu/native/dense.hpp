// Matrices of float32, bfloat16 and float16.
#pragma once
#include <cstdint>

#include "dtype.hpp"

struct DenseLinear {
};
