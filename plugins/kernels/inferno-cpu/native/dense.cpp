// Matrices of float32, bfloat16 and float16. Compiled once for each instruction set.
#include "dense.hpp"

#include "parallel.hpp"
#include "simd.hpp"

namespace {
}  // namespace

extern const DenseLinear INFERNO_EXPORT(dense);
const DenseLinear INFERNO_EXPORT(dense) = {};
