"""Outputs of the engine, of which each step makes one for each sequence."""

from __future__ import annotations

from inferno.process import protocol
from inferno.request.requests import EngineOutput, FinishReason, Logprobs


def test_only_what_is_no_default_travels() -> None:
    tokens = [EngineOutput(f"request-{i}", 40_000 + i) for i in range(256)]
    message = protocol.encode(tokens)
    assert len(message) < 256 * 40
    assert protocol.decode_tokens(message) == tokens


def test_every_field_arrives_at_the_client() -> None:
    last = EngineOutput(
        request_id="a",
        token_id=7,
        finish=FinishReason.STOP,
        stop_id=7,
        logprobs=Logprobs(7, -0.5, 1, ((7, -0.5), (8, -1.5))),
        prompt_logprobs=(None, Logprobs(5, -2.0, 3)),
        num_cached=16,
        num_host=8,
        num_disk=4,
        num_remote=2,
        queue_seconds=0.25,
        num_drafts=3,
        num_accepted=2,
        embedding=(0.5, -0.5),
        error="a cause\na remedy",
        error_kind="RequestError",
        weight_version="2",
    )
    assert all(getattr(last, name) for name in EngineOutput.__struct_fields__), "none is a default"
    [arrived] = protocol.decode_tokens(protocol.encode([last]))
    assert repr(arrived) == repr(last)


def test_outputs_are_equal_however_long_their_requests_have_waited() -> None:
    assert EngineOutput("a", 1, queue_seconds=0.1) == EngineOutput("a", 1, queue_seconds=0.2)
    assert EngineOutput("a", 1) != EngineOutput("a", 2)
    assert EngineOutput("a", 1) != "a"
