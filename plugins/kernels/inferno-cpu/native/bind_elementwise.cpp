#include "bind.hpp"
#include "kernels.hpp"

void bind_elementwise(nb::module_& m) {
  m.def("rms_norm", [](int dtype, Address x, int64_t token_stride, int64_t head_stride, int64_t T,
                       int64_t H, int64_t C, Address weight, bool wide, float eps, Address y) {
    Heads heads{at(x), token_stride, head_stride, T, H, C};
    Norm norm{at(weight), wide, eps};
    run([=] { active().elementwise->rms_norm(dtype, heads, norm, at(y)); });
  });
  m.def("add_rms_norm",
        [](int dtype, Address x, int64_t x_stride, Address delta, int64_t delta_stride,
           Address weight, bool wide, float eps, Address sum, Address y, int64_t T, int64_t D) {
          Norm norm{at(weight), wide, eps};
          run([=] {
            active().elementwise->add_rms_norm(dtype, at(x), x_stride, at(delta), delta_stride,
                                               norm, at(sum), at(y), T, D);
          });
        });
  m.def("add_layer_norm",
        [](int dtype, Address x, int64_t x_stride, Address delta, int64_t delta_stride,
           Address weight, bool wide, float eps, Address bias, Address y, int64_t T, int64_t D) {
          Norm norm{at(weight), wide, eps};
          run([=] {
            active().elementwise->add_layer_norm(dtype, at(x), x_stride, at(delta), delta_stride,
                                                 norm, at(bias), at(y), T, D);
          });
        });
  m.def("rope",
        [](int dtype, Address x, int64_t token_stride, int64_t head_stride, int64_t T, int64_t H,
           int64_t C, Address cos, Address sin, int64_t E, bool interleaved, Address y) {
          Heads heads{at(x), token_stride, head_stride, T, H, C};
          run([=] {
            active().elementwise->rope(dtype, heads, at<float>(cos), at<float>(sin), E, interleaved,
                                       at(y));
          });
        });
  m.def("norm_rope", [](int dtype, Address x, int64_t token_stride, int64_t head_stride, int64_t T,
                        int64_t H, int64_t C, Address weight, bool wide, float eps, Address cos,
                        Address sin, int64_t E, bool interleaved, Address y) {
    Heads heads{at(x), token_stride, head_stride, T, H, C};
    Norm norm{at(weight), wide, eps};
    run([=] {
      active().elementwise->norm_rope(dtype, heads, norm, at<float>(cos), at<float>(sin), E,
                                      interleaved, at(y));
    });
  });
  m.def("silu_mul", [](int dtype, Address gate, int64_t gate_stride, Address up, int64_t up_stride,
                       Address y, int64_t T, int64_t I) {
    run([=] {
      active().elementwise->silu_mul(dtype, at(gate), gate_stride, at(up), up_stride, at(y), T, I);
    });
  });
  m.def("gelu", [](int dtype, Address x, int64_t x_stride, int64_t T, int64_t I) {
    run([=] { active().elementwise->gelu(dtype, at(x), x_stride, T, I); });
  });
  m.def("argmax", [](int dtype, Address x, int64_t x_stride, Address ids, int64_t T, int64_t V) {
    run([=] { active().elementwise->argmax(dtype, at(x), x_stride, at<int64_t>(ids), T, V); });
  });
  m.def("gather", [](int dtype, Address ids, Address table, Address y, int64_t T, int64_t V,
                     int64_t D) {
    run([=] { active().elementwise->gather(dtype, at<int64_t>(ids), at(table), at(y), T, V, D); });
  });
}
