"""Notes for the user on what the model itself brings."""

from __future__ import annotations

from inferno.catalog import ANY
from inferno.configs import RopeConfig
from inferno.contracts import ModelConfig, encoder_of
from inferno.plan.encoders import NOTE, is_encoder
from inferno.plan.stages import Given, ModelFacts
from inferno.plan.stored import text_part_for


def notes_of_model(given: Given, model: ModelFacts) -> list[str]:
    """Return the notes on the architecture: what serves it, if no plugin was made for it."""
    offered = model.architecture.value
    notes = [offered.note] if offered.note else []
    notes += [*given.encoder.notes, *getattr(given.stored, "notes", ())]
    if (part := text_part_for(given.stored, offered)) is not None:
        encoder = encoder_of(given.stored.config)
        notes.append(
            f"text only: images are off. {model.name} has {encoder}, which is not loaded: "
            f"{len(part.left_out)} of its {len(given.stored.tensors)} tensors are unused"
        )
    if is_encoder(model.config):
        notes.append(NOTE)
    if offered.name == ANY and (hint := given.catalog.hint("architecture", model.name)):
        notes.append(f"a plugin made for {model.name} is not installed: {hint}")
    return notes


def notes_of_positions(model: ModelConfig, max_model_len: int) -> list[str]:
    """Return the note that long contexts change short prompts, where they do."""
    rope = getattr(model, "rope", None)
    if not isinstance(rope, RopeConfig):
        return []
    original = rope.outgrown(model.max_position_embeddings, max_model_len)
    if original is None:
        return []
    return [
        f"contexts may exceed the original {original} tokens, so all prompts, short ones too, are "
        f"computed with longrope's long factors; --max-model-len {original} uses the short ones"
    ]
