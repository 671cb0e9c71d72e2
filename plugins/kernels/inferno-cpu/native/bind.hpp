// Every op is run through `run`.
#pragma once
#include <nanobind/nanobind.h>

#include <cstdint>
#include <functional>
#include <vector>

namespace nb = nanobind;
using Address = uintptr_t;

template <class T = void>
inline T* at(Address a) { return reinterpret_cast<T*>(a); }

// While a step is recorded, the op is kept (its arguments by value) to be run again.
struct Recording : std::vector<std::function<void()>> {};  // a type of its own: lists convert to Python lists
extern Recording* recording;

template <class Op>
inline void run(const Op& op) {
  op();
  if (recording) recording->emplace_back(op);
}

void bind_elementwise(nb::module_& m);
void bind_dense(nb::module_& m);
void bind_packed(nb::module_& m);
void bind_attention(nb::module_& m);
void bind_experts(nb::module_& m);
