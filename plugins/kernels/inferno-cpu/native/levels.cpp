#include "levels.hpp"

#include <cstdlib>
#include <stdexcept>

#if defined(__aarch64__)
#include "levels_arm.hpp"
#endif
#if defined(INFERNO_HAS_AMX) && defined(__linux__) && !defined(INFERNO_EMULATE)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace {

// For each level, whether its instructions run here: those of its flags in CMakeLists.txt.
bool any() { return true; }
#if defined(__x86_64__)
[[maybe_unused]] bool sse42() { return __builtin_cpu_supports("sse4.2"); }
[[maybe_unused]] bool avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
         __builtin_cpu_supports("f16c");
}
#if defined(INFERNO_EMULATE)  // in plain code, which AVX2 may compile
[[maybe_unused]] bool avxvnni() { return avx2(); }
[[maybe_unused]] bool avx512vnni() { return avx2(); }
[[maybe_unused]] bool avx512() { return avx2(); }
[[maybe_unused]] bool amx() { return avx2(); }
#else
#if defined(INFERNO_HAS_AVXVNNI)
bool avxvnni() { return avx2() && __builtin_cpu_supports("avxvnni"); }
#endif
[[maybe_unused]] bool avx512vnni() {
  return avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512vnni");
}
#if defined(INFERNO_HAS_AVX512)
bool avx512() { return avx512vnni() && __builtin_cpu_supports("avx512bf16"); }
#endif
#if defined(INFERNO_HAS_AMX)
// The system keeps 8 KB of tiles for each thread, and gives them only to processes that ask.
bool tiles_granted() {
#if defined(__linux__)
  constexpr long kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}
bool amx() {
  return avx512() && __builtin_cpu_supports("amx-tile") && __builtin_cpu_supports("amx-bf16") &&
         __builtin_cpu_supports("amx-int8") && tiles_granted();
}
#endif
#endif
#endif

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
