#include <nanobind/stl/string.h>

#include <chrono>
#include <stdexcept>
#include <string>

#include "bind.hpp"
#include "kernels.hpp"

void bind_dense(nb::module_& m) {
  m.def("dense_repack",
        [](int dtype, Address w, int64_t row_stride, Address panels, int64_t N, int64_t K) {
          nb::gil_scoped_release released;
          active().dense->repack(dtype, at(w), row_stride, at(panels), N, K);
        });
  m.def("dense_repack_table", [](int w_dtype, Address w, int64_t row_stride, Address scales,
                                 Address panels, int64_t N, int64_t K) {
    nb::gil_scoped_release released;
    active().dense->repack_table(w_dtype, at(w), row_stride, at<float>(scales), at(panels), N, K);
  });
  m.def("dense_repack_fp8", [](int w_dtype, Address w, int64_t row_stride, Address scales,
                               Address panels, int64_t N, int64_t K) {
    nb::gil_scoped_release released;
    return active().dense->repack_fp8(w_dtype, at(w), row_stride, at<float>(scales), at(panels), N,
                                      K);
  });
  m.def("dense_matmul",
        [](int w_dtype, int x_dtype, Address x, int64_t x_stride, Address panels, Address bias,
           int y_dtype, Address y, int64_t M, int64_t N, int64_t K) {
          run([=] {
            active().dense->matmul(w_dtype, x_dtype, at(x), x_stride, at(panels), at<float>(bias),
                                   y_dtype, at(y), M, N, K);
          });
        });
  m.def("dense_grouped",
        [](int w_dtype, int x_dtype, Address x, int64_t x_stride, Address panels, Address bias,
           Address y, Address starts, int64_t E, int64_t N, int64_t K) {
          run([=] {
            active().dense->grouped(w_dtype, x_dtype, at(x), x_stride, at(panels), at<float>(bias),
                                    at(y), at<int32_t>(starts), E, N, K);
          });
        });
  m.def("dense_argmax", [](int w_dtype, int x_dtype, Address x, int64_t x_stride, Address panels,
                           Address ids, int64_t M, int64_t N, int64_t K) {
    run([=] {
      active().dense->argmax(w_dtype, x_dtype, at(x), x_stride, at(panels), at<int64_t>(ids), M, N,
                             K);
    });
  });
  m.def("dense_rows", [](int w_dtype, int y_dtype, Address panels, Address ids, Address y,
                         int64_t T, int64_t N, int64_t K) {
    run([=] {
      if (!active().dense->rows(w_dtype, y_dtype, at(panels), at<int64_t>(ids), at(y), T, N, K))
        throw nb::index_error("row id out of range");
    });
  });
  m.def("dense_read",
        [](Address data, int64_t bytes) { return active().dense->read(at(data), bytes); });
  m.def(
      "peak",
      [](const std::string& type) {
        if (type != "float32" && type != "bfloat16" && type != "int8")
          throw std::invalid_argument("no products of " + type);
        nb::gil_scoped_release released;
        auto begin = std::chrono::steady_clock::now();
        double operations = type == "int8"
                                ? active().packed->peak()
                                : active().dense->peak(type == "bfloat16" ? kBFloat16 : kFloat32);
        std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
        return operations / taken.count();
      },
      "Operations a second of the instruction that products of float32, bfloat16 or int8 use, on "
      "registers, on all threads. Takes some milliseconds: use the best of a few calls.");
}
