"""vllm.rs's names of two instances, of which one computes prompts for the other."""

from __future__ import annotations

import secrets
import signal
import subprocess
import sys
from typing import Any

import pytest
from tests.stores.test_apart import PROMPTS, SHORT, ask, joined, wait_for
from tests.stores.test_stored_caches import load

from inferno.cli.link_options import PD_URL, fold_roles
from inferno.errors import OptionError


@pytest.mark.parametrize(
    ("given", "ours"),
    [
        ({"pd_server": True}, {"prefill_for": PD_URL}),
        ({"pd_client": True, "pd_url": "tcp://h:7"}, {"decode_with": "tcp://h:7"}),
        ({"pd_server": True, "prefill_for": "shm://a"}, {"prefill_for": "shm://a"}),
        ({"decode_with": "shm://a"}, {"decode_with": "shm://a"}),
    ],
)
def test_they_mean_prefill_for_and_decode_with(given: dict[str, Any], ours: dict[str, Any]) -> None:
    fold_roles(given)
    assert given == ours


def test_a_url_without_a_role_is_refused() -> None:
    with pytest.raises(OptionError, match="neither --pd-server nor --pd-client"):
        fold_roles({"pd_url": "shm://a"})


@pytest.mark.slow
def test_a_pd_server_has_no_port_and_ends_by_a_signal() -> None:
    pytest.importorskip("inferno_disaggregated")
    url = f"shm://test-{secrets.token_hex(6)}"
    command = [sys.executable, "-m", "inferno", "serve", "demo", "--pd-server", "--pd-url", url]
    options = ["--device", "cpu", "--memory", "512MiB", "--block-size", "16", "--threads", "1"]
    process = subprocess.Popen([*command, *options], stderr=subprocess.PIPE, text=True)
    engine = load("demo", decode_with=url, **SHORT)
    try:
        wait_for(lambda: joined(engine) or process.poll() is not None)
        assert ask(engine, PROMPTS[0])[1].num_remote == 96
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=30)
        assert process.returncode == 0
        assert f"for those that call {url}" in said and "http" not in said
    finally:
        process.kill()
        process.wait()
        engine.close()
