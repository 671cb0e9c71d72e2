"""sentence-transformers' `Dense`: a linear layer behind the pooling, with an activation.

Suffixes: N vectors, I inputs, O outputs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from attrs import frozen

Array = Any
"""A numpy array, which is imported with the first layer."""


@frozen(eq=False)
class Dense:
    """One layer, in float64: its result, rounded to float32, is the same in any batch."""

    weight_OI: Array
    bias_O: Array | None
    activation: str
    adds_input: bool = False
    """Whether the input is added to the output."""
    residual_OI: Array | None = None
    """What the added input is multiplied by, if their sizes differ."""

    @property
    def num_inputs(self) -> int:
        return int(self.weight_OI.shape[1])

    @property
    def num_outputs(self) -> int:
        return int(self.weight_OI.shape[0])

    @classmethod
    def of(cls, module: Mapping[str, Any]) -> Dense | str:
        """Read a module of `TextAssets.modules`. Returns why not, if it computes something else."""
        settings = module.get("config", {})
        name = str(module.get("path") or "Dense")
        source = settings.get("module_input_name", "sentence_embedding")
        target = settings.get("module_output_name") or source
        if (source, target) != ("sentence_embedding", "sentence_embedding"):
            return f"its {name} turns {source} into {target}"
        activation = settings.get("activation_function", "torch.nn.modules.activation.Tanh")
        kind = str(activation).rpartition(".")[2]
        if not str(activation).startswith("torch.") or kind not in _ACTIVATIONS:
            return f"its {name} has the activation {activation}"
        if "read" not in module:
            return f"its {name} has no model.safetensors"
        return cls._read(module["read"](), settings, name, kind)

    @classmethod
    def _read(
        cls, tensors: Mapping[str, Array], settings: Mapping[str, Any], name: str, activation: str
    ) -> Dense | str:
        import numpy as np

        shape = settings.get("out_features"), settings.get("in_features")
        wanted: dict[str, tuple[Any, ...]] = {"linear.weight": shape}
        if settings.get("bias", True):
            wanted["linear.bias"] = shape[:1]
        residual = bool(settings.get("use_residual", False))
        if residual and shape[0] != shape[1]:
            wanted["residual.weight"] = shape
        stored = {key: tuple(value.shape) for key, value in tensors.items()}
        if stored != wanted:
            return f"its {name} has the tensors {stored} instead of {wanted}"
        arrays = {key: value.astype(np.float64) for key, value in tensors.items()}
        return cls(
            weight_OI=arrays["linear.weight"],
            bias_O=arrays.get("linear.bias"),
            activation=activation,
            adds_input=residual,
            residual_OI=arrays.get("residual.weight"),
        )

    def __call__(self, x_NI: Array) -> Array:
        y_NO = x_NI @ self.weight_OI.T
        if self.bias_O is not None:
            y_NO = y_NO + self.bias_O
        y_NO = _ACTIVATIONS[self.activation](y_NO)
        if self.adds_input:
            y_NO = y_NO + (x_NI if self.residual_OI is None else x_NI @ self.residual_OI.T)
        return y_NO


def _gelu(x: Array) -> Array:
    import numpy as np

    return x * 0.5 * (1 + np.vectorize(math.erf, otypes=[float])(x / math.sqrt(2)))


def _relu(x: Array) -> Array:
    import numpy as np

    return np.maximum(x, 0)


def _tanh(x: Array) -> Array:
    import numpy as np

    return np.tanh(x)


def _sigmoid(x: Array) -> Array:
    return (1 + _tanh(x / 2)) / 2


_ACTIVATIONS: Mapping[str, Callable[[Array], Array]] = {
    "Identity": lambda x: x,
    "Tanh": _tanh,
    "ReLU": _relu,
    "GELU": _gelu,
    "Sigmoid": _sigmoid,
    "SiLU": lambda x: x * _sigmoid(x),
}
"""Classes of `torch.nn`, as they are without arguments."""
