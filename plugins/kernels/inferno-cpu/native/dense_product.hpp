// Products of float matrices with any number of tokens: what is packed, which thread multiplies
// what, and where results go. gemm_float.hpp multiplies the tiles.
//
// M tokens, N rows of the weights, K columns.
#pragma once
#include "dense_codes.hpp"
#include "parallel.hpp"
#include "problems.hpp"
#include "scratch.hpp"

namespace {

constexpr int64_t kChunkBytes = 256 << 10;     // of weights in one task
#if defined(INFERNO_AMX)
constexpr int64_t kResidentBytes = 1 << 20;  // of activations: half of the second-level cache
constexpr int64_t kBlockSteps = 8;           // of two panels and of tokens: 16 KiB of each
#else
constexpr int64_t kResidentBytes = 256 << 10;  // of activations: half of a small second-level cache
#endif
constexpr int64_t kMinTiles = 4;  // of a task, even if their activations exceed kResidentBytes
constexpr int64_t kSlice = 512;   // tokens packed at a time
constexpr int64_t kAhead = 2048;  // bytes prefetched ahead in a panel that is read once

template <class E>
struct Steps;
template <>
struct Steps<float> {
  using Of = ColumnSteps<float>;
};
template <>
struct Steps<f16> {
  using Of = ColumnSteps<f16>;
};
template <>
struct Steps<bf16> {
  using Of = Bf16Steps;
};

template <class S>
INL int64_t steps_of(int64_t K) {
  return (K + S::kColumns - 1) / S::kColumns;
}

// ---- activations ----

// M tokens split into tiles of nearly equal size.
struct Tiles {
  int64_t M, count;
  Tiles(int64_t M, int tokens) : M(M), count((M + tokens - 1) / tokens) {}
  int64_t begin(int64_t i) const { return M / count * i + (i < M % count ? i : M % count); }
  int size(int64_t i) const { return int(M / count + (i < M % count)); }
};

INL void sixteen(const bf16* x, float* to) { store(to, load(x)); }
INL void sixteen(const f16* x, float* to) { store(to, load(x)); }
INL void sixteen(const float* x, float* to) { store(to, load(x)); }
INL void sixteen(const bf16* x, uint32_t* to) { memcpy(to, x, 64); }

INL void single(const bf16* x, int64_t, float* to) { *to = to_float(*x); }
INL void single(const f16* x, int64_t, float* to) { *to = to_float(*x); }
INL void single(const float* x, int64_t, float* to) { *to = *x; }
INL void single(const bf16* x, int64_t left, uint32_t* to) {
  *to = x[0].bits | (left > 1 ? uint32_t(x[1].bits) << 16 : 0);
}

// Pack T rows of x as [K, padded to full steps][T].
template <class S, class A>
void pack(const A* x, int64_t x_stride, int64_t T, int64_t K, typename S::X* to) {
  using X = typename S::X;
  constexpr int64_t kEach = S::kColumns / S::kPerStep;  // columns in one X
  int64_t count = steps_of<S>(K) * S::kPerStep, whole = K / kEach / 16 * 16;
  X sixteens[kTokens][16];
  for (int64_t i = 0; i < whole; i += 16) {
    for (int64_t t = 0; t < T; t++)
      sixteen(x + t * x_stride + i * kEach, T == 1 ? to + i : sixteens[t]);
    if (T > 1)
      for (int64_t j = 0; j < 16; j++)
        for (int64_t t = 0; t < T; t++) to[(i + j) * T + t] = sixteens[t][j];
  }
  for (int64_t i = whole; i < count; i++)
    for (int64_t t = 0; t < T; t++) {
      to[i * T + t] = X(0);
      if (i * kEach < K) single(x + t * x_stride + i * kEach, K - i * kEach, to + i * T + t);
    }
}

#if defined(INFERNO_AMX)
template <>
void pack<Bf16Tiles, bf16>(const bf16* x, int64_t x_stride, int64_t T, int64_t K, bf16* to) {
  pack_rows(x, x_stride, T, K, to);
}
#endif

// ---- results ----

// Row `skew` of the first panel is the first row of the matrix.
template <class A>
struct Store {
  A* y;
  const float* bias;
  int64_t N, skew;
  // Fetch where the results of two panels will be written.
  void ahead(int64_t panel, int64_t token) const {
    __builtin_prefetch(y + token * N + panel * 16 - skew, 1);
  }
  void operator()(int64_t, int64_t panel, int64_t token, F32 sum) const {
    A* to = y + token * N;
    int64_t n = panel * 16 - skew;
    if (n >= 0 && n + 16 <= N) return store(to + n, bias ? sum + load(bias + n) : sum);
    float lanes[16];
    store(lanes, sum);
    for (int64_t i = n < 0 ? -n : 0; i < 16 && n + i < N; i++)
      from_float(to + n + i, bias ? lanes[i] + bias[n + i] : lanes[i]);
  }
};

struct Best {
  float value;
  int32_t id;
};

struct ArgMax {
  Best* best;  // [tasks][M]
  int64_t M, N;
  void ahead(int64_t, int64_t) const {}
  void operator()(int64_t task, int64_t panel, int64_t token, F32 sum) const {
    Best& b = best[task * M + token];
    if (!(largest(max(sum, splat(-__builtin_inff()))) > b.value) && N - panel * 16 >= 16) return;
    float lanes[16];
    store(lanes, sum);
    for (int64_t i = 0; i < 16 && panel * 16 + i < N; i++)
      if (lanes[i] > b.value) b = {lanes[i], int32_t(panel * 16 + i)};
  }
};

// ---- the product ----

// The tasks of a product: each multiplies some panels, read once, by tiles of tokens that stay in
// the thread's cache meanwhile. Tasks of the same tokens are consecutive.
struct TaskGrid {
  int64_t panels, tiles;  // of one task
  int64_t across, down;   // number of tasks along panels, along tiles
  TaskGrid(int64_t count, int64_t panel_bytes, int R, int64_t tile_count, int64_t tile_bytes,
           int64_t target) {
    panels = whole(
        kChunkBytes / panel_bytes < count / target ? kChunkBytes / panel_bytes : count / target, R);
    across = (count + panels - 1) / panels;
    tiles = kResidentBytes / tile_bytes < kMinTiles ? kMinTiles : kResidentBytes / tile_bytes;
    down = (tile_count + tiles - 1) / tiles;
    if (down * across < target && tile_count > kMinTiles) down = (target + across - 1) / across;
    if (down == 1) {
      panels = even_chunk(count, panels, R);
      across = (count + panels - 1) / panels;
    }
    tiles = (tile_count + down - 1) / down;
    down = (tile_count + tiles - 1) / tiles;
  }
  static int64_t whole(int64_t n, int64_t R) { return n < R ? R : n / R * R; }
};

// Elements of the results of a tile.
template <class S>
constexpr int kTileOut = (tokens_of<S> > kTokens ? 64 : 24) * 16;

template <class S>
struct Product {
  using X = typename S::X;
  int w_dtype;
  int64_t K;
  const char* w;
  int64_t count, panel_bytes, steps;
  const X* x;
  Tiles tiles;
  int R;

  // Multiply one tile of tokens by R panels from `panel` on. Prefetch the `share`-th of `of` parts
  // of the panels at `ahead`.
  template <class Sink>
  void group(int64_t task, int64_t panel, int64_t i, const char* ahead, int64_t share, int64_t of,
             const Sink& sink) const {
    int T = tiles.size(i), present = int(count - panel < R ? count - panel : R);
    alignas(64) float out[kTileOut<S>];
    const X* tokens = x + tiles.begin(i) * steps * S::kPerStep;
    tile_for<S>(T, tiles.count == 1)(w + panel * panel_bytes, panel_bytes, present, tokens, steps,
                                     ahead + share * (panel_bytes / of), S::kBytes / of, out);
    for (int r = 0; r < present; r++)
      for (int t = 0; t < T; t++)
        sink(task, panel + r, tiles.begin(i) + t, load(out + (r * T + t) * 16));
  }

  // Where packed tokens begin: of panels of codes, all tiles of a block of columns follow each
  // other. Within whole rows they would be some power of two apart, and share few lines of a cache.
  X* block_tokens(int64_t b, int64_t columns) const {
    return (X*)x + b * (columns / S::kColumns * S::kPerStep) * tiles.M;
  }

  // Pack tile i of the tokens that begin at `from`.
  template <class A>
  void pack_tile(const A* from, int64_t from_stride, int64_t i) const {
    int64_t at = tiles.begin(i), width = is_codes(w_dtype) ? CodePanel(w_dtype, K).block : K;
    from += at * from_stride;
    for (int64_t k = 0, b = 0; k < K; k += width, b++) {
      int64_t columns = K - k < width ? K - k : width;
      pack<S>(from + k, from_stride, tiles.size(i), columns,
              block_tokens(b, width) + at * steps_of<S>(columns) * S::kPerStep);
    }
  }

  // As `run`, of panels of codes: each block is decoded once for all tokens of the task, whose sums
  // stay in memory meanwhile.
  template <class Sink>
  void run_codes(int64_t task, int64_t begin, int64_t end, int64_t first, int64_t last,
                 const Sink& sink) const {
    CodePanel about(w_dtype, K);
    auto decode = decode_for<S>(w_dtype);
    int64_t start = tiles.begin(first), tokens = tiles.begin(last) - start;
    bool few = kDecodesFew<S> && tiles.count == 1 && tokens <= kFewTokens;
    char* decoded = (char*)scratch<2>(size_t(R * (kDecodedBytes<S> + tokens * 64)));
    float* sums = (float*)(decoded + R * kDecodedBytes<S>);
    for (int64_t g = begin; g < end; g += R) {
      int present = int(count - g < R ? count - g : R);
      const char* panels = w + g * panel_bytes;
      for (int64_t b = 0; b < about.blocks; b++) {
        int64_t columns = K - b * about.block < about.block ? K - b * about.block : about.block;
        int64_t count = steps_of<S>(columns);
        const char* codes = panels + about.codes_at + b * about.block_bytes;
        for (int r = 0; r < present && !few; r++)
          decode(codes + r * panel_bytes, columns, decoded + r * kDecodedBytes<S>);
        F32 scales[4];
        for (int r = 0; r < present; r++) scales[r] = about.scale(panels + r * panel_bytes, b);
        for (int64_t i = first; i < last; i++) {
          int T = tiles.size(i);
          float* sum = sums + (tiles.begin(i) - start) * R * 16;
          for (int j = 0; j < present * T; j++) __builtin_prefetch(sum + j * 16, 1);
          alignas(64) float out[kTileOut<S>];
          const X* tokens = block_tokens(b, about.block) + tiles.begin(i) * count * S::kPerStep;
          if constexpr (kDecodesFew<S>)
            if (few)
              multiply_codes<S>(w_dtype, codes, panel_bytes, present, tokens, T, columns, out);
          if (!few)
            tile_for<S>(T, tiles.count == 1)(decoded, kDecodedBytes<S>, present, tokens, count,
                                             decoded, 0, out);
          for (int r = 0; r < present; r++)
            for (int j = r * T * 16; j < (r + 1) * T * 16; j += 16)
              store(sum + j,
                    b ? fma(load(out + j), scales[r], load(sum + j)) : load(out + j) * scales[r]);
        }
      }
      for (int64_t i = first; i < last; i++)
        for (int r = 0, T = tiles.size(i); r < present; r++)
          for (int t = 0; t < T; t++)
            sink(task, g + r, tiles.begin(i) + t,
                 load(sums + ((tiles.begin(i) - start) * R + r * T + t) * 16));
    }
  }

#if defined(INFERNO_AMX)
  // As `run`, of many tokens: by blocks of columns, of which the panels stay in the first-level
  // cache for all tiles of tokens. Sums stay in memory meanwhile: they are the same, bit for bit.
  template <class Sink>
  void run_blocks(int64_t task, int64_t begin, int64_t end, int64_t first, int64_t last,
                  int64_t later, const Sink& sink) const {
    int64_t start = tiles.begin(first), tokens = tiles.begin(last) - start;
    float* sums = (float*)scratch<2>(size_t(R * tokens * 64));
    for (int64_t g = begin; g < end; g += R) {
      int present = int(count - g < R ? count - g : R);
      int64_t next = g + R < end ? g + R : later < count ? later : g;
      for (int64_t s = 0; s < steps; s += kBlockSteps) {
        int64_t block = steps - s < kBlockSteps ? steps - s : kBlockSteps;
        const char* at = w + g * panel_bytes + s * S::kBytes;
        for (int64_t i = first; i < last; i++) {
          int T = tiles.size(i);
          float* sum = sums + (tiles.begin(i) - start) * R * 16;
          const X* tokens = x + (tiles.begin(i) * steps + T * s) * S::kPerStep;
          int64_t share = S::kBytes / (last - first);
          const char* ahead = w + next * panel_bytes + s * S::kBytes + (i - first) * block * share;
          bool done = s + block == steps;
          if (done)
            for (int t = 0; t < T; t++) sink.ahead(g, tiles.begin(i) + t);
          (s ? tile_for<Bf16TilesOnto>(T, false) : tile_for<S>(T, false))(
              at, panel_bytes, present, tokens, block, ahead, share, sum);
          if (done)  // both panels of a token at once: they are one line of y
            for (int t = 0; t < T; t++)
              for (int r = 0; r < present; r++)
                sink(task, g + r, tiles.begin(i) + t, load(sum + (r * T + t) * 16));
        }
      }
    }
  }
#endif

  template <class Sink>
  void run(const TaskGrid& grid, int64_t at, const Sink& sink) const {
    int64_t begin = at % grid.across * grid.panels,
            end = begin + grid.panels < count ? begin + grid.panels : count;
    int64_t first = at / grid.across * grid.tiles,
            last = first + grid.tiles < tiles.count ? first + grid.tiles : tiles.count;
    int64_t of = last - first;
#if defined(INFERNO_AMX)
    TilesReleased released;
#endif
    if constexpr (kDecodes<S>)
      if (is_codes(w_dtype)) return run_codes(at, begin, end, first, last, sink);
    // Threads take tasks in turns: after the last panels of this one follow those of a later one.
    int64_t later = at % grid.across * grid.panels + inferno_threads * grid.panels;
#if defined(INFERNO_AMX)
    if constexpr (__is_same(S, Bf16Tiles))
      if (of > 1) return run_blocks(at, begin, end, first, last, later, sink);
#endif
    for (int64_t g = begin; g < end; g += R) {
      int64_t next = g + R < end ? g + R : later < count ? later : g;
      for (int64_t i = first; i < last; i++) {
        if (of == 1)
          group(at, g, i, w + g * panel_bytes + kAhead, 0, 1, sink);
        else
          group(at, g, i, w + next * panel_bytes, i - first, of, sink);
      }
    }
  }
};

// One matrix times some tokens.
template <class S>
struct Problem {
  Product<S> product;
  TaskGrid grid;
  int64_t matrix, token;  // index in the stack; first row of x
  int64_t tile, task;     // first ones, counted through all problems
  int64_t task_count() const { return grid.across * grid.down; }
};

template <class S>
int64_t panel_bytes_of(int w_dtype, int64_t K) {
  return is_codes(w_dtype) ? CodePanel(w_dtype, K).bytes : steps_of<S>(K) * S::kBytes;
}

// The problem of M tokens, which will be packed at `packed`, in about `target` tasks.
template <class S>
Problem<S> problem_of(int w_dtype, const char* panels, int64_t count, int64_t K,
                      const typename S::X* packed, int64_t M, int64_t target) {
  Tiles tiles(M, tokens_of<S>);
  int64_t steps = steps_of<S>(K), columns = is_codes(w_dtype) && kBlock < K ? kBlock : K;
  int64_t tile_bytes =  // read again for each panel, or for each block of one
      tokens_of<S> * steps_of<S>(columns) * S::kPerStep * int64_t(sizeof(typename S::X));
  int R = tiles.count == 1 ? panels_for(int(M)) : kPanels;
  Product<S> product{w_dtype, K,      panels, count, panel_bytes_of<S>(w_dtype, K),
                     steps,   packed, tiles,  R};
  TaskGrid grid(count, product.panel_bytes, R, tiles.count, tile_bytes, target);
  return {product, grid, 0, 0, 0, 0};
}

int64_t target_tasks() { return 4 * inferno_threads; }  // enough to balance the load

template <class S>
typename S::X* packed_tokens(int64_t M, int64_t K) {
  return (typename S::X*)scratch<0>(size_t(M * steps_of<S>(K) * S::kPerStep) *
                                    sizeof(typename S::X));
}

// Pack the tokens of all `count` problems, then compute the products.
template <class S, class A, class SinkOf>
void multiply(const A* x, int64_t x_stride, int64_t K, const Problem<S>* problems, int64_t count,
              const SinkOf& sink_of) {
  const Problem<S>& last = problems[count - 1];
  int64_t row = steps_of<S>(K) * S::kPerStep, tiles = last.tile + last.product.tiles.count;
  int64_t tokens = last.token + last.product.tiles.M - problems->token;
  parallel_for(
      tiles, 1 + (int64_t(16) << 10) * tiles / (row * tokens), [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; i++) {
          const Problem<S>& problem = problem_at(problems, count, &Problem<S>::tile, i);
          problem.product.pack_tile(x + problem.token * x_stride, x_stride, i - problem.tile);
        }
      });
  parallel_chunks(last.task + last.task_count(), 1, [&](int64_t begin, int64_t end) {
    for (int64_t at = begin; at < end; at++) {
      const Problem<S>& problem = problem_at(problems, count, &Problem<S>::task, at);
      problem.product.run(problem.grid, at - problem.task, sink_of(problem));
    }
  });
}

}  // namespace
