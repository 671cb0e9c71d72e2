// The Python module that the plan asks, before torch and its OpenMP are loaded.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "levels.hpp"

NB_MODULE(_levels, m) {
  m.doc() = "Which levels of the kernels this machine runs.";
  m.def("available", available_levels);
  m.def("wanted", wanted_level);
}
