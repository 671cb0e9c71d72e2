"""Which architecture a `config.json` means: by the class that it names, then by its model type.

Checkpoints name classes that no plugin offers though their code is there: the decoder without its
head, as sentence-transformers save it (`MistralModel`), an old spelling (`LLaMAForCausalLM`), a
model that also reads images, or none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from inferno.catalog.offers import Choice
from inferno.errors import CheckpointError

if TYPE_CHECKING:
    from inferno.catalog.catalog import Catalog
    from inferno.contracts import Architecture


def architecture_name(config: Mapping[str, Any]) -> str:
    """Return the class that a `config.json` names, else its model type. Raises CheckpointError if
    it has neither."""
    label = class_name(config) or config.get("model_type")
    if not isinstance(label, str) or not label:
        raise CheckpointError(
            'config.json has neither "architectures" nor "model_type"',
            "One must say what the model is: a list with the model class, or the name of its type.",
        )
    return label


def class_name(config: Mapping[str, Any]) -> str:
    """Return the first of "architectures", or an empty string. Raises CheckpointError if it is no
    list of names."""
    names = config.get("architectures") or []
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        raise CheckpointError(
            f'config.json: "architectures" is {names!r}', "It must be a list with the model class."
        )
    return names[0] if names else ""


def find_architecture(catalog: Catalog, config: Mapping[str, Any]) -> Choice[Architecture]:
    """Choose what computes the model of a `config.json`: the architecture of the class that it
    names; of its text part's type, if it reads more than text; of the same class with a head; of
    its type, if it names no class; else the fallback. Raises UnsupportedError."""
    from inferno.contracts import causal_of, text_config  # the list of commands needs neither

    name, text = class_name(config), text_config(config)
    offers = [offer.item for offer in catalog.of("inferno_architectures")]
    classes = [name] if text is not None else [name, causal_of(name)]
    for each in filter(None, classes):
        if named := [item.name for item in offers if item.is_named(each)]:
            return catalog.architecture(named[0])
        if catalog.has_lost(each):
            return catalog.architecture(each)
    typed_by = text if text is not None else {} if name else config
    kind = typed_by.get("model_type")
    if typed := [item.name for item in offers if kind in item.model_types]:
        return catalog.architecture(typed[0])
    hinted = (each for each in classes if each and catalog.hint("architecture", each))
    return catalog.architecture(next(hinted, architecture_name(config)))
