#include "bind.hpp"
#include "kernels.hpp"

void bind_experts(nb::module_& m) {
  m.def("route", [](int dtype, Address x, int64_t x_stride, Address weight, Address bias,
                    Address correction, bool sigmoid, bool normalize, float scale, Address experts,
                    Address weights, int64_t T, int64_t D, int64_t E, int64_t K) {
    Routing routing{sigmoid, normalize, scale};
    run([=] {
      active().experts->route(dtype, at(x), x_stride, at<float>(weight), at<float>(bias),
                              at<float>(correction), routing, at<int64_t>(experts),
                              at<float>(weights), T, D, E, K);
    });
  });
  m.def("dispatch", [](Address experts, Address tokens, Address starts, Address places, int64_t T,
                       int64_t E, int64_t K) {
    run([=] {
      if (!active().experts->dispatch(at<int64_t>(experts), at<int64_t>(tokens),
                                      at<int32_t>(starts), at<int64_t>(places), T, E, K))
        throw nb::index_error("expert id out of range");
    });
  });
  m.def("combine", [](int dtype, Address y, Address places, Address weights, Address out, int64_t T,
                      int64_t D, int64_t K) {
    run([=] {
      active().experts->combine(dtype, at(y), at<int64_t>(places), at<float>(weights), at(out), T,
                                D, K);
    });
  });
}
