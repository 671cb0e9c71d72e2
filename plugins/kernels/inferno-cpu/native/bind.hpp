// Bindings of the ops. Every op goes through `run`, which also records it. Other Python threads run
// meanwhile: those that compute masks, and the one that tells that the process is alive.
#pragma once
#include <nanobind/nanobind.h>

#include <cstdint>
#include <functional>
#include <vector>

namespace nb = nanobind;
using Address = uintptr_t;

template <class T = void>
inline T* at(Address a) {
  return reinterpret_cast<T*>(a);
}

// The ops of a recorded step, each with its arguments by value.
struct Recording : std::vector<std::function<void()>> {
};  // not a bare vector: nanobind converts those to Python lists
inline thread_local Recording* recording = nullptr;  // each thread records its own ops, if any

template <class Op>
inline void run(const Op& op) {
  {
    nb::gil_scoped_release released;
    op();
  }
  if (recording) recording->emplace_back(op);
}

void bind_elementwise(nb::module_& m);
void bind_dense(nb::module_& m);
void bind_packed(nb::module_& m);
void bind_attention(nb::module_& m);
void bind_experts(nb::module_& m);
void bind_adapters(nb::module_& m);
void bind_quantize(nb::module_& m);
