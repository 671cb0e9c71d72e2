#include "parallel.hpp"

#include <atomic>
#include <exception>

#include "upcoming.hpp"

#if defined(__unix__) || defined(__APPLE__)
#include <sched.h>
#endif

int inferno_threads = 1;
__thread const Upcoming* upcoming = nullptr;

namespace {

constexpr int kSpins = 2000;  // about 50 us; then yield the core, perhaps to another of our threads

template <class Ready>
void wait(const Ready& ready) {
  for (int i = 0; !ready(); i++) {
    relax();
#if defined(__unix__) || defined(__APPLE__)
    if (i >= kSpins) sched_yield();
#endif
  }
}

// The threads of one OpenMP region, kept for many ops. The master runs the ops; each parallel loop
// of an op is a list of tasks that all threads take from. The master waits for tasks that were
// taken, not for threads: unlike at a barrier, a thread that the system has descheduled delays
// nothing.
class ThreadTeam {
 public:
  void run(uint32_t count, void (*task)(const void*, int64_t), const void* context) {
    // Close the old loop, exchange its fields, then open the new one.
    ticket_.store(loop_ << 32 | kNone, std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_release);
    count_.store(count, std::memory_order_relaxed);
    task_.store(task, std::memory_order_relaxed);
    context_.store(context, std::memory_order_relaxed);
    done_.store(0, std::memory_order_relaxed);
    ticket_.store(++loop_ << 32, std::memory_order_release);
    take_tasks();
    wait([&] { return done_.load(std::memory_order_acquire) == count; });
  }

  void serve() {
    while (!over_.load(std::memory_order_acquire)) {
      take_tasks();
      wait([&] {
        return uint32_t(ticket_.load(std::memory_order_acquire)) <
                   count_.load(std::memory_order_relaxed) ||
               over_.load(std::memory_order_relaxed);
      });
    }
  }

  void end() { over_.store(true, std::memory_order_release); }

 private:
  static constexpr uint32_t kNone = ~uint32_t(0);

  // Run tasks of the current loop until none is left.
  void take_tasks() {
    uint64_t ticket = ticket_.load(std::memory_order_acquire);
    for (;;) {
      auto task = task_.load(std::memory_order_relaxed);
      auto context = context_.load(std::memory_order_relaxed);
      if (uint32_t(ticket) >= count_.load(std::memory_order_relaxed)) return;
      // These fields may belong to the next loop: then the ticket has changed and the exchange
      // fails.
      std::atomic_thread_fence(std::memory_order_acquire);
      if (!ticket_.compare_exchange_weak(ticket, ticket + 1, std::memory_order_acq_rel,
                                         std::memory_order_acquire))
        continue;
      task(context, uint32_t(ticket));
      done_.fetch_add(1, std::memory_order_release);
      ticket = ticket_.load(std::memory_order_acquire);
    }
  }

  uint64_t loop_ = 0;  // number of the current loop
  std::atomic<void (*)(const void*, int64_t)> task_{nullptr};
  std::atomic<const void*> context_{nullptr};
  std::atomic<uint32_t> count_{0};
  std::atomic<bool> over_{false};
  alignas(64) std::atomic<uint64_t> ticket_{kNone};  // loop number << 32 | next task
  alignas(64) std::atomic<uint32_t> done_{0};
};

thread_local ThreadTeam* team = nullptr;  // set on the master, inside parallel_region

}  // namespace

int64_t light_grain() { return team ? kInRegion : kAlone; }

void parallel_tasks(int64_t count, void (*task)(const void*, int64_t), const void* context) {
  if (team) return team->run(uint32_t(count), task, context);
#ifdef _OPENMP
#pragma omp parallel for schedule(dynamic, 1) \
    num_threads(int(count < inferno_threads ? count : inferno_threads))
#endif
  for (int64_t i = 0; i < count; i++) task(context, i);
}

void parallel_region(void (*work)(void*), void* context) {
#ifdef _OPENMP
  if (inferno_threads > 1 && !team) {
    ThreadTeam here;
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
