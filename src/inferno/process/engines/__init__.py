"""Several engines that share requests, each with the whole model (data parallelism)."""
