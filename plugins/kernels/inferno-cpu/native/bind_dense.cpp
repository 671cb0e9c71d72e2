#include "bind.hpp"
#include "kernels.hpp"

void bind_dense(nb::module_&) {}
