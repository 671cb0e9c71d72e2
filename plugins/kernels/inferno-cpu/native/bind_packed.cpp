#include "bind.hpp"
#include "kernels.hpp"

void bind_packed(nb::module_& m) {
  m.def("packed_panel_bytes",
        [](int layout, int64_t K) { return active().packed->panel_bytes(layout, K); });
  m.def("packed_repack", [](int layout, Address rows, int64_t row_bytes, Address scales,
                            Address zeros, Address panels, int64_t N, int64_t K) {
    nb::gil_scoped_release released;
    active().packed->repack(layout, at(rows), row_bytes, at(scales), at(zeros), at(panels), N, K);
  });
  m.def("packed_matmul", [](int layout, Address panels, int x_dtype, Address x, int y_dtype,
                            Address y, Address bias, int64_t M, int64_t N, int64_t K) {
    run(
        [=] {
          active().packed->matmul(layout, at(panels), x_dtype, at(x), y_dtype, at(y), at(bias), M,
                                  N, K);
        },
        true);
  });
  m.def("packed_grouped",
        [](int layout, Address panels, int x_dtype, Address x, int y_dtype, Address y, Address bias,
           Address starts, int64_t E, int64_t N, int64_t K) {
          run([=] {
            active().packed->grouped(layout, at(panels), x_dtype, at(x), y_dtype, at(y), at(bias),
                                     at<int32_t>(starts), E, N, K);
          });
        });
  m.def("packed_argmax", [](int layout, Address panels, int x_dtype, Address x, Address ids,
                            int64_t M, int64_t N, int64_t K) {
    run([=] {
      active().packed->argmax(layout, at(panels), x_dtype, at(x), at<int64_t>(ids), M, N, K);
    });
  });
  m.def("packed_rows", [](int layout, Address panels, Address ids, int y_dtype, Address y,
                          int64_t M, int64_t N, int64_t K) {
    run([=] {
      active().packed->rows(layout, at(panels), at<int64_t>(ids), y_dtype, at(y), M, N, K);
    });
  });
}
