// The kernels of each level: a table of plain functions for each group of kernels.
// Tensors are contiguous unless a stride is given (in elements). Pointers and sizes are trusted:
// Python checks them once, when it builds the op. Values that change from step to step are passed
// in memory, not as arguments, since a replay of a recorded step repeats the arguments.
#pragma once
#include <string>

#include "adapters.hpp"
#include "attention.hpp"
#include "dense.hpp"
#include "elementwise.hpp"
#include "experts.hpp"
#include "packed.hpp"
#include "quantize.hpp"

struct Isa {
  const char* name;
  const Elementwise* elementwise;
  const DenseLinear* dense;
  const PackedLinear* packed;
  const Attention* attention;
  const Experts* experts;
  const Adapters* adapters;  // of the level whose experts are taken
  const Quantizer* quantizer;
};

// Of a level by name. Throws std::invalid_argument if this machine cannot run it.
const Isa& isa_of(const std::string& level);
// From now on, in all threads. Throws as isa_of.
void select_level(const std::string& level);
// Of the level selected, or else wanted_level(), which may throw.
const Isa& active();
