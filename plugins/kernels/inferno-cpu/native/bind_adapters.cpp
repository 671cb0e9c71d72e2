#include "bind.hpp"
#include "kernels.hpp"

void bind_adapters(nb::module_& m) {
  m.def("shrink", [](int dtype, Address x, int64_t x_stride, Address down, Address slots, Address h,
                     int64_t T, int64_t I, int64_t R) {
    run([=] {
      active().adapters->shrink(dtype, at(x), x_stride, at(down), at<int64_t>(slots), at<float>(h),
                                T, I, R);
    });
  });
  m.def("expand", [](int dtype, Address h, int64_t h_stride, Address up, Address slots, Address y,
                     int64_t y_stride, int64_t T, int64_t N, int64_t O) {
    run([=] {
      active().adapters->expand(dtype, at<float>(h), h_stride, at(up), at<int64_t>(slots), at(y),
                                y_stride, T, N, O);
    });
  });
}
