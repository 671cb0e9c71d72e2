#include "bind.hpp"
#include "kernels.hpp"

void bind_quantize(nb::module_& m) {
  m.def("quantize", [](int layout, int dtype, Address w, Address importance, Address blocks,
                       Address scales, Address zeros, int64_t N, int64_t K) {
    nb::gil_scoped_release released;
    active().quantizer->quantize(layout, dtype, at(w), at<float>(importance), at<uint8_t>(blocks),
                                 at<uint16_t>(scales), at<uint16_t>(zeros), N, K);
  });
}
