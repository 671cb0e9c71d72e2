// Work shared by the threads of the process's one OpenMP runtime: torch's. A second pool would spin against it.
#pragma once
#include <cstdint>

#ifdef _OPENMP
#include <omp.h>
#endif

extern int inferno_threads;  // set from Python to torch's number

// body(begin, end) over [0, n), in at most one piece per thread, none smaller than `grain` but the last.
template <class Body>
static inline void parallel_for(int64_t n, int64_t grain, const Body& body) {
  int64_t pieces = grain > 0 ? (n + grain - 1) / grain : n;
  int threads = int(pieces < inferno_threads ? pieces : inferno_threads);
#ifdef _OPENMP
  if (threads > 1) {
#pragma omp parallel num_threads(threads)
    {
      int64_t t = omp_get_thread_num(), of = omp_get_num_threads();
      int64_t begin = n * t / of, end = n * (t + 1) / of;
      if (begin < end) body(begin, end);
    }
    return;
  }
#endif
  if (n > 0) body(0, n);
}

// body(begin, end) over [0, n) in pieces of `chunk`, each taken by the next idle thread: for uneven work, and cores that are
// not all free.
template <class Body>
static inline void parallel_chunks(int64_t n, int64_t chunk, const Body& body) {
  if (chunk < 1) chunk = 1;
  int64_t pieces = (n + chunk - 1) / chunk;
  int threads = int(pieces < inferno_threads ? pieces : inferno_threads);
#ifdef _OPENMP
  if (threads > 1) {
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads)
    for (int64_t i = 0; i < pieces; i++) body(i * chunk, (i + 1) * chunk < n ? (i + 1) * chunk : n);
    return;
  }
#endif
  for (int64_t i = 0; i < pieces; i++) body(i * chunk, (i + 1) * chunk < n ? (i + 1) * chunk : n);
}
