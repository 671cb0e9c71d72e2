// Attention over the paged cache. Compiled once for each instruction set.
#include "attention.hpp"

#include "parallel.hpp"
#include "simd.hpp"

namespace {
}  // namespace

extern const Attention INFERNO_EXPORT(attention);
const Attention INFERNO_EXPORT(attention) = {};
