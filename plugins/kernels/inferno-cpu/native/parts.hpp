// Several matrices, each by tokens of its own, in one go: what is to be done is numbered through all of them, so that threads
// share it evenly whether there are eight matrices of one token or one of a thousand.
#pragma once
#include <cstdint>

namespace {

// The part that number `at` belongs to: the last that begins no later. `first` says where a part begins; none is empty.
template <class Part>
const Part& part_at(const Part* parts, int64_t count, int64_t Part::*first, int64_t at) {
  int64_t low = 0, high = count;
  while (high - low > 1) {
    int64_t middle = (low + high) / 2;
    (parts[middle].*first <= at ? low : high) = middle;
  }
  return parts[low];
}

// The panels of matrix `e` of those of N rows that lie stacked, and which row of its first panel is its first.
struct Stacked {
  int64_t begin, end, skew;
  Stacked(int64_t e, int64_t N) : begin(e * N / 16), end(((e + 1) * N + 15) / 16), skew(e * N % 16) {}
};

}  // namespace
