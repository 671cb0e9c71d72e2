// transpose() of the levels with AVX.
#pragma once

INL void transpose8(const char* rows, int64_t row_bytes,
                    char* to) {  // eight rows, to the lower halves
  __m256 a[8], b[8];
  UNROLL_FOR (int r = 0; r < 8; r++) a[r] = _mm256_loadu_ps((const float*)(rows + r * row_bytes));
  UNROLL_FOR (int r = 0; r < 8; r += 2) {
    b[r] = _mm256_unpacklo_ps(a[r], a[r + 1]);
    b[r + 1] = _mm256_unpackhi_ps(a[r], a[r + 1]);
  }
  UNROLL_FOR (int r = 0; r < 8; r += 4) {
    a[r] = _mm256_shuffle_ps(b[r], b[r + 2], 0x44);
    a[r + 1] = _mm256_shuffle_ps(b[r], b[r + 2], 0xee);
    a[r + 2] = _mm256_shuffle_ps(b[r + 1], b[r + 3], 0x44);
    a[r + 3] = _mm256_shuffle_ps(b[r + 1], b[r + 3], 0xee);
  }
  UNROLL_FOR (int r = 0; r < 4; r++) {
    _mm256_stream_ps((float*)(to + r * 64), _mm256_permute2f128_ps(a[r], a[r + 4], 0x20));
    _mm256_stream_ps((float*)(to + (r + 4) * 64), _mm256_permute2f128_ps(a[r], a[r + 4], 0x31));
  }
}
INL void transpose(const char* rows, int64_t row_bytes, char* to) {
  transpose8(rows, row_bytes, to);
  transpose8(rows + 8 * row_bytes, row_bytes, to + 32);
}
INL void end_of_stores() {
  _mm_sfence();
}  // makes the non-temporal stores of transpose visible to other threads
