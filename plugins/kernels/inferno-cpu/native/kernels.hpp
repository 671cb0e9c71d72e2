// What each instruction set provides: a table of plain functions for each group of kernels. Tensors are contiguous unless a
// stride is given (in elements). Every pointer must be valid for the call; nothing is checked here: Python does, once, when
// it builds the op. What varies from step to step comes in memory (`Address` of a tensor), not by value: a recorded step is
// run again with the same arguments.
#pragma once
#include "attention.hpp"
#include "dense.hpp"
#include "elementwise.hpp"
#include "experts.hpp"
#include "packed.hpp"

struct Isa {
  const char* name;
  const Elementwise* elementwise;
  const DenseLinear* dense;
  const PackedLinear* packed;
  const Attention* attention;
  const Experts* experts;
};

const Isa& active();  // chosen when the module is loaded, or by select()
