// The floating types of activations and caches, as Python passes them.
#pragma once
enum Dtype : int { kFloat32 = 0, kBFloat16 = 1, kFloat16 = 2 };
