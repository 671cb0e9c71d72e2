#include "bind.hpp"
#include "kernels.hpp"

void bind_elementwise(nb::module_& m) {
  m.def("rms_norm", [](int dtype, Address x, int64_t x_stride, Address weight, Address y, int64_t T, int64_t D, float eps) {
    run([=] { active().elementwise->rms_norm(dtype, at(x), x_stride, at(weight), at(y), T, D, eps); });
  });
}
