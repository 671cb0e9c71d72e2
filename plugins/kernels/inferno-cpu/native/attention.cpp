// Attention over the paged cache. Compiled once for each instruction set.
#include "attention.hpp"

#include <type_traits>

#include "attention_cache.hpp"
#include "attention_softmax.hpp"
#include "attention_tile.hpp"
#include "attention_whole.hpp"
#include "attention_work.hpp"
#include "parallel.hpp"

namespace {

// Up to kPanels panels of keys and of values, and their scales.
template <class E>
struct Panels {
  const E *keys[kPanels], *values[kPanels];
  const float *k_scales[kPanels], *v_scales[kPanels];

  int count = 0;

  // Those of a tile from panel `first` on, up to a multiple of kPanels: see list_tiles. Prefetches
  // their scales.
  void locate(const AttentionStep& step, const Tile& tile, int64_t first) {
    int64_t size = int64_t(16) * step.C;
    count = int(min(kPanels - first % kPanels, tile.end - first));
    for (int64_t p = 0; p < kPanels; p++) {
      int64_t panel = panel_of(step, tile.sequence, tile.head, first + min(p, count - 1));
      keys[p] = (const E*)step.k_cache + panel * size,
      values[p] = (const E*)step.v_cache + panel * size;
      k_scales[p] = sizeof(E) == 1 ? step.k_scales + panel * 16 : nullptr;
      v_scales[p] = sizeof(E) == 1 ? step.v_scales + panel * 16 : nullptr;
      if constexpr (sizeof(E) == 1) fetch<64>(k_scales[p]), fetch<64>(v_scales[p]);
    }
  }
};

// Call body with whether to prefetch: the first group of rows does it for the others.
template <bool Ahead, bool OneGroup, class Body>
INL void prefetching(int group, const Body& body) {
  if constexpr (Ahead && !OneGroup) {
    return group == 0 ? body(std::true_type{}) : body(std::false_type{});
  } else {
    return body(std::integral_constant<bool, Ahead>{});
  }
}

// Up to this many rows, memory is the limit, and the softmax is computed row by row.
constexpr int kFew = 4;
// Bytes of each panel of values that are prefetched before the softmax, as memory would be idle
// during it; `weigh` prefetches the rest.
constexpr int kEarly = 512;

// Rows computed at once, and the range of panels they see.
struct Group { int start, rows, first, stop; };

// Compute scores, softmax and weighted values of `count` panels of a cache of E, here as P.
template <bool Ahead, class E, class X, class P>
void attend_panels(const AttentionStep& step, const Tile& tile, int64_t base, int count,
                   const Softmax& softmax, const P* const* keys, const P* const* values,
                   const P* const* keys_ahead, const P* const* values_ahead, TileSums& sums,
                   Scratch& own) {
  constexpr bool kScaled = sizeof(E) == 1, kOneGroup = !__is_same(X, P);  // see kDirect
  const int heads = step.H / step.K, rows = tile.tokens * heads, blocks = step.C / 16;
  const X* q = (const X*)own.q;
  X* weights = sizeof(X) == 2 ? (X*)own.weights : (X*)own.scores;
  Group groups[kTileRows / kGroup + 1];
  int num_groups = 0;
  for (int start = 0; start < rows; start += kGroup) {
    Group group = {start, int(min(kGroup, rows - start)), 0, 0};
    int64_t low = step.window ? tile.position + start / heads + 1 - step.window - base : 0;
    int64_t high = tile.position + (start + group.rows - 1) / heads + 1 - base;
    group.first = int(max(0, low) / 16), group.stop = int(min(count, (max(0, high) + 15) / 16));
    if (group.first < group.stop) groups[num_groups++] = group;
  }
  const int per_pass = num_groups == 1 ? count : panels_at_once(kGroup);
  for (int p = 0; p < count; p += per_pass)
    for (int g = 0; g < num_groups; g++) {
      const Group& group = groups[g];
      int first = int(max(p, group.first)), stop = int(min(p + per_pass, group.stop));
      if (first < stop)
        with_rows(group.rows, [&](auto n) {
          prefetching<Ahead, kOneGroup>(g, [&](auto ahead) {
            score_panels<decltype(n)::value, decltype(ahead)::value>(
                q + group.start * kStride, step.C, keys, keys_ahead, first, stop,
                own.scores + group.start * kKeys);
          });
        });
    }
  if constexpr (Ahead)
    for (int p = 0; p < count; p++) fetch<kEarly>(values_ahead[p]);
  const auto each_row = [&](auto body) {
    for (int g = 0; g < num_groups; g++)
      for (int r = groups[g].start; r < groups[g].start + groups[g].rows; r++) {
        int64_t high = tile.position + r / heads + 1 - base,
                low = step.window ? high - step.window : 0;
        if (count == kPanels && low <= 0 && high >= kKeys) {
          body(std::true_type{}, r, groups[g], low, high);
        } else {
          body(std::false_type{}, r, groups[g], low, high);
        }
      }
  };
  const auto top_of = [&](auto whole, int r, const Group& group, int64_t low, int64_t high) {
    const float* amplitudes =
        kScaled ? step.waves.amplitudes + row_of(step, tile, r) * step.waves.count : nullptr;
    return softmax.exponents_of<kScaled, decltype(whole)::value>(
        own.scores + r * kKeys, own.q_units[r], amplitudes, base, group.first, group.stop, low,
        high);
  };
  const auto set_weights = [&](auto whole, int r, const Group& group, int64_t low, int64_t high) {
    own.weights_units[r] = softmax.weights_of<kScaled, decltype(whole)::value, E>(
        own.scores + r * kKeys, weights + r * kKeys, group.first, group.stop, low, high,
        sums.best[r], own.fade[r], sums.weights + 16 * r);
  };
  if (rows <= kFew) {
    each_row([&](auto whole, int r, const Group& group, int64_t low, int64_t high) {
      own.fade[r] = raise(sums.best[r], top_of(whole, r, group, low, high));
      set_weights(whole, r, group, low, high);
    });
  } else {  // all maxima first, then all weights: neither waits for the other's latency
    float tops[kBests];
    for (int r = 0; r < rows; r += 16) store(tops + r, splat(kNothing));
    each_row([&](auto whole, int r, const Group& group, int64_t low, int64_t high) {
      tops[r] = top_of(whole, r, group, low, high);
    });
    raise(sums.best, tops, rows, own.fade);
    each_row(set_weights);
  }
  const int columns = num_groups == 1 ? blocks : columns_at_once(kGroup);
  for (int b = 0; b < blocks; b += columns)
    for (int g = 0; g < num_groups; g++) {
      const Group& group = groups[g];
      with_rows(group.rows, [&](auto n) {
        prefetching<Ahead, kOneGroup>(g, [&](auto ahead) {
          weigh_panels<decltype(n)::value, decltype(ahead)::value, kScaled>(
              weights + group.start * kKeys + 16 * group.first, values + group.first,
              values_ahead + group.first, group.stop - group.first, b,
              int(min(blocks, b + columns)), own.fade + group.start,
              own.weights_units + group.start, sums.out + group.start * kStride);
        });
      });
    }
}

template <class E>
void store_one(const AttentionStep& step, int64_t t, int head) {
  if constexpr (sizeof(E) == 1) {
    switch (step.dtype) {
      case kFloat32: return store_token<E, float>(step, t, head);
      case kBFloat16: return store_token<E, bf16>(step, t, head);
      default: return store_token<E, f16>(step, t, head);
    }
  } else {
    store_token<E, E>(step, t, head);
  }
}

template <class X, class E>
void attend_tile(const AttentionStep& step, const Tile& tile, const Tile* next,
                 const WorkList& work) {
  Scratch& own = own_scratch();
  const int rows = tile.tokens * (step.H / step.K), C = step.C;
  const int64_t size = int64_t(16) * C;
  if (tile.split == tile.num_splits - 1 && tile.stores) store_one<E>(step, tile.query, tile.head);
  read_queries<E, X>(step, tile, own);
  const bool one_run = tile.end <= (tile.begin / kRunPanels + 1) * kRunPanels;
  own.sums.clear(rows, C);
  if (!one_run) own.run.clear(rows, C);
  TileSums* sums = &own.sums;  // the first run is added to nothing
  Softmax softmax;
  softmax.soft_cap = step.soft_cap;
  softmax.scale = step.soft_cap > 0 ? step.scale / step.soft_cap : step.scale * kLog2e;
  if (sizeof(E) == 1 && step.waves.count)
    softmax.waves = {step.waves.lines, step.waves.used + tile.head * step.waves.count,
                     step.waves.stride, step.waves.count};
  Panels<E> now, then;
  if (tile.begin < tile.end) then.locate(step, tile, tile.begin);
  for (int64_t begin = tile.begin; begin < tile.end; begin += now.count) {
    if (begin > tile.begin && begin % kRunPanels == 0) {
      if (sums == &own.run) move_sums(own.run, rows, C, own.sums);
      sums = &own.run;
    }
    now = then;
    const int count = now.count;
    if (begin + count < tile.end) {
      then.locate(step, tile, begin + count);
    } else if (next && next->begin < next->end) {
      then.locate(step, *next, next->begin);
    }
    for (int p = 0; p < kPanels; p++)
      softmax.k_scales[p] = now.k_scales[p], softmax.v_scales[p] = now.v_scales[p];
    const int known = int(tile.context - 16 * (begin + count - 1));
    if (known < 16 && sizeof(E) > 1) {  // an 8-bit value is finite, and its weight is 0
      copy_known(now.values[count - 1], C, known, (E*)own.padded);
      now.values[count - 1] = (const E*)own.padded;
    }
    if (rows <= kDirect || __is_same(X, E)) {
      attend_panels<true, E, X>(step, tile, 16 * begin, count, softmax, now.keys, now.values,
                                then.keys, then.values, *sums, own);
      continue;
    }
    const X *keys[kPanels], *values[kPanels];
    for (int p = 0; p < count; p++) {
      X *k = (X*)own.keys + p * size, *v = (X*)own.values + p * size;
      expand(now.keys[p], then.keys[p], size, k), expand(now.values[p], then.values[p], size, v);
      keys[p] = k, values[p] = v;
    }
    attend_panels<false, E, X>(step, tile, 16 * begin, count, softmax, keys, values, keys, values,
                               *sums, own);
  }
  if (sums == &own.run) move_sums(own.run, rows, C, own.sums);
  finish(step, tile, work, own);
}

template <class X, class E>
void attend_in(const AttentionStep& step) {
  WorkList& work = own_work;
  list_work(step, work);
  // Tokens of a span see each other's keys: store them all first. A single token is stored by the
  // tile that attends from it.
  parallel_for(work.stored * step.K, 64, [&](int64_t begin, int64_t end) {
    for (const Span* span = work.spans; span < work.spans + work.num_spans; span++) {
      if (span->tokens < 2) continue;
      int64_t base = span->stored * step.K;
      for (int64_t i = max(begin, base); i < min(end, base + span->tokens * step.K); i++)
        store_one<E>(step, span->query + (i - base) % span->tokens, int((i - base) / span->tokens));
    }
  });
  const int threads = int(min(inferno_threads, work.count));
  int64_t taken = 0;
  auto take = [&] { return __atomic_fetch_add(&taken, 1, __ATOMIC_RELAXED); };
  // While many tiles are left, take the next one early and prefetch its first panels.
  auto run_tiles = [&] {
    for (int64_t i = take(), next; i < work.count; i = next >= 0 ? next : take()) {
      next = __atomic_load_n(&taken, __ATOMIC_RELAXED) + 2 * threads <= work.count ? take() : -1;
      attend_tile<X, E>(step, work.tiles[i],
                        next >= 0 && next < work.count ? work.tiles + next : nullptr, work);
    }
  };
  parallel_for(threads, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i++) run_tiles();
  });
}

void attend(const AttentionStep& step) {
#if defined(INFERNO_BF16)
  using Wide = bf16;  // type in which bfloat16 is computed
#else
  using Wide = float;
#endif
  if (step.S < 1) return;
  bool wide = step.dtype == kBFloat16;
  switch (step.cache_kind) {
    case kFp8: return wide ? attend_in<Wide, fp8>(step) : attend_in<float, fp8>(step);
    case kInt8: return attend_in<int16_t, int8_t>(step);
    default: break;
  }
  switch (step.dtype) {
    case kFloat32: return attend_in<float, float>(step);
    case kBFloat16: return attend_in<Wide, bf16>(step);
    default: return attend_in<float, f16>(step);
  }
}

}  // namespace

extern const Attention INFERNO_EXPORT(attention);
const Attention INFERNO_EXPORT(attention) = {attend, attend_whole};
