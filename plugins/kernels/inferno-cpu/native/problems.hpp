// A grouped product: several matrices, each multiplied by its own tokens. Work is numbered through
// all of these problems, so that threads share it evenly whether there are eight matrices of one
// token or one of a thousand.
#pragma once
#include <cstdint>

namespace {

// The problem that work item `at` belongs to: the last one whose `first` item is not after it. No
// problem is empty.
template <class Problem>
const Problem& problem_at(const Problem* problems, int64_t count, int64_t Problem::* first,
                          int64_t at) {
  int64_t low = 0, high = count;
  while (high - low > 1) {
    int64_t middle = (low + high) / 2;
    (problems[middle].*first <= at ? low : high) = middle;
  }
  return problems[low];
}

// The panels [begin, end) of matrix `e` in a stack of matrices of N rows each. Its first row is row
// `skew` of its first panel.
struct Stacked {
  int64_t begin, end, skew;
  Stacked(int64_t e, int64_t N)
      : begin(e * N / 16), end(((e + 1) * N + 15) / 16), skew(e * N % 16) {}
};

}  // namespace
