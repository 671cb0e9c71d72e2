"""Notes for the user on what the model itself brings."""

from __future__ import annotations

from inferno.catalog import ANY
from inferno.configs import RopeConfig
from inferno.contracts import AudioModelConfig, ModelConfig, encoder_of, media_of
from inferno.plan.encoders import NOTE, is_encoder
from inferno.plan.stages import Given, ModelFacts
from inferno.plan.stored import text_part_for

_OFF = {
    (): "images are",
    ("image",): "images are",
    ("audio",): "audio is",
    ("image", "audio"): "images and audio are",
}


def notes_of_model(given: Given, model: ModelFacts) -> list[str]:
    """Return the notes on the architecture: what serves it, if no plugin was made for it."""
    offered = model.architecture.value
    notes = [offered.note] if offered.note else []
    notes += [*given.encoder.notes, *getattr(given.stored, "notes", ())]
    whole = given.stored.config
    media = media_of(whole)
    if (part := text_part_for(given.stored, offered)) is not None:
        encoder, off = encoder_of(whole), _OFF[tuple(media)]
        notes.append(
            f"text only: {off} off. {model.name} has {encoder}, which is not loaded: "
            f"{len(part.left_out)} of its {len(given.stored.tensors)} tensors are unused"
        )
    else:
        hears = isinstance(model.config, AudioModelConfig)
        reads = {"image": offered.images is not None, "audio": offered.audio is not None and hears}
        notes += [
            f"{_OFF[(kind,)]} off: {model.name} has an {kind} encoder, which is not loaded"
            for kind in media
            if not reads[kind] and any(reads.values())  # else the architecture's note says it
        ]
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
