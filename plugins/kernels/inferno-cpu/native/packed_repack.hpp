// Repacking of ggml's row-major blocks, and of group-wise int4, into panels.
#pragma once
#include "packed_layout.hpp"

namespace {

// A superblock of one row.
struct Block {
  uint16_t scale, min;  // float16; of integers with zero points the second is one
  uint8_t sub[16];  // kBytes: 8 scales, then 8 minimums; with halves: a byte for each 16 columns;
                    // kPowers: the exponent
  uint8_t codes[8 * kColumns];
};

INL uint16_t half_at(const uint8_t* p) {
  uint16_t h;
  memcpy(&h, p, 2);
  return h;
}

// 32 codes from 16 bytes: low nibbles, then high ones.
INL void nibbles(const uint8_t* p, int n, uint8_t* codes) {
  for (int i = 0; i < n; i++) codes[i] = p[i] & 15;
  for (int i = 0; i < n; i++) codes[n + i] = p[i] >> 4;
}
INL void fifth_bits(const uint8_t* p, uint8_t* codes) {
  uint8_t byte[kColumns];
  for (int i = 0; i < kColumns; i++) byte[i] = p[i / 8];
  const uint8_t bit[8] = {1, 2, 4, 8, 16, 32, 64, 128};
  for (int i = 0; i < kColumns; i++) codes[i] = uint8_t(codes[i] | (byte[i] & bit[i % 8] ? 16 : 0));
}
INL void six_bit_scales(const uint8_t* p,
                        uint8_t* sub) {  // of Q4_K and Q5_K: 8 scales, then 8 minimums
  for (int i = 0; i < 4; i++) {
    sub[i] = p[i] & 63;
    sub[4 + i] = uint8_t((p[8 + i] & 15) | (p[i] >> 6 << 4));
    sub[8 + i] = p[4 + i] & 63;
    sub[12 + i] = uint8_t((p[8 + i] >> 4) | (p[4 + i] >> 6 << 4));
  }
}
INL void two_bits(const uint8_t* p, uint8_t* codes) {  // of Q2_K and Q3_K
  for (int c = 0; c < 2; c++)
    for (int s = 0; s < 4; s++)
      for (int i = 0; i < 32; i++) codes[c * 128 + s * 32 + i] = (p[c * 32 + i] >> (2 * s)) & 3;
}

struct FromQ8_0 {
  using Layout = Q8_0;
  static constexpr int kBytes = 34;
  INL void decode(const uint8_t* p, Block* b) {
    b->scale = half_at(p);
    for (int i = 0; i < 32; i++) b->codes[i] = p[2 + i] ^ 0x80;
  }
};
struct FromQ4_0 {
  using Layout = Q4_0;
  static constexpr int kBytes = 18;
  INL void decode(const uint8_t* p, Block* b) {
    b->scale = half_at(p);
    nibbles(p + 2, 16, b->codes);
  }
};
struct FromQ4_1 {  // w = scale * code + m: its minimum is -m
  using Layout = Q4_1;
  static constexpr int kBytes = 20;
  INL void decode(const uint8_t* p, Block* b) {
    b->scale = half_at(p);
    b->min = half_at(p + 2) ^ 0x8000;
    nibbles(p + 4, 16, b->codes);
  }
};
struct FromQ5_0 {
  using Layout = Q5_0;
  static constexpr int kBytes = 22;
  INL void decode(const uint8_t* p, Block* b) {
    b->scale = half_at(p);
    nibbles(p + 6, 16, b->codes);
    fifth_bits(p + 2, b->codes);
  }
};
struct FromQ5_1 {
  using Layout = Q5_1;
  static constexpr int kBytes = 24;
  INL void decode(const uint8_t* p, Block* b) {
    b->scale = half_at(p);
    b->min = half_at(p + 2) ^ 0x8000;
    nibbles(p + 8, 16, b->codes);
    fifth_bits(p + 4, b->codes);
  }
};
struct FromQ2_K {
  using Layout = Q2_K;
  static constexpr int kBytes = 84;
  INL void decode(const uint8_t* p, Block* b) {
    memcpy(b->sub, p, 16);
    two_bits(p + 16, b->codes);
    b->scale = half_at(p + 80);
    b->min = half_at(p + 82);
  }
};
struct FromQ3_K {
  using Layout = Q3_K;
  static constexpr int kBytes = 110;
  INL void decode(const uint8_t* p, Block* b) {
    two_bits(p + 32, b->codes);
    for (int s = 0; s < 8; s++)
      for (int i = 0; i < 32; i++)
        b->codes[s * 32 + i] = uint8_t(b->codes[s * 32 + i] | ((p[i] >> s) & 1) << 2);
    for (int i = 0; i < 16; i++) {
      int low = (p[96 + i % 8] >> (i / 8 * 4)) & 15, high = (p[104 + i % 4] >> (i / 4 * 2)) & 3;
      b->sub[i] = uint8_t((low | high << 4) - 32);
    }
    b->scale = half_at(p + 108);
  }
};
struct FromQ4_K {
  using Layout = Q4_K;
  static constexpr int kBytes = 144;
  INL void decode(const uint8_t* p, Block* b) {
    b->scale = half_at(p);
    b->min = half_at(p + 2);
    six_bit_scales(p + 4, b->sub);
    for (int c = 0; c < 4; c++) nibbles(p + 16 + 32 * c, 32, b->codes + 64 * c);
  }
};
struct FromQ5_K {
  using Layout = Q5_K;
  static constexpr int kBytes = 176;
  INL void decode(const uint8_t* p, Block* b) {
    b->scale = half_at(p);
    b->min = half_at(p + 2);
    six_bit_scales(p + 4, b->sub);
    for (int c = 0; c < 4; c++) nibbles(p + 48 + 32 * c, 32, b->codes + 64 * c);
    for (int s = 0; s < 8; s++)
      for (int i = 0; i < 32; i++)
        b->codes[s * 32 + i] = uint8_t(b->codes[s * 32 + i] | ((p[16 + i] >> s) & 1) << 4);
  }
};
struct FromQ6_K {
  using Layout = Q6_K;
  static constexpr int kBytes = 210;
  INL void decode(const uint8_t* p, Block* b) {
    for (int h = 0; h < 2; h++) {
      uint8_t* codes = b->codes + 128 * h;
      nibbles(p + 64 * h, 64, codes);
      for (int s = 0; s < 4; s++)
        for (int i = 0; i < 32; i++)
          codes[s * 32 + i] =
              uint8_t(codes[s * 32 + i] | ((p[128 + 32 * h + i] >> (2 * s)) & 3) << 4);
    }
    memcpy(b->sub, p + 192, 16);
    b->scale = half_at(p + 208);
  }
};
struct FromMxfp4 {
  using Layout = Mxfp4;
  static constexpr int kBytes = 17;
  INL void decode(const uint8_t* p, Block* b) {
    b->sub[0] = p[0];
    nibbles(p + 1, 16, b->codes);
  }
};
struct FromIq4_nl {
  using Layout = Iq4_nl;
  static constexpr int kBytes = 18;
  INL void decode(const uint8_t* p, Block* b) {
    b->scale = half_at(p);
    nibbles(p + 2, 16, b->codes);
  }
};
template <int GROUP>
struct FromInt4 {
  using Layout = Int4<GROUP>;
  static constexpr int kBytes = GROUP / 2;
  INL void decode(const uint8_t* p, Block* b) {
    for (int i = 0; i < GROUP / 2; i++) {
      b->codes[2 * i] = p[i] & 15;
      b->codes[2 * i + 1] = p[i] >> 4;
    }
  }
};

template <int GROUP, class LAYOUT>
struct FromInt8 {
  using Layout = LAYOUT;
  static constexpr int kBytes = GROUP;
  INL void decode(const uint8_t* p, Block* b) { memcpy(b->codes, p, GROUP); }
};

typedef uint32_t Lanes[kRows];  // four codes of each row

// The inverse of Packed::codes: 32 columns, as eight fours.
template <int BITS>
INL void encode(const Lanes* four, uint8_t* to) {
  constexpr int kVectors = BITS == 8 ? 8 : BITS;
  constexpr uint32_t kOnes = 0x01010101;
  Lanes v[kVectors];
  for (int r = 0; r < kRows; r++) {
    uint32_t q[kFours];
    UNROLL_FOR (int j = 0; j < kFours; j++) q[j] = four[j][r];
    if constexpr (BITS == 8) {
      UNROLL_FOR (int j = 0; j < 8; j++) v[j][r] = q[j];
    } else if constexpr (BITS == 4 || BITS == 5) {
      UNROLL_FOR (int i = 0; i < 4; i++)
        v[i][r] = (q[2 * i] & 15 * kOnes) | (q[2 * i + 1] & 15 * kOnes) << 4;
    } else if constexpr (BITS == 6) {
      UNROLL_FOR (int h = 0; h < 2; h++) {
        const uint32_t* s = q + 4 * h;
        UNROLL_FOR (int i = 0; i < 2; i++)
          v[3 * h + i][r] = (s[2 * i] & 15 * kOnes) | (s[2 * i + 1] & 15 * kOnes) << 4;
        uint32_t high = 0;
        UNROLL_FOR (int j = 0; j < 4; j++) high |= ((s[j] >> 4) & 3 * kOnes) << (2 * j);
        v[3 * h + 2][r] = high;
      }
    } else {
      UNROLL_FOR (int i = 0; i < 2; i++) {
        uint32_t low = 0;
        UNROLL_FOR (int j = 0; j < 4; j++) low |= (q[4 * i + j] & 3 * kOnes) << (2 * j);
        v[i][r] = low;
      }
    }
    if constexpr (BITS == 5 || BITS == 3) {
      uint32_t high = 0;
      UNROLL_FOR (int j = 0; j < kFours; j++) high |= ((q[j] >> (BITS - 1)) & kOnes) << j;
      v[kVectors - 1][r] = high;
    }
  }
  memcpy(to, v, sizeof v);
}

template <class L>
INL void encode_superblock(const Block* rows, uint8_t* to) {
  for (int r = 0; r < kRows && L::kHeader; r++) {
    memcpy(to + 2 * r, &rows[r].scale, 2);
    if (L::kHasMin) memcpy(to + 2 * kRows + 2 * r, &rows[r].min, 2);
  }
  to += L::kHeader;
  for (int g = 0; g < L::kGroups; g++, to += L::kGroupBytes) {
    for (int r = 0; r < kRows && L::kSub != kNoSub; r++) {
      to[r] = rows[r].sub[L::kHalves == 2 ? 2 * g : g];
      if (L::kSub == kPowers) continue;
      to[kRows + r] = rows[r].sub[L::kHalves == 2 ? 2 * g + 1 : 8 + g];
    }
    Lanes fours[kFours];
    for (int r = 0; r < kRows; r++)
      for (int j = 0; j < kFours; j++)
        memcpy(&fours[j][r], rows[r].codes + g * kColumns + 4 * j, 4);
    encode<L::kStoredBits>(fours, to + L::kSubBytes);
  }
}

// Repack panel `p`, 16 of N rows.
template <class From>
void repack_panel(const uint8_t* source, int64_t row_bytes, const uint16_t* scales,
                  const uint16_t* zeros, uint8_t* panel, int64_t p, int64_t N, int64_t K) {
  using L = typename From::Layout;
  Block rows[kRows];
  memset(rows, 0, sizeof rows);  // rows beyond the last stay zero
  int64_t blocks = K / (L::kGroups * kColumns),
          count = N - p * kRows < kRows ? N - p * kRows : kRows;
  for (int64_t b = 0; b < blocks; b++, panel += L::kSuperBytes) {
    for (int64_t r = 0; r < count; r++) {
      int64_t n = p * kRows + r;
      uint8_t block[From::kBytes];  // a copy: tells the compiler that source and panel do not alias
      memcpy(block, source + n * row_bytes + b * From::kBytes, sizeof block);
      From::decode(block, &rows[r]);
      if (scales) rows[r].scale = scales[n * blocks + b];
      if (zeros) rows[r].min = zeros[n * blocks + b];
    }
    encode_superblock<L>(rows, panel);
  }
}

// Scales and zero points are float32.
template <bool ZERO>
void repack_rows(const uint8_t* source, int64_t row_bytes, const uint16_t* scales,
                 const uint16_t* zeros, uint8_t* panel, int64_t p, int64_t N, int64_t K) {
  int64_t first = p * kRows, count = N - first < kRows ? N - first : kRows;
  float head[2][kRows] = {};
  for (int64_t r = 0; r < count; r++) {
    memcpy(&head[0][r], (const float*)scales + first + r, 4);
    if (ZERO) memcpy(&head[1][r], (const float*)zeros + first + r, 4), head[1][r] -= 128.0f;
  }
  memcpy(panel, head, sizeof head);
  panel += Rows8<ZERO>::kHead;
  for (int64_t k = 0; k < K; k += 4, panel += 4 * kRows)
    for (int64_t r = 0; r < kRows; r++) {
      if (r < count)
        memcpy(panel + 4 * r, source + (first + r) * row_bytes + k, 4);
      else
        memset(panel + 4 * r, 0, 4);
    }
}

}  // namespace
