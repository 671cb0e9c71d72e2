"""The manifest of ranks on several machines: its group of pods, which LeaderWorkerSet makes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from attrs import evolve
from tests.test_deploy import paths

from inferno.cli.network import Network
from inferno.cli.options import plan_options
from inferno.cli.rank import command as rank
from inferno.cli.serve import Serving
from inferno.cli.serve import command as serve
from inferno.plan import machines_of, resolve
from inferno.process.ranks.greeting import parse_address
from inferno.server.options import OPEN_PATHS

FILE = Path(__file__).parents[1] / "deploy" / "kubernetes-ranks.yaml"
VERSION = "1.32"
GROUP = {
    "type": "object",
    "required": ["apiVersion", "kind", "metadata", "spec"],
    "additionalProperties": False,
    "properties": {
        "apiVersion": {"const": "leaderworkerset.x-k8s.io/v1"},
        "kind": {"const": "LeaderWorkerSet"},
        "metadata": {"type": "object"},
        "spec": {
            "type": "object",
            "required": ["leaderWorkerTemplate"],
            "additionalProperties": False,
            "properties": {
                "replicas": {"type": "integer", "minimum": 0},
                "leaderWorkerTemplate": {
                    "type": "object",
                    "required": ["workerTemplate"],
                    "additionalProperties": False,
                    "properties": {
                        "leaderTemplate": {"type": "object"},
                        "workerTemplate": {"type": "object"},
                        "size": {"type": "integer", "minimum": 1},
                        "restartPolicy": {
                            "enum": [
                                "RecreateGroupOnPodRestart",
                                "RecreateGroupAfterStart",
                                "None",
                            ]
                        },
                        "subGroupPolicy": {"type": "object"},
                    },
                },
                "rolloutStrategy": {"type": "object"},
                "startupPolicy": {"enum": ["LeaderCreated", "LeaderReady"]},
                "networkConfig": {"type": "object"},
            },
        },
    },
}
"""The schema of the custom resource, v1, without the pods' templates, which are Kubernetes' own."""


def manifests() -> dict[str, dict[str, Any]]:
    return {each["kind"]: each for each in yaml.safe_load_all(FILE.read_text())}


def templates() -> dict[str, dict[str, Any]]:
    group = manifests()["LeaderWorkerSet"]["spec"]["leaderWorkerTemplate"]
    return {"serve": group["leaderTemplate"], "rank": group["workerTemplate"]}


def test_the_group_fits_its_schema() -> None:
    jsonschema = pytest.importorskip("jsonschema", reason="pip install 'inferno[deploy]'")
    jsonschema.Draft202012Validator(GROUP).validate(manifests()["LeaderWorkerSet"])


def test_kubernetes_accepts_the_rest_and_the_pods() -> None:
    kubernetes = pytest.importorskip("kubernetes_validate", reason="pip install 'inferno[deploy]'")
    for kind, manifest in manifests().items():
        if kind != "LeaderWorkerSet":
            assert kubernetes.validate(manifest, VERSION, strict=True)
    for name, template in templates().items():
        pod = {"apiVersion": "v1", "kind": "Pod", **template}
        pod["metadata"] = {"name": name, **template["metadata"]}
        assert kubernetes.validate(pod, VERSION, strict=True)


@pytest.mark.parametrize(("name", "command"), [("serve", serve), ("rank", rank)])
def test_the_pods_commands_exist_with_their_options(name: str, command: Any) -> None:
    [container] = templates()[name]["spec"]["containers"]
    first, *arguments = container["args"]
    assert first == name
    flags = {flag for param in command.params for flag in param.opts}
    given = {argument.partition("=")[0] for argument in arguments if argument.startswith("--")}
    assert given and given <= flags
    mounted = {mount["name"] for mount in container["volumeMounts"]}
    assert mounted == {volume["name"] for volume in templates()[name]["spec"]["volumes"]}


def arguments(name: str) -> list[str]:
    """The arguments of a pod's command, with what LeaderWorkerSet and Kubernetes fill in."""
    size = manifests()["LeaderWorkerSet"]["spec"]["leaderWorkerTemplate"]["size"]
    filled = {"LWS_GROUP_SIZE": size, "LWS_LEADER_ADDRESS": "ranks-0.ranks", "POD_IP": "10.0.0.1"}
    [container] = templates()[name]["spec"]["containers"]
    words: list[str] = container["args"][1:]
    for variable, value in filled.items():
        words = [each.replace(f"$({variable})", str(value)) for each in words]
    assert not any("$(" in each for each in words), "a variable that nothing sets"
    return words


def test_the_leader_s_options_make_a_plan_of_the_whole_group(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What the options say, not only how they are called."""
    monkeypatch.setenv("INFERNO_RANK_TOKEN", "a" * 64)
    values = dict(serve.make_context("serve", arguments("serve")).params)
    assert values.pop("refs") == ("/models/model",)
    Serving.taken(values), Network.taken(values)
    plan = resolve("demo", evolve(plan_options(values), device="cpu"))
    assert plan.ranks is not None and plan.ranks.join is not None
    assert (plan.ranks.count, plan.ranks.join.nodes, plan.ranks.here) == (2, 2, 1)
    ports = {
        each["containerPort"]
        for each in templates()["serve"]["spec"]["containers"][0]["ports"]
        if each["name"] == "ranks"
    }
    assert plan.ranks.join.host == "10.0.0.1" and {plan.ranks.join.port} == ports
    machines = [len(machine.ranks) for machine in machines_of(plan)]
    assert machines == [1, 1], "a rank for each pod"


def test_the_workers_join_where_the_leader_listens() -> None:
    params = rank.make_context("rank", arguments("rank")).params
    assert parse_address(params["address"]) == ("ranks-0.ranks", 29400)
    assert params["model"] == serve.make_context("serve", arguments("serve")).params["refs"][0]


def container_of(name: str) -> dict[str, Any]:
    [container] = templates()[name]["spec"]["containers"]
    found: dict[str, Any] = container
    return found


def port_of(container: dict[str, Any], name: str) -> int:
    """The number of a container's named port."""
    [port] = [each["containerPort"] for each in container["ports"] if each["name"] == name]
    return int(port)


def test_probes_ask_the_server_where_it_listens() -> None:
    """On its port, without a key; and the service and the network's policy name the same port."""
    container, served = container_of("serve"), paths()
    values = serve.make_context("serve", arguments("serve")).params
    probes = {name: each["httpGet"] for name, each in container.items() if name.endswith("Probe")}
    assert {*probes} == {"startupProbe", "readinessProbe", "livenessProbe"}
    for name, asked in probes.items():
        assert asked["path"] in served and asked["path"] in OPEN_PATHS, name
        assert port_of(container, asked["port"]) == values["port"] == 8000
    assert values["host"] == "0.0.0.0", "probes do not come from the container"
    assert len({asked["path"] for asked in probes.values()}) == 3
    [port] = manifests()["Service"]["spec"]["ports"]
    assert port_of(container, port["targetPort"]) == values["port"]
    _, http = manifests()["NetworkPolicy"]["spec"]["ingress"]
    assert [each["port"] for each in http["ports"]] == [values["port"]]
    notes = templates()["serve"]["metadata"]["annotations"]
    assert notes["prometheus.io/path"] in served and notes["prometheus.io/port"] == "8000"
    assert not any(name.endswith("Probe") for name in container_of("rank")), "it serves nothing"


def test_kubernetes_gives_the_server_and_the_ranks_the_time_that_they_take() -> None:
    container = container_of("serve")
    values = serve.make_context("serve", arguments("serve")).params
    grace = templates()["serve"]["spec"]["terminationGracePeriodSeconds"]
    assert grace > values["shutdown_timeout"], "streams end before the pod is killed"
    for name in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container[name]["timeoutSeconds"] <= container[name]["periodSeconds"], name
    startup = container["startupProbe"]
    assert startup["periodSeconds"] * startup["failureThreshold"] >= 3600


def test_pods_write_only_where_they_may_and_files_are_mounted_where_options_say() -> None:
    for name in ("serve", "rank"):
        container = container_of(name)
        mounts = {each["mountPath"]: each for each in container["volumeMounts"]}
        assert container["securityContext"]["readOnlyRootFilesystem"]
        cache = next(e["value"] for e in container["env"] if e["name"] == "XDG_CACHE_HOME")
        volumes = {each["name"]: each for each in templates()[name]["spec"]["volumes"]}
        writable = [path for path, each in mounts.items() if not each.get("readOnly")]
        assert any(cache.startswith(f"{path}/") for path in writable), "packed weights"
        assert "emptyDir" in volumes[mounts["/tmp"]["name"]]
        [model] = [word for word in arguments(name) if "/models/" in word]
        folder = model.removeprefix("--model=").rpartition("/")[0]
        assert mounts[folder]["readOnly"], "weights are not written to"
    [keys] = [word for word in arguments("serve") if word.startswith("--keys=")]
    mounted = {each["mountPath"] for each in container_of("serve")["volumeMounts"]}
    assert keys.removeprefix("--keys=") in mounted
    names = [each["name"] for each in container_of("serve")["env"]]
    assert len(names) == len({*names}) and "POD_IP" in names


def test_ranks_know_one_token_and_are_reached_by_ranks_only() -> None:
    secrets = [
        each["valueFrom"]["secretKeyRef"]
        for template in templates().values()
        for each in template["spec"]["containers"][0]["env"]
        if each["name"] == "INFERNO_RANK_TOKEN"
    ]
    assert len(secrets) == 2 and secrets[0] == secrets[1]
    policy = manifests()["NetworkPolicy"]["spec"]
    labels = policy["podSelector"]["matchLabels"]
    for template in templates().values():
        assert labels.items() <= template["metadata"]["labels"].items()
        pod = template["spec"]
        assert pod["securityContext"]["runAsNonRoot"] and not pod["automountServiceAccountToken"]
        assert pod["containers"][0]["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    among, http = policy["ingress"]
    assert among == {"from": [{"podSelector": {"matchLabels": labels}}]}
    assert http == {"ports": [{"port": 8000}]}
    service = manifests()["Service"]["spec"]["selector"]
    assert service.items() <= templates()["serve"]["metadata"]["labels"].items()
    assert not service.items() <= templates()["rank"]["metadata"]["labels"].items()
