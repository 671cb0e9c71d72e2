// How each layout stores 32 columns of 16 rows, packed and unpacked to one byte per code:
// w = scale * (code - offset) - minimum.
#pragma once
#include "packed.hpp"
#include "simd.hpp"

namespace {

constexpr int kRows = 16, kColumns = 32;  // of a group
constexpr int kFours = kColumns / 4;

// The finer scales of 32 columns, relative to those of the superblock: none; two bytes (scale,
// minimum); a byte of two nibbles (scale, minimum) for each 16 columns; a signed byte for each 16;
// or a byte that is all of the scale, 2^(byte - 128): the superblock has none.
enum Sub { kNoSub, kBytes, kNibbles, kSignedBytes, kPowers };
// The minimum: none, stored beside the scale, or the scale times a zero point.
enum Min { kNoMin, kMin, kZeroPoint };

// Codes that stand for a value of a table, and are multiplied as the value plus the offset.
struct Plain { static constexpr int kBits = 0; };
struct E2m1 {  // floats of 4 bits, doubled: 0 1 2 3 4 6 8 12, then the same negated
  static constexpr int kBits = 5;
  alignas(16) static constexpr uint8_t kTable[16] = {12, 13, 14, 15, 16, 18, 20, 24,
                                                     12, 11, 10, 9,  8,  6,  4,  0};
};
struct Iq4nl {  // ggml's kvalues_iq4nl
  static constexpr int kBits = 8;
  alignas(16) static constexpr uint8_t kTable[16] = {
      128 - 127, 128 - 104, 128 - 83, 128 - 65, 128 - 49, 128 - 35, 128 - 22, 128 - 10,
      128 + 1,   128 + 13,  128 + 25, 128 + 38, 128 + 53, 128 + 69, 128 + 89, 128 + 113};
};

// BITS a stored code, GROUPS of 32 columns a superblock. Members that the other layouts have too:
// kHead, bytes before the first superblock; kSpan, how many groups have one scale of x (0: all);
// kShared, how many groups in a row have the same scale and minimum, and a scale of x each.
template <int BITS, int GROUPS, Sub SUB, Min MIN, int OFFSET, class TABLE = Plain>
struct Packed {
  static constexpr int kGroups = GROUPS, kOffset = OFFSET, kSpan = 1, kHead = 0;
  static constexpr int kShared = SUB == kNoSub ? GROUPS : 1;
  static constexpr int kStoredBits = BITS, kBits = TABLE::kBits ? TABLE::kBits : BITS;
  static constexpr Sub kSub = SUB;
  static constexpr Min kMinimum = MIN;
  // Scales for each 32 columns.
  static constexpr int kHalves = SUB == kNibbles || SUB == kSignedBytes ? 2 : 1;
  static constexpr bool kHasMin = MIN != kNoMin, kUnpacked = false;
  static constexpr int kHeader = SUB == kPowers ? 0 : kRows * (MIN == kNoMin ? 2 : 4);
  static constexpr int kSubBytes = SUB == kNoSub ? 0 : SUB == kPowers ? kRows : 2 * kRows;
  static constexpr int kGroupBytes = kSubBytes + kRows * kColumns * BITS / 8;
  static constexpr int kSuperBytes = kHeader + GROUPS * kGroupBytes;
  static constexpr bool kLines = kHeader % 64 == 0 && kSubBytes % 64 == 0 && kGroupBytes % 64 == 0;

  struct Header { F32 scale, min; };
  INL Header header(const uint8_t* p) {
    Header h;
    if (SUB == kPowers) return h;
    h.scale = load((const f16*)p);
    if (MIN != kNoMin) h.min = load((const f16*)(p + 2 * kRows));
    if (MIN == kZeroPoint && BITS == 8 && Dot<8>::kSigned) h.min = h.min - splat(128.0f);
    if (MIN == kZeroPoint) h.min = h.scale * h.min;
    return h;
  }
  // Exact: a float16 times at most 7 bits.
  INL F32 scale(const Header& h, const uint8_t* group, int half) {
    if (SUB == kBytes) return h.scale * to_f32(load(group));
    if (SUB == kNibbles) return h.scale * to_f32(nibble(group, half, 0));
    if (SUB == kSignedBytes) return h.scale * to_f32(load((const int8_t*)group + kRows * half));
    if (SUB == kPowers) return load_powers(group) * splat(0.5f);
    return h.scale;
  }
  INL F32 min(const Header& h, const uint8_t* group, int half) {
    if (SUB == kBytes) return h.min * to_f32(load(group + kRows));
    if (SUB == kNibbles) return h.min * to_f32(nibble(group, half, 4));
    return h.min;
  }
  INL I32 nibble(const uint8_t* group, int half, int shift) {
    uint8_t n[kRows];
    for (int i = 0; i < kRows; i++) n[i] = uint8_t(group[kRows * half + i] >> shift) & 15;
    return load(n);
  }
  INL B64 load_codes(const uint8_t* p) { return kLines ? load_line(p) : load_bytes(p); }
  // The codes of columns 4j .. 4j + 3.
  INL B64 codes(const uint8_t* group, int j) {
    const uint8_t* p = group + kSubBytes;
    if (BITS == 8) return Dot<8>::code(load_codes(p + 64 * j));
    if (BITS == 4 ||
        BITS ==
            5) {  // a vector of nibbles for two fours; bit j of the last one: fifth bits of four j
      B64 low = bits(load_codes(p + 64 * (j / 2)), j % 2 ? -4 : 0, 15);
      if constexpr (TABLE::kBits) return Dot<kBits>::code(look_up(TABLE::kTable, low));
      return BITS == 4 ? low : either(low, bits(load_codes(p + 256), 4 - j, 16));
    }
    if (BITS == 6) {  // for each 16 columns two vectors of nibbles and one of the bits above
      p += 192 * (j / 4);
      B64 low = bits(load_bytes(p + 64 * (j % 4 / 2)), j % 2 ? -4 : 0, 15);
      return either(low, bits(load_bytes(p + 128), 4 - 2 * (j % 4), 0x30));
    }
    B64 low = bits(load_bytes(p + 64 * (j / 4)), -2 * (j % 4), 3);
    return BITS == 2 ? low : either(low, bits(load_bytes(p + 128), 2 - j, 4));
  }
};

using Q8_0 = Packed<8, 1, kNoSub, kNoMin, 128>;
using Q4_0 = Packed<4, 1, kNoSub, kNoMin, 8>;
using Q4_1 = Packed<4, 1, kNoSub, kMin, 0>;
using Q5_0 = Packed<5, 1, kNoSub, kNoMin, 16>;
using Q5_1 = Packed<5, 1, kNoSub, kMin, 0>;
using Q2_K = Packed<2, 8, kNibbles, kMin, 0>;
using Q3_K = Packed<3, 8, kSignedBytes, kNoMin, 4>;
using Q4_K = Packed<4, 8, kBytes, kMin, 0>;
using Q5_K = Packed<5, 8, kBytes, kMin, 0>;
using Q6_K = Packed<6, 8, kSignedBytes, kNoMin, 32>;
using Mxfp4 = Packed<4, 1, kPowers, kNoMin, 12, E2m1>;
using Iq4_nl = Packed<4, 1, kNoSub, kNoMin, 128, Iq4nl>;
template <int GROUP>
using Int4 = Packed<4, GROUP / kColumns, kNoSub, kZeroPoint, 0>;
template <int GROUP>
using Int8 = Packed<8, GROUP / kColumns, kNoSub, kZeroPoint, 0>;
template <int GROUP>
using Int8Sym = Packed<8, GROUP / kColumns, kNoSub, kNoMin, 128>;

// 8-bit codes with a scale, and a zero point, for the whole row, as has x (kSpan 0): integers are
// summed over all columns. w = scale * (code - 128 - zero). UNPACKED: for many rows of x.
template <bool ZERO, bool UNPACKED = false>
struct Rows8 {
  static constexpr int kGroups = 1, kOffset = 128, kSpan = 0, kShared = 1, kHalves = 1;
  static constexpr int kBits = 8, kStoredBits = 8;
  static constexpr bool kHasMin = ZERO, kUnpacked = UNPACKED;
  static constexpr int kHead = 2 * 4 * kRows;  // float32 scales, zero points
  static constexpr int kGroupBytes = kRows * kColumns, kSuperBytes = kGroupBytes, kCodesAt = 0;

  struct Header { F32 scale, min; };
  INL Header header(const uint8_t* p) {
    return {load((const float*)p), load((const float*)p + kRows)};
  }
  INL F32 scale(const Header& h, const uint8_t*, int) { return h.scale; }
  INL B64 codes(const uint8_t* group, int j) {
    B64 line = load_line(group + 64 * j);
    return UNPACKED ? line : Dot<8>::code(line);
  }
};

// A panel unpacked for many rows of x. BITS bounds the codes; 4 also covers fewer bits.
template <int BITS, int HALVES, bool MIN, int OFFSET, int SHARED>
struct Unpacked {
  static constexpr int kBits = BITS, kGroups = SHARED, kOffset = OFFSET, kHalves = HALVES,
                       kSpan = 1, kShared = SHARED, kHead = 0;
  static constexpr bool kHasMin = MIN, kUnpacked = true;
  static constexpr int kHeader = 0;
  static constexpr int kScaleBytes = 4 * kRows * HALVES;
  static constexpr int kCodesAt = kScaleBytes * (MIN ? 2 : 1);
  static constexpr int kGroupBytes = kCodesAt + kRows * kColumns,
                       kSuperBytes = kGroups * kGroupBytes;

  struct Header {};
  INL Header header(const uint8_t*) { return {}; }
  INL F32 scale(const Header&, const uint8_t* group, int half) {
    return load((const float*)group + kRows * half);
  }
  INL F32 min(const Header&, const uint8_t* group, int half) {
    return load((const float*)(group + kScaleBytes) + kRows * half);
  }
  INL B64 codes(const uint8_t* group, int j) {
    return load_line(group + kCodesAt + 64 * j);
  }  // see unpack
};

// Where the code of a lane and a column is in the codes of an unpacked group: lanes of four
// columns, or of eight where these are multiplied at once.
#if defined(INFERNO_NEON_MATRIX)
constexpr int kAtOnce = 8;
#else
constexpr int kAtOnce = 4;
#endif
constexpr int code_at(int lane, int column) {
  return kRows * kAtOnce * (column / kAtOnce) + kAtOnce * lane + column % kAtOnce;
}

template <class L>
struct UnpackedFrom {
  using Of = Unpacked<(L::kBits < 4 ? 4 : L::kBits), L::kHalves, L::kHasMin, L::kOffset,
                      L::kShared>;
};
template <bool ZERO>
struct UnpackedFrom<Rows8<ZERO>> {
  using Of = Rows8<ZERO, true>;
};
template <class L>
using UnpackedOf = typename UnpackedFrom<L>::Of;

// Codes of an unpacked group: those of AMX are signed, less the offset, if there is one.
template <class L>
INL B64 unpacked_codes(const uint8_t* group, int j) {
#if defined(INFERNO_AMX)
  if (L::kOffset) return subtract(L::codes(group, j), L::kOffset);
#endif
  return L::codes(group, j);
}

template <class L>
INL void unpack_codes(const uint8_t* group, uint8_t* to) {
#if defined(INFERNO_NEON_MATRIX)
  UNROLL_FOR (int j = 0; j < kFours; j += 2) {
    Eights codes = interleave(L::codes(group, j), L::codes(group, j + 1));
    store_bytes(to + 64 * j, codes.low);
    store_bytes(to + 64 * j + 64, codes.high);
  }
#else
  UNROLL_FOR (int j = 0; j < kFours; j++) store_bytes(to + 64 * j, unpacked_codes<L>(group, j));
#endif
}

template <class L>
void unpack(const uint8_t* panel, uint8_t* to, int64_t groups) {
  using U = UnpackedOf<L>;
  if constexpr (L::kSpan == 0) {
    memcpy(to, panel, L::kHead);
    for (int64_t g = 0; g < groups; g++)
      unpack_codes<L>(panel + L::kHead + g * L::kGroupBytes, to + U::kHead + g * U::kGroupBytes);
    return;
  }
  if constexpr (L::kSpan != 0) {
    for (int64_t g = 0; g < groups; panel += L::kSuperBytes) {
      typename L::Header header = L::header(panel);
      for (int i = 0; i < L::kGroups; i++, g++, to += U::kGroupBytes) {
        const uint8_t* group = panel + L::kHeader + i * L::kGroupBytes;
        for (int half = 0; half < L::kHalves; half++) {
          store((float*)to + kRows * half, L::scale(header, group, half));
          if (L::kHasMin)
            store((float*)(to + U::kScaleBytes) + kRows * half, L::min(header, group, half));
        }
        unpack_codes<L>(group, to + U::kCodesAt);
      }
    }
  }
}

}  // namespace
