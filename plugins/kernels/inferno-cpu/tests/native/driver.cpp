// Runs kernels that a test asks for through a pipe, so that those of another processor can be
// tested under an emulator without a Python for it. The test sends calls of the functions of
// _native.pyi, each with its arguments in that order and with the memory behind every address:
//
//   call    the function's name and a newline, then its arguments
//   'i'     int64
//   'd'     float64
//   'r' 'w' memory that is read, or read and written: its size as int64, then its bytes
//   reply   int64, the result; then the bytes of every 'w', in order
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <tuple>
#include <type_traits>
#include <vector>

#include "kernels.hpp"
#include "levels.hpp"
#include "parallel.hpp"

namespace {

Isa chosen;

void get(void* to, size_t n) {
  if (fread(to, 1, n, stdin) != n) exit(1);
}
template <class T>
T got() {
  T x;
  get(&x, sizeof x);
  return x;
}
void put(const void* from, size_t n) {
  if (fwrite(from, 1, n, stdout) != n) exit(1);
}

// Memory of a call, aligned as torch's.
struct Memory {
  void* at;
  size_t size;
  bool written;
};
std::vector<Memory> memory;

double number() {
  switch (getchar()) {
    case 'i': return double(got<int64_t>());
    case 'd': return got<double>();
    default: exit(2);
  }
}

template <class T>
T argument();

template <class... T>
void set(T&... fields) {
  ((fields = argument<T>()), ...);
}

template <class T>
T argument() {
  if constexpr (std::is_pointer_v<T>) {
    int kind = getchar();
    if (kind == 'i' && got<int64_t>() == 0) return nullptr;
    if (kind != 'r' && kind != 'w') exit(2);
    size_t size = size_t(got<int64_t>());
    void* at = aligned_alloc(64, size / 64 * 64 + 64);
    get(at, size);
    memory.push_back({at, size, kind == 'w'});
    return T(at);
  } else if constexpr (std::is_same_v<T, Heads>) {
    auto at = argument<const void*>();
    auto token = argument<int64_t>(), head = argument<int64_t>(), tokens = argument<int64_t>(),
         heads = argument<int64_t>();
    return {at, token, head, tokens, heads, argument<int64_t>()};
  } else if constexpr (std::is_same_v<T, Norm>) {
    auto weight = argument<const void*>();
    auto wide = argument<bool>();
    return {weight, wide, argument<float>()};
  } else if constexpr (std::is_same_v<T, Routing>) {
    auto sigmoid = argument<bool>(), normalize = argument<bool>();
    return {sigmoid, normalize, argument<float>()};
  } else if constexpr (std::is_same_v<T, WholeStep>) {
    WholeStep s{};
    set(s.dtype, s.q, s.q_stride, s.k, s.k_stride, s.v, s.v_stride, s.out, s.query_starts, s.S, s.H,
        s.K, s.C, s.scale, s.window);
    return s;
  } else if constexpr (std::is_same_v<T, AttentionStep>) {
    AttentionStep s;
    set(s.dtype, s.cache_kind, s.q, s.q_stride, s.k, s.k_stride, s.v, s.v_stride, s.out, s.k_cache,
        s.v_cache, s.k_scales, s.v_scales, s.slots, s.query_starts, s.context_lens, s.tables,
        s.table_stride, s.S, s.H, s.K, s.C, s.block_size, s.scale, s.soft_cap, s.window,
        s.waves.amplitudes, s.waves.used, s.waves.lines, s.waves.stride, s.waves.count);
    return s;
  } else {
    return T(number());
  }
}

template <class R, class... P>
int64_t call(R (*kernel)(P...)) {
  std::tuple<std::decay_t<P>...> arguments{argument<std::decay_t<P>>()...};  // in this order
  if constexpr (std::is_void_v<R>) {
    std::apply(kernel, arguments);
    return 0;
  } else {
    return int64_t(std::apply(kernel, arguments));
  }
}

// Calls the kernel named, or ends the process.
int64_t call(const std::string& name) {
#define CALL(function, kernel) \
  if (name == function) return call(kernel);
  CALL("rms_norm", chosen.elementwise->rms_norm)
  CALL("add_rms_norm", chosen.elementwise->add_rms_norm)
  CALL("add_layer_norm", chosen.elementwise->add_layer_norm)
  CALL("rope", chosen.elementwise->rope)
  CALL("norm_rope", chosen.elementwise->norm_rope)
  CALL("silu_mul", chosen.elementwise->silu_mul)
  CALL("gelu", chosen.elementwise->gelu)
  CALL("argmax", chosen.elementwise->argmax)
  CALL("gather", chosen.elementwise->gather)
  CALL("dense_repack", chosen.dense->repack)
  CALL("dense_repack_fp8", chosen.dense->repack_fp8)
  CALL("dense_repack_table", chosen.dense->repack_table)
  CALL("dense_matmul", chosen.dense->matmul)
  CALL("dense_grouped", chosen.dense->grouped)
  CALL("dense_argmax", chosen.dense->argmax)
  CALL("dense_rows", chosen.dense->rows)
  CALL("packed_panel_bytes", chosen.packed->panel_bytes)
  CALL("packed_repack", chosen.packed->repack)
  CALL("packed_matmul", chosen.packed->matmul)
  CALL("packed_grouped", chosen.packed->grouped)
  CALL("packed_argmax", chosen.packed->argmax)
  CALL("packed_rows", chosen.packed->rows)
  CALL("route", chosen.experts->route)
  CALL("dispatch", chosen.experts->dispatch)
  CALL("combine", chosen.experts->combine)
  CALL("shrink", chosen.adapters->shrink)
  CALL("expand", chosen.adapters->expand)
  CALL("attend", chosen.attention->attend)
  CALL("attend_whole", chosen.attention->attend_whole)
#undef CALL
  fprintf(stderr, "there is no kernel %s\n", name.c_str());
  exit(3);
}

}  // namespace

// driver: list the levels that this processor can run, best first. driver LEVEL THREADS: serve.
int main(int count, char** arguments) {
  if (count < 3) {
    for (const std::string& level : available_levels()) puts(level.c_str());
    return 0;
  }
  chosen = isa_of(arguments[1]);  // throws if it cannot run here
  inferno_threads = atoi(arguments[2]);
  for (int c = getchar(); c != EOF; c = getchar()) {
    std::string name;
    for (; c != '\n'; c = getchar()) name += char(c);
    int64_t result = call(name);
    put(&result, sizeof result);
    for (const Memory& m : memory) {
      if (m.written) put(m.at, m.size);
      free(m.at);
    }
    memory.clear();
    fflush(stdout);
  }
}
