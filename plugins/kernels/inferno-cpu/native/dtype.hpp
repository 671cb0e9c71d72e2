// The floating types of activations and caches, as Python passes them.
#pragma once
enum Dtype : int { kFloat32 = 0, kBFloat16 = 1, kFloat16 = 2 };
// Of matrices only: float8 with a scale of each row, or of each block of 128 columns; and codes of a
// table, in groups of columns of a row.
enum Codes : int {
  kFp8Rows = 3,
  kFp8Blocks = 4,
  kNf4_g32 = 5,
  kNf4_g64 = 6,
  kNf4_g128 = 7,
  kFp4_g32 = 8,
  kFp4_g64 = 9,
  kFp4_g128 = 10,
};
