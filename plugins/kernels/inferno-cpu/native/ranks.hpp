// What the ranks of one machine exchange, in memory that they share: sums of their tensors, and
// their tensors side by side.
#pragma once
#include <cstdint>
#include <stdexcept>
#include <vector>

struct RankLeft : std::runtime_error {
  using std::runtime_error::runtime_error;
};
struct RankLate : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// One rank's view of the memory. All ranks call the same methods in the same order, each from one
// thread at a time; `close` may be called from any. Throws RankLeft once any rank has called
// `close`, RankLate if another one is not heard within `seconds`, and std::runtime_error if another
// one exchanges something else: it is in another layer.
class Ranks {
 public:
  static constexpr int kMost = 64;
  // Bytes of the memory, zeros at first, for exchanges in pieces of `slot` bytes.
  static int64_t bytes(int ranks, int64_t slot);

  Ranks(void* memory, int rank, int ranks, int64_t slot, double seconds);

  // x_n = the sum of all ranks' x, in their order and in float32, rounded once: every rank has the
  // same bits.
  void sum(int dtype, void* x, int64_t n);
  // y = each rank's x side by side, in `rows` rows of widths[rank] bytes each.
  void gather(const void* x, void* y, int64_t rows, const std::vector<int64_t>& widths);
  void close();

 private:
  struct Head;
  struct Shared;

  char* slot_of(int rank) const;
  void arrive(uint64_t what);
  void await(int rank, uint64_t what) const;
  bool sleep(int rank) const;

  Shared* shared_;
  const int rank_, ranks_;
  const int64_t slot_;
  const double seconds_;
  uint32_t number_ = 0;  // of the latest exchange
};
