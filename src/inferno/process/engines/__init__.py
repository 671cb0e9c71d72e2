"""Several engines that share requests, each with the whole model, or with some of its experts
(data parallelism)."""
