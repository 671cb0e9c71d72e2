#include "parallel.hpp"

#include <atomic>
#include <exception>

#if defined(__unix__) || defined(__APPLE__)
#include <sched.h>
#endif

int inferno_threads = 1;

namespace {

constexpr int kSpins = 2000;  // some 50 us; after that, whoever else wants this core may have it, a thread of ours not least

template <class Ready>
void wait(const Ready& ready) {
  for (int i = 0; !ready(); i++) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
#if defined(__unix__) || defined(__APPLE__)
    if (i >= kSpins) sched_yield();
#endif
  }
}

// The threads of one OpenMP region that stay for many ops. One of them runs the ops; where an op shares its work, the others
// take pieces of it. Nobody waits for a thread that has not taken a piece: one that the system has set aside, because
// something else runs on the machine, holds nobody up, as it would at a barrier.
class Team {
 public:
  void share(uint32_t count, void (*piece)(const void*, int64_t), const void* context) {
    // First no piece can be taken, then the op is exchanged, then its pieces can be.
    ticket_.store(number_ << 32 | kNone, std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_release);
    count_.store(count, std::memory_order_relaxed);
    piece_.store(piece, std::memory_order_relaxed);
    context_.store(context, std::memory_order_relaxed);
    done_.store(0, std::memory_order_relaxed);
    ticket_.store(++number_ << 32, std::memory_order_release);
    take();
    wait([&] { return done_.load(std::memory_order_acquire) == count; });
  }

  void serve() {
    while (!over_.load(std::memory_order_acquire)) {
      take();
      wait([&] {
        return uint32_t(ticket_.load(std::memory_order_acquire)) < count_.load(std::memory_order_relaxed) ||
               over_.load(std::memory_order_relaxed);
      });
    }
  }

  void end() { over_.store(true, std::memory_order_release); }

 private:
  static constexpr uint32_t kNone = ~uint32_t(0);

  // Pieces of the current op, until none is left.
  void take() {
    uint64_t ticket = ticket_.load(std::memory_order_acquire);
    for (;;) {
      auto piece = piece_.load(std::memory_order_relaxed);
      auto context = context_.load(std::memory_order_relaxed);
      if (uint32_t(ticket) >= count_.load(std::memory_order_relaxed)) return;
      // These may be the next op's: then the ticket is not the one it was.
      std::atomic_thread_fence(std::memory_order_acquire);
      if (!ticket_.compare_exchange_weak(ticket, ticket + 1, std::memory_order_acq_rel, std::memory_order_acquire)) continue;
      piece(context, uint32_t(ticket));
      done_.fetch_add(1, std::memory_order_release);
      ticket = ticket_.load(std::memory_order_acquire);
    }
  }

  uint64_t number_ = 0;  // of the op
  std::atomic<void (*)(const void*, int64_t)> piece_{nullptr};
  std::atomic<const void*> context_{nullptr};
  std::atomic<uint32_t> count_{0};
  std::atomic<bool> over_{false};
  alignas(64) std::atomic<uint64_t> ticket_{kNone};  // number << 32 | the next piece
  alignas(64) std::atomic<uint32_t> done_{0};
};

thread_local Team* team = nullptr;  // of the thread that runs the ops

}  // namespace

void in_pieces(int64_t count, void (*piece)(const void*, int64_t), const void* context) {
  if (team) return team->share(uint32_t(count), piece, context);
#ifdef _OPENMP
#pragma omp parallel for schedule(dynamic, 1) num_threads(int(count < inferno_threads ? count : inferno_threads))
#endif
  for (int64_t i = 0; i < count; i++) piece(context, i);
}

void together(void (*work)(void*), void* context) {
#ifdef _OPENMP
  if (inferno_threads > 1 && !team) {
    Team here;
    std::exception_ptr thrown;
#pragma omp parallel num_threads(inferno_threads)
    {
#pragma omp master
      {
        team = &here;
        try {
          work(context);
        } catch (...) {
          thrown = std::current_exception();
        }
        team = nullptr;
        here.end();
      }
      here.serve();
    }
    if (thrown) std::rethrow_exception(thrown);
    return;
  }
#endif
  work(context);
}
