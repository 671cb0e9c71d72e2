#include "bind.hpp"
#include "kernels.hpp"

void bind_packed(nb::module_&) {}
