// The floating types of activations and caches, as Python passes them.
#pragma once
enum Dtype : int { kFloat32 = 0, kBFloat16 = 1, kFloat16 = 2 };
// Of matrices only: float8 with a scale of each row, or of each block of 128 columns.
enum Codes : int { kFp8Rows = 3, kFp8Blocks = 4 };
