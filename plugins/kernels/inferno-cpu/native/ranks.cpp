// A rank copies its part of an exchange to its slot, says so, and waits until the others have said
// it; then it reads theirs. Each rank has two slots, used in turns: one that writes its next part
// is at most one exchange ahead of those that still read the last one.
#include "ranks.hpp"

#include <atomic>
#include <chrono>
#include <cstring>
#include <string>

#include "kernels.hpp"
#include "parallel.hpp"

#if defined(__linux__)
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#endif

namespace {

// Then a rank yields its core, perhaps to the one that it waits for, and then it sleeps: others
// need the core, and the wait may be for a rank that is stopped.
constexpr int kSpins = 1000, kYields = 50;
constexpr int64_t kNapNanoseconds = 20'000'000;  // between looks for a rank that has left
constexpr int64_t kGrain = 1 << 16;              // bytes that a thread copies

// ThreadSanitizer skips what memcpy does in modules that Python has loaded, instrumented or not.
#if defined(__SANITIZE_THREAD__)
extern "C" void __tsan_read_range(void* from, unsigned long bytes);
extern "C" void __tsan_write_range(void* to, unsigned long bytes);
void told(char* to, const char* from, size_t bytes) {
  __tsan_read_range(const_cast<char*>(from), bytes);
  __tsan_write_range(to, bytes);
}
#else
void told(char*, const char*, size_t) {}
#endif

void move(char* to, const char* from, int64_t bytes) {
  told(to, from, size_t(bytes));
  memcpy(to, from, size_t(bytes));
}

int size_of(int dtype) { return dtype == kFloat32 ? 4 : 2; }

void copy(char* to, const char* from, int64_t bytes) {
  parallel_for(bytes, kGrain, [&](int64_t begin, int64_t end) {
    move(to + begin, from + begin, end - begin);
  });
}

// Put bytes of a matrix whose rows have `width` of them, the first of which is number `first`, into
// rows of `whole` bytes.
void place(const char* from, int64_t first, int64_t bytes, int64_t width, char* to, int64_t whole) {
  for (int64_t done = 0; done < bytes;) {
    const int64_t row = (first + done) / width, column = (first + done) % width;
    const int64_t left = bytes - done, count = width - column < left ? width - column : left;
    move(to + row * whole + column, from + done, count);
    done += count;
  }
}

}  // namespace

struct alignas(64) Ranks::Head {
  std::atomic<uint32_t> arrived{0};  // number of the latest exchange whose part is in its slot
  std::atomic<uint32_t> sleepers{0};
  std::atomic<uint64_t> what[2] = {};  // of each slot: what kind of exchange it is for
};

struct Ranks::Shared {
  alignas(64) std::atomic<uint32_t> closed{0};
  Head heads[kMost];
};

static_assert(std::atomic<uint32_t>::is_always_lock_free, "processes share it");
static_assert(std::atomic<uint64_t>::is_always_lock_free, "processes share it");

static constexpr int64_t kHeads = 8192;  // bytes before the slots

int64_t Ranks::bytes(int ranks, int64_t slot) {
  static_assert(sizeof(Shared) <= kHeads, "whole pages");
  return kHeads + 2 * ranks * slot;
}

char* Ranks::slot_of(int rank) const {
  return reinterpret_cast<char*>(shared_) + kHeads + (2 * rank + int(number_ & 1)) * slot_;
}

Ranks::Ranks(void* memory, int rank, int ranks, int64_t slot, double seconds)
    : shared_(static_cast<Shared*>(memory)),
      rank_(rank),
      ranks_(ranks),
      slot_(slot),
      seconds_(seconds) {
  if (ranks < 1 || ranks > kMost || rank < 0 || rank >= ranks || slot < 64 || slot % 64)
    throw std::invalid_argument("no such rank");
}

#if defined(__linux__)

static long futex(std::atomic<uint32_t>& word, int op, uint32_t value, const timespec* most) {
  return syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), op, value, most, nullptr, 0);
}

void Ranks::arrive(uint64_t what) {
  Head& head = shared_->heads[rank_];
  head.what[number_ & 1].store(what, std::memory_order_relaxed);
  // Sequentially consistent, as in `sleep`: either this rank sees the sleeper, or that one sees the
  // number.
  head.arrived.store(number_, std::memory_order_seq_cst);
  if (head.sleepers.load(std::memory_order_seq_cst))
    futex(head.arrived, FUTEX_WAKE, ~uint32_t(0) >> 1, nullptr);
}

// Sleep until a rank arrives, or for a moment. Returns whether it has arrived.
bool Ranks::sleep(int rank) const {
  Head& head = shared_->heads[rank];
  const timespec nap{0, kNapNanoseconds};
  head.sleepers.fetch_add(1, std::memory_order_seq_cst);
  const uint32_t seen = head.arrived.load(std::memory_order_seq_cst);
  if (int32_t(seen - number_) < 0) futex(head.arrived, FUTEX_WAIT, seen, &nap);
  head.sleepers.fetch_sub(1, std::memory_order_relaxed);
  return int32_t(head.arrived.load(std::memory_order_acquire) - number_) >= 0;
}

void Ranks::await(int rank, uint64_t what) const {
  const Head& head = shared_->heads[rank];
  auto arrived = [&] {
    return int32_t(head.arrived.load(std::memory_order_acquire) - number_) >= 0;
  };
  int tries = 0;
  for (; !arrived() && tries < kSpins + kYields; tries++)
    tries < kSpins ? relax() : void(sched_yield());
  if (tries == kSpins + kYields) {
    using Clock = std::chrono::steady_clock;
    const auto until = Clock::now() + std::chrono::duration<double>(seconds_);
    while (!sleep(rank)) {
      if (shared_->closed.load(std::memory_order_acquire)) throw RankLeft("another rank has left");
      if (Clock::now() > until)
        throw RankLate("rank " + std::to_string(rank) + " has not been heard for " +
                       std::to_string(seconds_) + " seconds");
    }
  }
  if (head.what[number_ & 1].load(std::memory_order_relaxed) != what)
    throw std::runtime_error("rank " + std::to_string(rank) + " is in another layer");
}

void Ranks::close() {
  shared_->closed.store(1, std::memory_order_release);
  for (int rank = 0; rank < ranks_; rank++)
    futex(shared_->heads[rank].arrived, FUTEX_WAKE, ~uint32_t(0) >> 1, nullptr);
}

#else  // nothing makes one: see inferno_cpu's refusals

void Ranks::arrive(uint64_t) {}
bool Ranks::sleep(int) const { return false; }
void Ranks::await(int, uint64_t) const {}
void Ranks::close() {}

#endif

void Ranks::sum(int dtype, void* x, int64_t n) {
  const int64_t most = slot_ / size_of(dtype);
  for (int64_t begin = 0; begin < n; begin += most) {
    const int64_t count = n - begin < most ? n - begin : most;
    char* own = static_cast<char*>(x) + begin * size_of(dtype);
    const uint64_t what = uint64_t(n) << 3 | uint64_t(dtype) << 1;
    number_++;
    copy(slot_of(rank_), own, count * size_of(dtype));
    arrive(what);
    const void* parts[kMost];
    for (int rank = 0; rank < ranks_; rank++) {
      if (rank != rank_) await(rank, what);
      parts[rank] = rank == rank_ ? own : slot_of(rank);
    }
    active().elementwise->sum_parts(dtype, parts, ranks_, own, count);
  }
}

void Ranks::gather(const void* x, void* y, int64_t rows, const std::vector<int64_t>& widths) {
  if (int(widths.size()) != ranks_) throw std::invalid_argument("a width for each rank");
  int64_t whole = 0, widest = 0;
  for (int64_t width : widths) whole += width, widest = width > widest ? width : widest;
  const uint64_t what = uint64_t(rows * whole) << 3 | 1;
  for (int64_t begin = 0; begin < rows * widest; begin += slot_) {
    auto left = [&](int rank) {
      const int64_t bytes = rows * widths[size_t(rank)] - begin;
      return bytes < 0 ? 0 : bytes < slot_ ? bytes : slot_;
    };
    number_++;
    const char* own = static_cast<const char*>(x) + begin;
    copy(slot_of(rank_), own, left(rank_));
    arrive(what);
    char* to = static_cast<char*>(y);
    for (int rank = 0; rank < ranks_; to += widths[size_t(rank)], rank++) {
      if (rank != rank_) await(rank, what);
      if (left(rank))
        place(rank == rank_ ? own : slot_of(rank), begin, left(rank), widths[size_t(rank)], to,
              whole);
    }
  }
}
