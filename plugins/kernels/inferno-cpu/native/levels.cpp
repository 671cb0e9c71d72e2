#include "levels.hpp"

#include <algorithm>
#include <cstdlib>
#include <stdexcept>

#if defined(__x86_64__)
#include "levels_x86.hpp"
#elif defined(__aarch64__)
#include "levels_arm.hpp"
#endif

namespace {

bool any() { return true; }

struct Level {
  const char* name;
  bool (*runs)();
};

// Best first.
constexpr Level kLevels[] = {
#if defined(INFERNO_HAS_AMX)
    {"amx", amx},
#endif
#if defined(INFERNO_HAS_AVX512)
    {"avx512", avx512},
#endif
#if defined(INFERNO_HAS_AVX512VNNI)
    {"avx512vnni", avx512vnni},
#endif
#if defined(INFERNO_HAS_AVXVNNI)
    {"avxvnni", avxvnni},
#endif
#if defined(INFERNO_HAS_AVX2)
    {"avx2", avx2},
#endif
#if defined(INFERNO_HAS_SSE42)
    {"sse4.2", sse42},
#endif
#if defined(INFERNO_HAS_SVE256)
    {"sve256", sve256},
#endif
#if defined(INFERNO_HAS_I8MM)
    {"i8mm", i8mm},
#endif
#if defined(INFERNO_HAS_DOTPROD)
    {"dotprod", dotprod},
#endif
#if defined(INFERNO_HAS_NEON)
    {"neon", any},
#endif
    {"portable", any},
};

}  // namespace

const std::vector<std::string>& available_levels() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> found;
#if defined(__x86_64__)
    __builtin_cpu_init();
#endif
    for (const Level& level : kLevels)
      if (level.runs()) found.push_back(level.name);
#if defined(__x86_64__)
    // Intel's processors multiply bfloat16 by vectors at half the speed of float32.
    auto dot = std::find(found.begin(), found.end(), "avx512");
    if (__builtin_cpu_is("intel") && dot != found.end()) std::iter_swap(dot, dot + 1);
#endif
    return found;
  }();
  return names;
}

std::string wanted_level() {
  const char* wanted = getenv("INFERNO_CPU_LEVEL");
  if (!wanted || !*wanted) return available_levels().front();
  std::string list;
  for (const std::string& name : available_levels()) {
    if (name == wanted) return name;
    list += (list.empty() ? "" : ", ") + name;
  }
  throw std::invalid_argument("INFERNO_CPU_LEVEL is '" + std::string(wanted) +
                              "', but this machine runs " + list);
}
