// What an ARM processor and its system can run, for levels.cpp. Every ARMv8 runs neon.
#pragma once

#if defined(__linux__)
#include <sys/auxv.h>
#include <sys/prctl.h>
#elif defined(__APPLE__)
#include <sys/sysctl.h>
#endif

namespace {

#if defined(__linux__)

// Bits of AT_HWCAP and AT_HWCAP2, which older headers lack.
constexpr unsigned long kDotProduct = 1ul << 20, kSve = 1ul << 22;
constexpr unsigned long kSveI8mm = 1ul << 9, kSveBf16 = 1ul << 12, kI8mm = 1ul << 13,
                        kBf16 = 1ul << 14;

bool has(unsigned long features, unsigned long features2) {
  return (getauxval(AT_HWCAP) & features) == features &&
         (getauxval(AT_HWCAP2) & features2) == features2;
}
bool dotprod() { return has(kDotProduct, 0); }
bool i8mm() { return has(kDotProduct, kI8mm | kBf16); }
// The length of SVE's vectors is the processor's, but a process may have a shorter one.
bool sve256() {
  constexpr int kGetLength = 51, kLengthMask = 0xffff;  // PR_SVE_GET_VL, in bytes
  return i8mm() && has(kSve, kSveI8mm | kSveBf16) && (prctl(kGetLength) & kLengthMask) == 32;
}

#elif defined(__APPLE__)

bool has(const char* feature) {
  int value = 0;
  size_t size = sizeof value;
  return sysctlbyname(feature, &value, &size, nullptr, 0) == 0 && value;
}
bool dotprod() { return has("hw.optional.arm.FEAT_DotProd"); }
bool i8mm() {
  return dotprod() && has("hw.optional.arm.FEAT_I8MM") && has("hw.optional.arm.FEAT_BF16");
}

#else

bool dotprod() { return false; }
bool i8mm() { return false; }
bool sve256() { return false; }

#endif

}  // namespace
