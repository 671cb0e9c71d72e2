// What later ops of a recorded step read from memory, told to a product that computes longer than
// it reads: it fetches that meanwhile, a little with each tile.
#pragma once
#include <cstdint>

constexpr int64_t kCacheLine = 64;

struct Upcoming {
  static constexpr int kMost = 64;
  static constexpr int64_t kLines = (2 << 20) / kCacheLine;  // they must still be there when read
  struct Range {
    const char* first;
    int64_t end;  // in lines, from the first range's start
  };
  Range ranges[kMost];
  int count = 0;
  int64_t lines() const { return count ? ranges[count - 1].end : 0; }
};

// Of the op that this thread replays, or null.
extern __thread const Upcoming* upcoming;

// What exceeds the limits is not fetched.
static inline void add(Upcoming& later, const void* first, int64_t bytes) {
  int64_t end = later.lines() + (bytes + kCacheLine - 1) / kCacheLine;
  if (later.count < Upcoming::kMost && end <= Upcoming::kLines)
    later.ranges[later.count++] = {static_cast<const char*>(first), end};
}

// Fetch part `i` of `of` equal ones into the second-level cache. Always inlined: kernels of several
// levels call it.
__attribute__((always_inline)) static inline void fetch(const Upcoming& later, int64_t i,
                                                        int64_t of) {
  int64_t lines = later.ranges[later.count - 1].end, at = lines * i / of,
          end = lines * (i + 1) / of, begin = 0;
  for (int r = 0; at < end; begin = later.ranges[r++].end)
    for (; at < end && at < later.ranges[r].end; at++)
      __builtin_prefetch(later.ranges[r].first + (at - begin) * kCacheLine, 0, 2);
}
