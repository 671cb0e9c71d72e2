"""A model's layers from the tensors of a checkpoint: loading, pairing, quantizing, packing."""
