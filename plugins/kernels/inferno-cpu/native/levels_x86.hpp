// For each level, whether an x86-64 processor and its system can run what CMakeLists.txt lets the
// compiler use for it.
#pragma once

#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace {

inline bool sse42() { return __builtin_cpu_supports("sse4.2"); }
inline bool avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
         __builtin_cpu_supports("f16c");
}

#if defined(INFERNO_EMULATE)  // compiled as plain code, which may use AVX2

inline bool avxvnni() { return avx2(); }
inline bool avx512vnni() { return avx2(); }
inline bool avx512() { return avx2(); }
inline bool amx() { return avx2(); }

#else

inline bool avx512vnni() {
  return avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512vnni");
}

// A compiler that cannot compile one of these levels does not know the names of its features.
#if defined(INFERNO_HAS_AVXVNNI)
inline bool avxvnni() { return avx2() && __builtin_cpu_supports("avxvnni"); }
#endif
#if defined(INFERNO_HAS_AVX512)
inline bool avx512() { return avx512vnni() && __builtin_cpu_supports("avx512bf16"); }
#endif
#if defined(INFERNO_EMULATE_AMX)
inline bool amx() { return avx512(); }
#elif defined(INFERNO_HAS_AMX)
// A thread that uses tiles has 8 KB more of state, so Linux (5.16 and later) grants them only to
// processes that ask.
inline bool tiles_granted() {
#if defined(__linux__)
  constexpr long kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}
inline bool amx() {
  return avx512() && __builtin_cpu_supports("amx-tile") && __builtin_cpu_supports("amx-bf16") &&
         __builtin_cpu_supports("amx-int8") && tiles_granted();
}
#endif

#endif

}  // namespace
