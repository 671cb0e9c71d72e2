#include "bind.hpp"
#include "kernels.hpp"

void bind_attention(nb::module_&) {}
