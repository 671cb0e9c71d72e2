"""Native CPU kernels for inferno. Imports no torch until a model is built."""
