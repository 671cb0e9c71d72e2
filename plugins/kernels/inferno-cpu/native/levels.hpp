// The levels of the kernels: instruction sets that they are compiled for. Needs no OpenMP, and so
// no torch: the plan asks before either is loaded.
#pragma once
#include <string>
#include <vector>

// Names of the levels that this processor and its system can run, best first. The last one is
// "portable".
const std::vector<std::string>& available_levels();

// The level that INFERNO_CPU_LEVEL names, or else the best one. Throws std::invalid_argument, with
// those available, if this machine cannot run the one named.
std::string wanted_level();
