// The Python module: the choice of level and thread count, recordings, and the ops of the
// bind_*.cpp files. Tensors are passed as addresses (`Tensor.data_ptr()`), so that no torch header
// is needed and a call costs well under 1 us.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "bind.hpp"
#include "kernels.hpp"
#include "levels.hpp"
#include "parallel.hpp"

// The tables that CMakeLists.txt has compiled.
#define DECLARE(level)                          \
  extern const Elementwise elementwise_##level; \
  extern const DenseLinear dense_##level;       \
  extern const PackedLinear packed_##level;     \
  extern const Attention attention_##level;     \
  extern const Experts experts_##level;
DECLARE(portable)
DECLARE(sse42)
DECLARE(avx2)
DECLARE(avxvnni)
DECLARE(avx512vnni)
DECLARE(avx512)
DECLARE(amx)

namespace {

// The kernels that each level takes. Another level's, where its own instructions would change
// nothing: AVX-VNNI only multiplies bytes, AMX only multiplies many rows, and BF16 only floats.
#define TAKES(name, elementwise, dense, packed, attention, experts)                             \
  Isa {                                                                                         \
    name, &elementwise_##elementwise, &dense_##dense, &packed_##packed, &attention_##attention, \
        &experts_##experts                                                                      \
  }
// clang-format off
const Isa kIsas[] = {
    //      level         elementwise dense       packed      attention   experts
#if defined(INFERNO_HAS_AMX)
    TAKES("amx",         avx512,     amx,        avx512vnni, avx512,     avx512vnni),
#endif
#if defined(INFERNO_HAS_AVX512)
    TAKES("avx512",      avx512,     avx512,     avx512vnni, avx512,     avx512vnni),
#endif
#if defined(INFERNO_HAS_AVX512VNNI)
    TAKES("avx512vnni",  avx512vnni, avx512vnni, avx512vnni, avx512vnni, avx512vnni),
#endif
#if defined(INFERNO_HAS_AVXVNNI)
    TAKES("avxvnni",     avx2,       avx2,       avxvnni,    avx2,       avx2),
#endif
#if defined(INFERNO_HAS_AVX2)
    TAKES("avx2",        avx2,       avx2,       avx2,       avx2,       avx2),
#endif
#if defined(INFERNO_HAS_SSE42)
    TAKES("sse4.2",      sse42,      sse42,      sse42,      sse42,      sse42),
#endif
    TAKES("portable",    portable,   portable,   portable,   portable,   portable),
};
// clang-format on

const Isa& isa_of(const std::string& level) {
  for (const std::string& name : available_levels())
    if (name == level)
      for (const Isa& isa : kIsas)
        if (name == isa.name) return isa;
  throw std::invalid_argument("this machine cannot run " + level);
}

const Isa* chosen = nullptr;

}  // namespace

const Isa& active() {
  if (!chosen) chosen = &isa_of(wanted_level());
  return *chosen;
}

Recording* recording = nullptr;

NB_MODULE(_native, m) {
  nb::set_leak_warnings(false);  // objects still alive at exit are not leaks of the bindings
  m.doc() =
      "CPU kernels. Addresses and sizes are trusted: only inferno_cpu's own modules call this.";
  m.def("available", available_levels, "Levels that this machine can run, best first.");
  m.def("selected", [] { return active().name; });
  m.def(
      "select", [](const std::string& level) { chosen = &isa_of(level); },
      "Use this level from now on; for tests and benchmarks.");
  m.def("set_threads", [](int n) { inferno_threads = n < 1 ? 1 : n; });
  m.def("threads", [] { return inferno_threads; });
  nb::class_<Recording>(
      m, "Recording",
      "Records every op, with its addresses, while entered as a context; replay() runs them again.")
      .def(nb::init<>())
      .def("__enter__",
           [](nb::object self) {
             if (recording) throw std::logic_error("a step is being recorded already");
             recording = nb::cast<Recording*>(self);
             return self;
           })
      .def("__exit__", [](Recording&, nb::args) { recording = nullptr; })
      .def("__len__", [](Recording& self) { return self.size(); })
      .def(
          "replay",
          [](Recording& self) {
            parallel_region(
                [](void* ops) {
                  for (const auto& op : *static_cast<Recording*>(ops)) op();
                },
                &self);
          },
          nb::call_guard<nb::gil_scoped_release>());
  bind_elementwise(m);
  bind_dense(m);
  bind_packed(m);
  bind_attention(m);
  bind_experts(m);
}
