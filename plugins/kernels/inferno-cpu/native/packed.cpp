// Quantized matrices. Compiled once for each instruction set.
#include "packed.hpp"

#include "parallel.hpp"
#include "simd.hpp"

namespace {
}  // namespace

extern const PackedLinear INFERNO_EXPORT(packed);
const PackedLinear INFERNO_EXPORT(packed) = {};
