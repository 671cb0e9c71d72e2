"""The files under `deploy/` fit the software: each is read by its own validator where that is
installed, and every flag, metric and path in them exists."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from click.testing import CliRunner
from litestar.testing import TestClient
from tests.server.server_fakes import FakeLLM

from inferno.cli import cli
from inferno.cli.serve import command
from inferno.server import ServerOptions, create_app
from inferno.server.access.keys import Keys, read_keys
from inferno.server.options import OPEN_PATHS

DEPLOY = Path(__file__).parents[1] / "deploy"
FILES = sorted(path for path in DEPLOY.rglob("*") if path.is_file())
_METRIC = re.compile(r"\binferno_[a-z_0-9]+")


def validator(name: str) -> str:
    """The path of a program that checks a file's format; skips the test without it."""
    beside = Path(sys.executable).parent / name  # of this environment, activated or not
    program = str(beside) if beside.exists() else shutil.which(name)
    if program is None:
        pytest.skip(f"{name} is not installed")
    return program


def library(name: str) -> Any:
    """A module that checks a file's format; skips the test without it."""
    return pytest.importorskip(name, reason=f"{name} is missing: pip install 'inferno[deploy]'")


def checked(*args: str) -> None:
    done = subprocess.run(args, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def metrics() -> set[str]:
    """Every name that a server exports."""
    app = create_app(FakeLLM(), ServerOptions(api_keys=Keys(["k"]), key_metrics=True))  # type: ignore[arg-type]
    with TestClient(app) as http:
        headers = {"Authorization": "Bearer k"}
        body = {"messages": [{"role": "user", "content": "hi"}]}
        assert http.post("/v1/chat/completions", json=body, headers=headers).status_code == 200
        text = http.get("/metrics", headers=headers).text
    return {
        line.partition(" ")[0].partition("{")[0] for line in text.splitlines() if line[0] != "#"
    }


def paths() -> set[str]:
    app = create_app(FakeLLM())  # type: ignore[arg-type]
    return {route.path for route in app.routes}


def manifests() -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text()))


def rules() -> list[dict[str, Any]]:
    [group] = yaml.safe_load((DEPLOY / "prometheus" / "rules.yml").read_text())["groups"]
    entries: list[dict[str, Any]] = group["rules"]
    return entries


def expressions() -> Iterator[str]:
    """Every PromQL expression."""
    yield from (rule["expr"] for rule in rules())
    for panel in json.loads((DEPLOY / "grafana" / "inferno.json").read_text())["panels"]:
        yield from (target["expr"] for target in panel["targets"])


def test_every_metric_of_the_dashboard_and_the_rules_is_exported(metrics: set[str]) -> None:
    used = {name for text in expressions() for name in _METRIC.findall(text)}
    assert len(used) > 12
    assert used - metrics == set()


def test_every_label_is_one_that_its_metrics_may_have() -> None:
    known = {"model_name", "le", "status", "state", "finished_reason", "key", "job", "instance"}
    for text in expressions():
        selected = re.findall(r"[{,]\s*([a-z_]+)\s*(?:=~|!~|!=|=)", text)
        grouped = [name for by in re.findall(r"by \(([^)]*)\)", text) for name in by.split(", ")]
        assert {*selected, *grouped} <= known, text
        assert text.count("(") == text.count(")") and text.count("{") == text.count("}")


def test_alerts_say_what_to_look_at() -> None:
    for rule in rules():
        assert rule["alert"].startswith("Inferno")
        assert rule["labels"]["severity"] in ("info", "warning", "critical")
        assert rule["annotations"]["summary"].endswith(".")


def test_the_dashboards_panels_do_not_overlap() -> None:
    dashboard = json.loads((DEPLOY / "grafana" / "inferno.json").read_text())
    panels = [panel["gridPos"] for panel in dashboard["panels"]]
    cells = [
        (x, y)
        for at in panels
        for x in range(at["x"], at["x"] + at["w"])
        for y in range(at["y"], at["y"] + at["h"])
    ]
    assert len(cells) == len(set(cells)) and max(x for x, _ in cells) < 24
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(panels)


def test_every_expression_is_promql() -> None:
    promql = library("promql_parser")
    for text in expressions():
        promql.parse(text.replace("$__rate_interval", "5m").replace("$model", ".*"))


def test_promtool_accepts_the_rules_and_the_configuration() -> None:
    promtool = validator("promtool")
    checked(promtool, "check", "rules", str(DEPLOY / "prometheus" / "rules.yml"))
    checked(promtool, "check", "config", str(DEPLOY / "prometheus" / "prometheus.yml"))


def test_the_configuration_is_one_that_serve_reads() -> None:
    file = DEPLOY / "inferno.toml"
    result = CliRunner().invoke(cli, ["serve", "--config", str(file), "--print-config"])
    assert result.exit_code == 0, result.output
    printed, written = tomllib.loads(result.output), tomllib.loads(file.read_text())
    assert printed["models"].keys() == written["models"].keys()
    assert {name: printed[name] for name in written if name != "models"} == {
        name: value for name, value in written.items() if name != "models"
    }


def test_the_keys_are_ones_that_serve_reads() -> None:
    keys = read_keys(DEPLOY / "keys.toml")
    assert any(key.admin for key in keys)
    models = tomllib.loads((DEPLOY / "inferno.toml").read_text())["models"]
    assert {name for key in keys for name in key.models} <= set(models)
    assert Keys((), DEPLOY / "keys.toml").needed


def command_lines() -> list[list[str]]:
    """Every `inferno serve` with its arguments."""
    unit = (DEPLOY / "systemd" / "inferno.service").read_text()
    [start] = re.findall(r"^ExecStart=(.*)$", unit, re.MULTILINE)
    container = (DEPLOY / "Containerfile").read_text()
    [entry] = re.findall(r"^ENTRYPOINT (.*)$", container, re.MULTILINE)
    [default] = re.findall(r"^CMD (.*)$", container, re.MULTILINE)
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    [deployment] = [each for each in manifests() if each["kind"] == "Deployment"]
    [inside] = deployment["spec"]["template"]["spec"]["containers"]
    assert json.loads(entry) == ["inferno"]
    return [
        shlex.split(start)[1:],
        json.loads(default),
        compose["services"]["inferno"]["command"],
        inside["args"],
    ]


def test_every_command_line_is_one_that_the_program_takes() -> None:
    flags = {o for p in command.params if isinstance(p, click.Option) for o in p.opts}
    for line in command_lines():
        assert line[0] == "serve"
        assert {word for word in line if word.startswith("--")} <= flags
        assert line[line.index("--config") + 1] == "/etc/inferno/inferno.toml"


def test_every_probe_is_a_path_that_needs_no_key() -> None:
    probes = set()
    for manifest in manifests():
        containers = manifest["spec"].get("template", {}).get("spec", {}).get("containers", ())
        probes |= {
            probe["httpGet"]["path"]
            for container in containers
            for name, probe in container.items()
            if name.endswith("Probe") and "httpGet" in probe
        }
    probes |= set(re.findall(r":8000(/[a-z]+)", (DEPLOY / "Containerfile").read_text()))
    assert probes == {"/health", "/livez", "/readyz", "/startupz"}
    assert probes <= set(OPEN_PATHS) & paths()
    config = tomllib.loads((DEPLOY / "inferno.toml").read_text())
    scrape = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
    assert scrape["scrape_configs"][0]["metrics_path"] in {*config["open_path"]} & paths()
    for proxy in ("nginx.conf", "Caddyfile"):
        assert "/metrics" in (DEPLOY / proxy).read_text()


def test_the_server_has_time_to_drain() -> None:
    config = tomllib.loads((DEPLOY / "inferno.toml").read_text())
    unit = (DEPLOY / "systemd" / "inferno.service").read_text()
    [deployment] = [each for each in manifests() if each["kind"] == "Deployment"]
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    times = [
        int(re.findall(r"^TimeoutStopSec=(\d+)$", unit, re.MULTILINE)[0]),
        deployment["spec"]["template"]["spec"]["terminationGracePeriodSeconds"],
        int(compose["services"]["inferno"]["stop_grace_period"].removesuffix("s")),
    ]
    assert all(seconds > config["shutdown_timeout"] for seconds in times)


def test_kubernetes_objects_refer_to_each_other() -> None:
    by_kind = {each["kind"]: each for each in manifests()}
    assert set(by_kind) == {
        *("PersistentVolumeClaim", "Service", "Deployment", "PodDisruptionBudget")
    }
    template = by_kind["Deployment"]["spec"]["template"]
    labels = by_kind["Deployment"]["spec"]["selector"]["matchLabels"]
    assert labels == by_kind["Service"]["spec"]["selector"]
    assert labels == by_kind["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"]
    assert labels.items() <= template["metadata"]["labels"].items()
    [container] = template["spec"]["containers"]
    mounted = {mount["name"] for mount in container["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in template["spec"]["volumes"]}
    assert mounted == set(volumes)
    claim = volumes["models"]["persistentVolumeClaim"]["claimName"]
    assert claim == by_kind["PersistentVolumeClaim"]["metadata"]["name"]
    ports = {port["name"] for port in container["ports"]}
    assert {port["targetPort"] for port in by_kind["Service"]["spec"]["ports"]} <= ports


def test_the_pod_has_no_more_rights_than_it_needs() -> None:
    [deployment] = [each for each in manifests() if each["kind"] == "Deployment"]
    pod = deployment["spec"]["template"]["spec"]
    [container] = pod["containers"]
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["securityContext"]["runAsNonRoot"] and not pod["automountServiceAccountToken"]
    rights = container["securityContext"]
    assert rights["readOnlyRootFilesystem"] and not rights["allowPrivilegeEscalation"]
    assert rights["capabilities"] == {"drop": ["ALL"]}
    written = {mount["mountPath"] for mount in container["volumeMounts"] if "subPath" not in mount}
    [cache] = [each["value"] for each in container["env"] if each["name"] == "XDG_CACHE_HOME"]
    assert written == {"/models", "/dev/shm", "/tmp"} and cache.startswith("/models/")


def test_what_ends_by_itself_is_started_anew() -> None:
    assert tomllib.loads(_read("inferno.toml"))["max_failed_starts"] > 1
    assert "Restart=on-failure" in _read("systemd/inferno.service")
    [deployment] = [each for each in manifests() if each["kind"] == "Deployment"]
    assert deployment["spec"]["template"]["spec"].get("restartPolicy", "Always") == "Always"
    assert yaml.safe_load(_read("compose.yaml"))["services"]["inferno"]["restart"] != "no"


def store_variable() -> str:
    [store] = [each for each in command.params if each.name == "store"]
    assert isinstance(store.envvar, str)
    return store.envvar


def test_the_second_server_of_compose_is_as_the_first() -> None:
    first = yaml.safe_load(_read("compose.yaml"))["services"]["inferno"]
    services = yaml.safe_load(_read("replicas.yaml"))["services"]
    second = services["inferno-2"]
    for name in ("image", "command", "volumes", "stop_grace_period", "restart"):
        assert second[name] == first[name], name
    assert services["inferno"]["environment"] == second["environment"]
    address = second["environment"][store_variable()]
    assert address.startswith("postgresql://") and "@postgres/" in address
    ports = {each.rpartition(":")[0] for each in (*first["ports"], *second["ports"])}
    sites = re.findall(r"server (127\.0\.0\.1:\d+)", _read("nginx.conf"))
    assert ports == set(sites) and len(sites) == 2


def test_two_pods_are_those_of_the_deployment() -> None:
    """A strategic merge patch: lists of the deployment are merged by name."""
    patch = yaml.safe_load(_read("kubernetes-replicas.yaml"))["spec"]
    [deployment] = [each for each in manifests() if each["kind"] == "Deployment"]
    spec, changed = (each["template"]["spec"] for each in (deployment["spec"], patch))
    deployment["spec"] |= {name: patch[name] for name in ("replicas", "strategy")}
    assert patch["replicas"] > 1
    for kind in ("containers", "volumes"):
        known = {each["name"]: each for each in spec[kind]}
        for each in changed[kind]:
            env = [*known[each["name"]].get("env", ()), *each.get("env", ())]
            known[each["name"]] |= each | ({"env": env} if env else {})
    assert store_variable() in [each["name"] for each in spec["containers"][0]["env"]]
    kubernetes = library("kubernetes_validate")
    assert kubernetes.validate(deployment, "1.32", strict=True)


def test_kubernetes_accepts_the_manifests() -> None:
    kubernetes = library("kubernetes_validate")
    for manifest in manifests():
        assert kubernetes.validate(manifest, "1.32", strict=True)


def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    analyze = validator("systemd-analyze")
    text = (DEPLOY / "systemd" / "inferno.service").read_text()
    unit = tmp_path / "inferno.service"
    unit.write_text(text.replace("/opt/inferno/bin/inferno", shutil.which("true") or "/bin/true"))
    done = subprocess.run([analyze, "verify", str(unit)], capture_output=True, text=True)
    complaints = [line for line in done.stderr.splitlines() if "inferno.service" in line]
    assert done.returncode == 0 and complaints == [], done.stderr


def test_systemd_calls_the_unit_safe(tmp_path: Path) -> None:
    """An exposure of 3 of 10 at most; less is better."""
    analyze = validator("systemd-analyze")
    known = subprocess.run([analyze, "security", "--help"], capture_output=True, text=True).stdout
    if "--offline" not in known:
        pytest.skip("this systemd-analyze needs a running systemd")
    unit = tmp_path / "inferno.service"
    unit.write_text(_read("systemd/inferno.service"))
    checked(analyze, "security", "--offline=true", "--threshold=30", "--no-pager", str(unit))


def test_nginxs_parser_accepts_the_site() -> None:
    parsed = library("crossplane").parse(str(DEPLOY / "nginx.conf"), check_ctx=False)
    assert (parsed["status"], parsed["errors"]) == ("ok", [])


def test_caddy_accepts_its_file() -> None:
    file = str(DEPLOY / "Caddyfile")
    checked(validator("caddy"), "validate", "--adapter", "caddyfile", "--config", file)


def test_the_containers_instructions_are_known() -> None:
    text = re.sub(r"\\\n", " ", _read("Containerfile"))
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    known = {
        *("FROM", "ARG", "RUN", "ENV", "WORKDIR", "COPY", "VOLUME", "USER", "EXPOSE"),
        *("STOPSIGNAL", "HEALTHCHECK", "ENTRYPOINT", "CMD"),
    }
    assert {line.split()[0] for line in lines} <= known
    users = [line.split()[1] for line in lines if line.startswith("USER")]
    [deployment] = [each for each in manifests() if each["kind"] == "Deployment"]
    pod = deployment["spec"]["template"]["spec"]["securityContext"]
    assert users == [str(pod["runAsUser"])]


def test_hadolint_accepts_the_container_file() -> None:
    checked(validator("hadolint"), str(DEPLOY / "Containerfile"))


def test_no_file_is_unread() -> None:
    assert {path.suffix or path.name for path in FILES} == {
        *(
            ".lock",
            ".toml",
            ".json",
            ".yml",
            ".yaml",
            ".service",
            ".conf",
            "Containerfile",
            "Caddyfile",
        )
    }


def _read(name: str) -> str:
    return (DEPLOY / name).read_text()
