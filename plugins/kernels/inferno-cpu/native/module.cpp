// The Python module: the choice of instruction set and thread count, recordings, and the ops of the
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
#include "parallel.hpp"

#define DECLARE(isa)                          \
  extern const Elementwise elementwise_##isa; \
  extern const DenseLinear dense_##isa;       \
  extern const PackedLinear packed_##isa;     \
  extern const Attention attention_##isa;     \
  extern const Experts experts_##isa;
#define ENTRY(isa) \
  Isa { #isa, &elementwise_##isa, &dense_##isa, &packed_##isa, &attention_##isa, &experts_##isa }

DECLARE(portable)
#if defined(__x86_64__)
DECLARE(avx2)
DECLARE(avx512vnni)
DECLARE(avx512)
#endif

namespace {

#if defined(__x86_64__)
// What the flags in CMakeLists.txt let the compiler use for each instruction set.
bool runs_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
         __builtin_cpu_supports("f16c");
}
#if defined(INFERNO_EMULATE)
bool runs_avx512vnni() { return runs_avx2(); }
bool runs_avx512() { return runs_avx2(); }
#else
bool runs_avx512vnni() {
  return runs_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512vnni");
}
bool runs_avx512() { return runs_avx512vnni() && __builtin_cpu_supports("avx512bf16"); }
#endif
#endif

// The instruction sets this machine can run, best first.
std::vector<Isa> available() {
  std::vector<Isa> found;
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (runs_avx512()) found.push_back(ENTRY(avx512));
  if (runs_avx512vnni()) found.push_back(ENTRY(avx512vnni));
  if (runs_avx2()) found.push_back(ENTRY(avx2));
#endif
  found.push_back(ENTRY(portable));
  return found;
}

Isa chosen = available().front();

}  // namespace

const Isa& active() { return chosen; }

Recording* recording = nullptr;

NB_MODULE(_native, m) {
  nb::set_leak_warnings(false);  // objects still alive at exit are not leaks of the bindings
  m.doc() =
      "CPU kernels. Addresses and sizes are trusted: only inferno_cpu's own modules call this.";
  m.def(
      "available",
      [] {
        std::vector<std::string> names;
        for (const Isa& isa : available()) names.push_back(isa.name);
        return names;
      },
      "Instruction sets this machine can run, best first.");
  m.def("selected", [] { return std::string(chosen.name); });
  m.def(
      "select",
      [](const std::string& name) {
        for (const Isa& isa : available())
          if (name == isa.name) {
            chosen = isa;
            return;
          }
        throw std::invalid_argument("this machine cannot run " + name);
      },
      "Use this instruction set from now on; for tests and benchmarks.");
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
