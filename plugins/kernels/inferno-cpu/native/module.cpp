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

struct Told {  // while an op runs, which may throw
  explicit Told(const Upcoming& later) { upcoming = later.count ? &later : nullptr; }
  ~Told() { upcoming = nullptr; }
};

// Run recorded ops again. A product is told what is read between it and the next one.
static void replay(const Recording& ops) {
  for (auto op = ops.begin(); op != ops.end(); op++) {
    Upcoming later;
    if (op->product)
      for (auto next = op + 1; next != ops.end() && !next->product; next++)
        if (next->reads) next->reads(later);
    Told told(later);
    op->op();
  }
}

NB_MODULE(_native, m) {
  nb::set_leak_warnings(false);  // objects still alive at exit are not leaks of the bindings
  m.doc() =
      "CPU kernels. Addresses and sizes are trusted: only inferno_cpu's own modules call this.";
  m.def("available", available_levels, "Levels that this machine can run, best first.");
  m.def("selected", [] { return active().name; });
  m.def("select", select_level, "Use this level from now on; for tests and benchmarks.");
  m.def("set_threads", [](int n) {  // other threads may be computing with the same number
    if (inferno_threads != (n < 1 ? 1 : n)) inferno_threads = n < 1 ? 1 : n;
  });
  m.def("threads", [] { return inferno_threads; });
  nb::class_<Recording>(
      m, "Recording",
      "Records every op of this thread, with its addresses, while entered as a context; replay() "
      "runs them again, on any thread.")
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
            parallel_region([](void* ops) { replay(*static_cast<Recording*>(ops)); }, &self);
          },
          nb::call_guard<nb::gil_scoped_release>());
  m.def("recording", [] { return recording != nullptr; });
  bind_elementwise(m);
  bind_dense(m);
  bind_packed(m);
  bind_attention(m);
  bind_experts(m);
  bind_adapters(m);
  bind_quantize(m);
  bind_ranks(m);
}
