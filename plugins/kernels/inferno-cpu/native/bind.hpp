// Bindings of the ops. Every op goes through `run`, which also records it. Other Python threads run
// meanwhile: those that compute masks, and the one that tells that the process is alive.
#pragma once
#include <nanobind/nanobind.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "upcoming.hpp"

namespace nb = nanobind;
using Address = uintptr_t;

template <class T = void>
inline T* at(Address a) {
  return reinterpret_cast<T*>(a);
}

// An op of a recorded step, with its arguments by value.
struct Recorded {
  std::function<void()> op;
  bool product;  // whether it fetches what the ops up to the next product read
  std::function<void(Upcoming&)> reads;  // adds what it reads to that
};
struct Recording : std::vector<Recorded> {
};  // not a bare vector: nanobind converts those to Python lists
inline thread_local Recording* recording = nullptr;  // each thread records its own ops, if any

template <class Op>
inline void run(const Op& op, bool product = false, std::function<void(Upcoming&)> reads = {}) {
  {
    nb::gil_scoped_release released;
    op();
  }
  if (recording) recording->push_back({op, product, std::move(reads)});
}

void bind_elementwise(nb::module_& m);
void bind_dense(nb::module_& m);
void bind_packed(nb::module_& m);
void bind_attention(nb::module_& m);
void bind_experts(nb::module_& m);
void bind_adapters(nb::module_& m);
void bind_quantize(nb::module_& m);
void bind_ranks(nb::module_& m);
