#include "bind.hpp"
#include "kernels.hpp"

static int64_t size_of(int dtype) { return dtype == kFloat32 ? 4 : 2; }

// The matrices of the slots that a step has, each of `bytes`.
static void matrices(Upcoming& later, Address first, const int64_t* slots_T, int64_t T,
                     int64_t bytes) {
  constexpr int kMost = 32;
  int64_t seen[kMost];
  int count = 0;
  for (int64_t t = 0; t < T && count < kMost; t++) {
    int64_t slot = slots_T[t];
    if (slot < 0) continue;
    int i = 0;
    while (i < count && seen[i] != slot) i++;
    if (i < count) continue;
    seen[count++] = slot;
    add(later, at<char>(first) + slot * bytes, bytes);
  }
}

void bind_adapters(nb::module_& m) {
  m.def("shrink", [](int dtype, Address x, int64_t x_stride, Address down, Address slots, Address h,
                     int64_t T, int64_t I, int64_t R) {
    run(
        [=] {
          active().adapters->shrink(dtype, at(x), x_stride, at(down), at<int64_t>(slots),
                                    at<float>(h), T, I, R);
        },
        false,
        [=](Upcoming& later) {
          matrices(later, down, at<int64_t>(slots), T, R * I * size_of(dtype));
        });
  });
  m.def("expand", [](int dtype, Address h, int64_t h_stride, Address up, Address slots, Address y,
                     int64_t y_stride, int64_t T, int64_t N, int64_t O) {
    run(
        [=] {
          active().adapters->expand(dtype, at<float>(h), h_stride, at(up), at<int64_t>(slots),
                                    at(y), y_stride, T, N, O);
        },
        false,
        [=](Upcoming& later) {
          matrices(later, up, at<int64_t>(slots), T, N * O * size_of(dtype));
        });
  });
}
