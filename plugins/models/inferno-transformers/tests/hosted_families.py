"""What the tests of families through transformers' own module share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from inferno.testing import (
    ArchitectureTests,
    Catalog,
    generate,
    load_catalog,
    load_toy,
    randomize,
)

TINY: dict[str, Any] = {
    "vocab_size": 160,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}


class HostedTests(ArchitectureTests):
    """The fallback alone, whatever other plugins have of the family."""

    @pytest.fixture(scope="class")
    @classmethod
    def catalog(cls) -> Catalog:
        return load_catalog(only=["inferno-transformers"])

    @pytest.mark.slow
    def test_captured_decode_steps_change_nothing(  # type: ignore[override]
        self, checkpoint: Path, prompts: list[list[int]]
    ) -> None:
        """Of the fallback beside the installed kernels, which capture them."""
        kernels = [offer.distribution for offer in load_catalog().of("inferno_kernels")]
        catalog = load_catalog(only=["inferno-transformers", *kernels])
        toy = load_toy(checkpoint, catalog)
        toy = toy if toy.plan.attention else load_toy(checkpoint, catalog, block_size=16)
        plain = generate(toy, prompts, 24)
        super().test_captured_decode_steps_change_nothing(toy, plain, catalog, prompts)

    # Another process: once for all, below.
    test_discovery_and_config_import_no_torch: Any = None
    # transformers' modules have no names in GGUF files.
    test_a_gguf_file_gives_the_same_tokens: Any = None
    test_names_in_gguf_files_are_those_of_llama_cpp: Any = None


class FamilyTests(HostedTests):
    """What a family could get wrong: its numbers, and whether its tokens see each other."""

    test_neighbours_in_the_batch_change_nothing: Any = None
    test_the_block_size_changes_nothing: Any = None
    test_a_prefix_found_in_the_cache_changes_nothing: Any = None
    test_preemption_changes_nothing: Any = None
    test_a_missing_misshapen_or_foreign_tensor_is_an_error_that_names_it: Any = None


def reference_of(config: dict[str, Any]) -> Any:
    """transformers' model of a toy config, random."""
    from transformers import AutoConfig, AutoModelForCausalLM

    fields = {k: v for k, v in config.items() if k not in ("model_type", "architectures")}
    model = AutoModelForCausalLM.from_config(
        AutoConfig.for_model(config["model_type"], **fields), dtype=torch.float32
    )
    randomize(model)
    return model.eval()


def family(name: str, **fields: Any) -> dict[str, Any]:
    """A toy config of transformers' model type `name`."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as classes

    return {**TINY, "architectures": [classes[name]], "model_type": name, **fields}


def assert_same_tokens(
    config: dict[str, Any], folder: Path, tolerance: float, **options: Any
) -> None:
    """Compare packed prompts, and tokens one by one, with transformers' on each sequence alone. The
    tolerance is that of logits."""
    reference = reference_of(config)
    reference.save_pretrained(folder)
    toy = load_toy(folder, only=("inferno-transformers",), **options)
    prompts = [[5, 6, 7], [9, 20, 31, 42] * 10, [11]]
    for prompt, outcome in zip(prompts, generate(toy, prompts, 6), strict=True):
        ids = torch.tensor([[*prompt, *outcome.token_ids]])
        with torch.inference_mode():
            expected_NV = reference(ids, use_cache=False).logits[0, len(prompt) - 1 : -1]
        torch.testing.assert_close(outcome.logits_NV, expected_NV, rtol=tolerance, atol=tolerance)
        assert list(outcome.token_ids) == expected_NV.argmax(-1).tolist()
