// Codes and scales of a batch of groups, written as ggml's blocks or as groups of 4-bit integers.
#pragma once
#include "quantize_search.hpp"

namespace {

// The float16 nearest to x, and its value.
INL float to_half(float x, uint8_t* to) {
  f16 h;
  from_float(&h, x);
  memcpy(to, &h, 2);
  return to_float(h);
}

// Codes of `groups` groups in order, from [column][group].
template <int n>
INL void in_order(const float (*codes)[kBatch], uint8_t* to) {
  alignas(64) uint8_t bytes[n][kBatch];
  for (int j = 0; j < n; j++)
    for (int g = 0; g < kBatch; g++) bytes[j][g] = uint8_t(int32_t(codes[j][g]));
  for (int g = 0; g < kBatch; g++)
    for (int j = 0; j < n; j++) to[g * n + j] = bytes[j][g];
}

// Codes of x = scale * (code - offset) + ..., where a scale is not zero: round((x + min) / scale)
// between low and high, plus `added`.
template <int n>
void requantize(const Batch<n>& b, const float* scale, const float* min, float low, float high,
                float added, float (*codes)[kBatch]) {
  for (int g = 0; g < kBatch; g += kLanes) {
    Vec d = at(scale + g), m = at(min + g);
    const Mask zero = d == 0.0f;
    d = pick(zero, all(1.0f), d);
    for (int j = 0; j < n; j++) {
      Vec code = clamped(nearest((at(b.x[j] + g) + m) / d), low, high) + added;
      put(codes[j] + g, pick(zero, at(codes[j] + g), code));
    }
  }
}

// Two nibbles in a byte: codes i and i + half.
INL void nibbles(const uint8_t* codes, int half, uint8_t* to) {
  for (int i = 0; i < half; i++) to[i] = uint8_t((codes[i] & 15) | (codes[i + half] & 15) << 4);
}
// Bit 4 of 32 codes, in order.
INL void fifth_bits(const uint8_t* codes, uint8_t* to) {
  uint32_t bits = 0;
  for (int i = 0; i < 32; i++) bits |= uint32_t(codes[i] >> 4 & 1) << i;
  memcpy(to, &bits, 4);
}
// Two bits of 256 codes, of Q2_K and Q3_K.
INL void pairs_of_bits(const uint8_t* codes, uint8_t* to) {
  for (int c = 0; c < 2; c++)
    for (int i = 0; i < 32; i++) {
      const uint8_t* l = codes + 128 * c + i;
      to[32 * c + i] = uint8_t((l[0] & 3) | (l[32] & 3) << 2 | (l[64] & 3) << 4 | (l[96] & 3) << 6);
    }
}
// 8 scales and 8 minimums of six bits, of Q4_K and Q5_K.
INL void six_bits(const uint8_t* scales, const uint8_t* mins, uint8_t* to) {
  for (int j = 0; j < 4; j++) {
    to[j] = uint8_t(scales[j] | scales[j + 4] >> 4 << 6);
    to[j + 4] = uint8_t(mins[j] | mins[j + 4] >> 4 << 6);
    to[j + 8] = uint8_t((scales[j + 4] & 15) | (mins[j + 4] & 15) << 4);
  }
}

// ---- blocks of 32 with one scale ----

template <int BITS>
INL void write_symmetric(const float* scale, const uint8_t* codes, int count, uint8_t* to) {
  constexpr int kBytes = BITS == 5 ? 22 : 18;
  for (int g = 0; g < count; g++, to += kBytes, codes += 32) {
    to_half(scale[g], to);
    if (BITS == 5) fifth_bits(codes, to + 2);
    nibbles(codes, 16, to + kBytes - 16);
  }
}
template <int BITS>
INL void write_with_min(const Scales& s, const uint8_t* codes, int count, uint8_t* to) {
  constexpr int kBytes = BITS == 5 ? 24 : 20;
  for (int g = 0; g < count; g++, to += kBytes, codes += 32) {
    to_half(s.scale[g], to);
    to_half(-s.min[g], to + 2);
    if (BITS == 5) fifth_bits(codes, to + 4);
    nibbles(codes, 16, to + kBytes - 16);
  }
}

// ---- superblocks ----

// What a group's codes are multiplied by, once the scales of its superblock are rounded.
struct Rounded {
  alignas(64) float scale[kBatch], min[kBatch];
};

// Scales and minimums of the groups of one superblock, as codes up to `most`, and the two halves
// that these are multiplied by. `weights`: of the groups; null: none.
INL void round_scales(const float* scale, const float* min, const float* weights, int groups,
                      int most, uint8_t* scale_codes, uint8_t* min_codes, uint8_t* halves,
                      Rounded* to, int first) {
  auto rounded = [&](const float* x, uint8_t* codes, uint8_t* half, float* values) {
    float factor;
    if (weights) {
      factor = search_positive(groups, most, x, weights, codes);
    } else {
      float peak = 0.0f;
      for (int i = 0; i < groups; i++) peak = x[i] > peak ? x[i] : peak;
      float inverse = peak > 0.0f ? float(most) / peak : 0.0f;
      for (int i = 0; i < groups; i++) {
        float code = nearest(inverse * x[i]);
        codes[i] = uint8_t(code > 0.0f ? code < float(most) ? code : float(most) : 0.0f);
      }
      factor = peak / float(most);
    }
    factor = to_half(factor, half);
    for (int i = 0; i < groups; i++) values[i] = factor * float(codes[i]);
  };
  rounded(scale, scale_codes, halves, to->scale + first);
  rounded(min, min_codes, halves + 2, to->min + first);
}

// The sums of the weights of each group.
template <int n>
INL void sums_of_weights(const Batch<n>& b, float* to) {
  for (int g = 0; g < kBatch; g += kLanes) {
    Vec total = all(0.0f);
    for (int j = 0; j < n; j++) total += at(b.w[j] + g);
    put(to + g, total);
  }
}

// Q4_K and Q5_K: two superblocks of 8 groups.
template <int BITS>
void write_k45(const Batch<32>& b, const Scales& s, bool weighted, float (*codes)[kBatch],
               int count, uint8_t* to) {
  constexpr int kBytes = BITS == 5 ? 176 : 144, kMost = (1 << BITS) - 1;
  alignas(64) float weights[kBatch];
  if (weighted) sums_of_weights(b, weights);
  Rounded r;
  for (int i = 0; i < 2; i++) {
    uint8_t scales[8], mins[8], halves[4], packed[12];
    round_scales(s.scale + 8 * i, s.min + 8 * i, weighted ? weights + 8 * i : nullptr, 8, 63,
                 scales, mins, halves, &r, 8 * i);
    if (i >= count) continue;
    six_bits(scales, mins, packed);
    memcpy(to + kBytes * i, halves, 4);
    memcpy(to + kBytes * i + 4, packed, 12);
  }
  requantize(b, r.scale, r.min, 0.0f, float(kMost), 0.0f, codes);
  uint8_t l[2 * 256];
  in_order<32>(codes, l);
  for (int i = 0; i < count; i++) {
    uint8_t* block = to + kBytes * i + 16;
    const uint8_t* from = l + 256 * i;
    if (BITS == 5) {
      uint8_t high[32] = {};
      for (int g = 0; g < 8; g++)
        for (int j = 0; j < 32; j++) high[j] |= uint8_t((from[32 * g + j] >> 4 & 1) << g);
      memcpy(block, high, 32);
      block += 32;
    }
    for (int c = 0; c < 4; c++) nibbles(from + 64 * c, 32, block + 32 * c);
  }
}

INL void write_q2_k(const Batch<16>& b, const Scales& s, bool weighted, float (*codes)[kBatch],
                    uint8_t* to) {
  alignas(64) float weights[kBatch];
  if (weighted) sums_of_weights(b, weights);
  Rounded r;
  uint8_t scales[16], mins[16], l[256];
  round_scales(s.scale, s.min, weighted ? weights : nullptr, 16, 15, scales, mins, to + 80, &r, 0);
  for (int j = 0; j < 16; j++) to[j] = uint8_t(scales[j] | mins[j] << 4);
  requantize(b, r.scale, r.min, 0.0f, 3.0f, 0.0f, codes);
  in_order<16>(codes, l);
  pairs_of_bits(l, to + 16);
}

// The scale of largest magnitude, with its sign.
INL float extreme(const float* scale) {
  float most = 0.0f, found = 0.0f;
  for (int j = 0; j < 16; j++)
    if (__builtin_fabsf(scale[j]) > most) {
      most = __builtin_fabsf(scale[j]);
      found = scale[j];
    }
  return found;
}

// Codes of one superblock's 16 scales, -32 .. 31 plus 32, when they are weighted.
INL float weighted_scales(const Batch<16>& b, const float* scale, uint8_t* codes) {
  alignas(64) float weights[kBatch], factor[kBatch], found[16][kBatch];
  sums_of_weights(b, weights);
  static thread_local Batch<16> alone;  // in the first lane
  memset(&alone, 0, sizeof alone);
  for (int j = 0; j < 16; j++) {
    alone.x[j][0] = scale[j];
    alone.w[j][0] = weights[j];
  }
  search_scale(alone, 32, factor, found);
  for (int j = 0; j < 16; j++) codes[j] = uint8_t(found[j][0]);
  return factor[0];
}

INL void write_q3_k(const Batch<16>& b, const float* scale, bool weighted, float (*codes)[kBatch],
                    uint8_t* to) {
  uint8_t scales[16] = {}, l[256];
  float d = 0.0f;
  if (weighted) {
    d = weighted_scales(b, scale, scales);
  } else if (float peak = extreme(scale); peak != 0.0f) {
    float inverse = -32.0f / peak;
    for (int j = 0; j < 16; j++) {
      float code = nearest(inverse * scale[j]);
      scales[j] = uint8_t((code > -32.0f ? code < 31.0f ? code : 31.0f : -32.0f) + 32.0f);
    }
    d = 1.0f / inverse;
  }
  d = to_half(d, to + 108);
  Rounded r;
  for (int j = 0; j < 16; j++) {
    r.scale[j] = d * float(scales[j] - 32);
    r.min[j] = 0.0f;
  }
  requantize(b, r.scale, r.min, -4.0f, 3.0f, 4.0f, codes);
  in_order<16>(codes, l);
  memset(to, 0, 32);
  for (int g = 0; g < 8; g++)
    for (int j = 0; j < 32; j++) to[j] |= uint8_t((l[32 * g + j] >> 2 & 1) << g);
  pairs_of_bits(l, to + 32);
  memset(to + 96, 0, 12);
  for (int j = 0; j < 16; j++) {
    to[96 + j % 8] |= uint8_t((scales[j] & 15) << (j / 8 * 4));
    to[104 + j % 4] |= uint8_t(scales[j] >> 4 << (j / 4 * 2));
  }
}

INL void write_q6_k(const Batch<16>& b, const float* scale, float (*codes)[kBatch], uint8_t* to) {
  float peak = extreme(scale);
  if (__builtin_fabsf(peak) < kTiny) {
    memset(to, 0, 210);
    return;
  }
  float inverse = -128.0f / peak, d = to_half(1.0f / inverse, to + 208);
  Rounded r;
  for (int j = 0; j < 16; j++) {
    float code = nearest(inverse * scale[j]);
    int8_t whole = int8_t(code > -128.0f ? code < 127.0f ? code : 127.0f : -128.0f);
    to[192 + j] = uint8_t(whole);
    r.scale[j] = d * float(whole);
    r.min[j] = 0.0f;
  }
  requantize(b, r.scale, r.min, -32.0f, 31.0f, 32.0f, codes);
  uint8_t l[256];
  in_order<16>(codes, l);
  for (int h = 0; h < 2; h++) {
    nibbles(l + 128 * h, 64, to + 64 * h);
    for (int i = 0; i < 32; i++) {
      const uint8_t* from = l + 128 * h + i;
      to[128 + 32 * h + i] =
          uint8_t(from[0] >> 4 | from[32] >> 4 << 2 | from[64] >> 4 << 4 | from[96] >> 4 << 6);
    }
  }
}

// ---- groups of 4-bit integers ----

// value = scale * (code - zero): the zero is the minimum in units of the scale.
template <int n>
INL void write_int4(const Batch<n>& b, const Scales& s, float (*codes)[kBatch], int count,
                    uint8_t* to, uint16_t* scales, uint16_t* zeros) {
  Rounded r;
  for (int g = 0; g < kBatch; g++) {
    uint8_t half[2];
    float scale = to_half(s.scale[g], half), zero;
    if (g < count) memcpy(scales + g, half, 2);
    zero = to_half(scale != 0.0f ? s.min[g] / scale : 0.0f, half);
    if (g < count) memcpy(zeros + g, half, 2);
    r.scale[g] = scale;
    r.min[g] = scale * zero;
  }
  requantize(b, r.scale, r.min, 0.0f, 15.0f, 0.0f, codes);
  uint8_t l[kBatch * n];
  in_order<n>(codes, l);
  for (int i = 0; i < count * n / 2; i++) to[i] = uint8_t(l[2 * i] | l[2 * i + 1] << 4);
}

}  // namespace
