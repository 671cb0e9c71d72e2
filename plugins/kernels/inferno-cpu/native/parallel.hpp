// Parallel loops on the threads of the process's one OpenMP runtime, torch's: the threads of a
// second pool would spin against them.
#pragma once
#include <cstdint>

// Let a core's other thread run, while this one looks again and again: some tens of cycles.
static inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb");  // yield does nothing on most processors
#endif
}

extern int inferno_threads;  // set from Python to torch's number of threads

// Call task(context, i) for each i in [0, count), one task at a time on each thread, and return
// when all have returned.
void parallel_tasks(int64_t count, void (*task)(const void* context, int64_t i),
                    const void* context);

// Run `work` inside one parallel region, so that its many small parallel loops pay no fork and join
// each (see ThreadTeam in parallel.cpp).
void parallel_region(void (*work)(void* context), void* context);

// The fewest elements per thread of a loop that does little with each. Fewer are enough inside
// parallel_region, where the other threads are awake and look for work.
constexpr int64_t kAlone = 16384, kInRegion = 4096;
int64_t light_grain();

// Call body(begin, end) over [0, n): at most one range per thread, each of at least `grain` but the
// last.
template <class Body>
static inline void parallel_for(int64_t n, int64_t grain, const Body& body) {
  int64_t count = grain > 0 ? (n + grain - 1) / grain : n;
  if (count > inferno_threads) count = inferno_threads;
  if (count < 2) {
    if (n > 0) body(0, n);
    return;
  }
  auto task = [&](int64_t i) { body(n * i / count, n * (i + 1) / count); };
  using Task = decltype(task);
  parallel_tasks(count, [](const void* context, int64_t i) { (*(const Task*)context)(i); }, &task);
}

// Return how many of `count` items, `most` or up to half as many, a task has if threads are to end
// together: of 36 in tasks of 4, one of two threads computes 20. Tasks have multiples of `step`.
static inline int64_t even_chunk(int64_t count, int64_t most, int64_t step) {
  auto longest = [&](int64_t chunk) {
    int64_t tasks = (count + chunk - 1) / chunk;
    return (tasks + inferno_threads - 1) / inferno_threads * chunk;
  };
  int64_t best = most, least = longest(most);
  if (least * inferno_threads <= count + count / 32) return most;
  for (int64_t chunk = most - step; chunk >= step && 2 * chunk >= most; chunk -= step)
    if (longest(chunk) < least) best = chunk, least = longest(chunk);
  return best;
}

// Call body(begin, end) over [0, n) in ranges of `chunk`, scheduled dynamically: for uneven work,
// and for cores that other programs use too.
template <class Body>
static inline void parallel_chunks(int64_t n, int64_t chunk, const Body& body) {
  if (chunk < 1) chunk = 1;
  if (n <= chunk || inferno_threads < 2) {
    if (n > 0) body(0, n);
    return;
  }
  auto task = [&](int64_t i) { body(i * chunk, (i + 1) * chunk < n ? (i + 1) * chunk : n); };
  using Task = decltype(task);
  parallel_tasks((n + chunk - 1) / chunk,
                 [](const void* context, int64_t i) { (*(const Task*)context)(i); }, &task);
}
