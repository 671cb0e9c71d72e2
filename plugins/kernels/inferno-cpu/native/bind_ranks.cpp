#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bind.hpp"
#include "ranks.hpp"

void bind_ranks(nb::module_& m) {
  nb::register_exception_translator([](const std::exception_ptr& thrown, void*) {
    try {
      std::rethrow_exception(thrown);
    } catch (const RankLeft& error) {
      PyErr_SetString(PyExc_ConnectionError, error.what());
    } catch (const RankLate& error) {
      PyErr_SetString(PyExc_TimeoutError, error.what());
    }
  });
  nb::class_<Ranks>(m, "Ranks")
      .def_static("bytes", &Ranks::bytes)
      .def("__init__",
           [](Ranks* self, Address memory, int rank, int ranks, int64_t slot, double seconds) {
             new (self) Ranks(at(memory), rank, ranks, slot, seconds);
           })
      // A recorded op keeps its address: the caller keeps it.
      .def("sum", [](Ranks& self, int dtype, Address x,
                     int64_t n) { run([=, &self] { self.sum(dtype, at(x), n); }); })
      .def("gather",
           [](Ranks& self, Address x, Address y, int64_t rows, const std::vector<int64_t>& widths) {
             run([=, &self] { self.gather(at(x), at(y), rows, widths); });
           })
      .def("close", &Ranks::close);
}
