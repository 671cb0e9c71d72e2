// Work shared by the threads of the process's one OpenMP runtime: torch's. A second pool would spin against it.
#pragma once
#include <cstdint>

extern int inferno_threads;  // set from Python to torch's number

// piece(context, i) for each i in [0, count), each by the next idle thread; returns when all are done.
void in_pieces(int64_t count, void (*piece)(const void* context, int64_t i), const void* context);

// All that `work` does, in one go of the threads: what it shares then, in hundreds of small portions, costs no round of wake-up and
// waiting each time (see Team in parallel.cpp).
void together(void (*work)(void* context), void* context);

// body(begin, end) over [0, n), in at most one piece per thread, none smaller than `grain` but the last.
template <class Body>
static inline void parallel_for(int64_t n, int64_t grain, const Body& body) {
  int64_t pieces = grain > 0 ? (n + grain - 1) / grain : n;
  if (pieces > inferno_threads) pieces = inferno_threads;
  if (pieces < 2) {
    if (n > 0) body(0, n);
    return;
  }
  auto piece = [&](int64_t i) { body(n * i / pieces, n * (i + 1) / pieces); };
  using Piece = decltype(piece);
  in_pieces(pieces, [](const void* context, int64_t i) { (*(const Piece*)context)(i); }, &piece);
}

// body(begin, end) over [0, n) in pieces of `chunk`, each taken by the next idle thread: for uneven work, and cores that are
// not all free.
template <class Body>
static inline void parallel_chunks(int64_t n, int64_t chunk, const Body& body) {
  if (chunk < 1) chunk = 1;
  if (n <= chunk || inferno_threads < 2) {
    if (n > 0) body(0, n);
    return;
  }
  auto piece = [&](int64_t i) { body(i * chunk, (i + 1) * chunk < n ? (i + 1) * chunk : n); };
  using Piece = decltype(piece);
  in_pieces((n + chunk - 1) / chunk, [](const void* context, int64_t i) { (*(const Piece*)context)(i); }, &piece);
}
