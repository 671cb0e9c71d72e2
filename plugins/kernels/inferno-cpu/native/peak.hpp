// The limit of a level's arithmetic: the instruction of its products, on registers alone.
#pragma once
#include "parallel.hpp"
#include "simd.hpp"

namespace {

// Independent sums: enough to hide the latency of one, and few enough for registers.
#if defined(INFERNO_AVX512)
constexpr int kChains = 12;
#else
constexpr int kChains = 6;
#endif
constexpr int64_t kPeakSteps = 200000;  // of a thread

// On all threads, repeat sum = step(sum, chain), which reads other `numbers` for each chain: equal
// sums would be computed once. AGAIN: it reads them each time, since a part of the step that does
// not depend on the sum would be computed once. Returns how often step was called.
template <class Sum, bool AGAIN, class Numbers, class Step>
double peak_steps(const Numbers& numbers, const Step& step) {
  parallel_chunks(inferno_threads, 1, [&](int64_t begin, int64_t end) {
    Sum sum[kChains] = {};
    asm volatile("" : : "r"(&numbers) : "memory");  // they may be any numbers
    for (int64_t n = (end - begin) * kPeakSteps; n; n--) {
      if (AGAIN) asm volatile("" : : "r"(&numbers) : "memory");
      UNROLL_FOR (int c = 0; c < kChains; c++) sum[c] = step(sum[c], c);
    }
    Sum kept[kChains];
    UNROLL_FOR (int c = 0; c < kChains; c++) kept[c] = sum[c];
    asm volatile("" : : "r"(&kept) : "memory");
  });
  return double(kPeakSteps * kChains * inferno_threads);
}

}  // namespace
