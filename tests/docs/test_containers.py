"""The files of the page about containers: valid by their schemas, and true of the programs."""

from __future__ import annotations

import http.client
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from tests.cli.processes import Process, call, running
from tests.docs.blocks import ROOT, read_blocks

PAGE = ROOT / "docs" / "howto" / "containers.md"
FILES = {block.file: block.text for block in read_blocks(PAGE) if block.file is not None}
MANIFESTS: list[dict[str, Any]] = list(yaml.safe_load_all(FILES["kubernetes.yaml"]))
COMPOSE: dict[str, Any] = yaml.safe_load(FILES["compose.yaml"])

SHOP = """
from holdfast import App, Context

app = App("shop")


@app.workflow
async def checkout(ctx: Context, order: int) -> int:
    return order
"""


def of_kind(kind: str, name: str) -> dict[str, Any]:
    """Return the pod of a manifest."""
    (found,) = (
        each["spec"]["template"]["spec"]
        for each in MANIFESTS
        if (each["kind"], each["metadata"]["name"]) == (kind, name)
    )
    return found


def test_the_compose_file_fits_the_schema_of_compose(tmp_path: Path) -> None:
    path = tmp_path / "compose.yaml"
    checks = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec"]

    def refused(text: str) -> int:
        path.write_text(text)
        done = subprocess.run(
            [*checks, str(path)], capture_output=True, text=True, timeout=60, check=False
        )
        return done.returncode

    assert refused(FILES["compose.yaml"]) == 0
    assert refused(FILES["compose.yaml"].replace("restart: always", "restarts: 1")) == 1


@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda each: each["metadata"]["name"])
def test_a_manifest_fits_the_schema_of_kubernetes(manifest: dict[str, Any]) -> None:
    kubernetes_validate.validate(manifest, "1.37", strict=True)
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(manifest | {"specs": {}}, "1.37", strict=True)


def test_both_files_run_the_same_commands() -> None:
    pods = {
        "migrate": of_kind("Job", "shop-migrate-1"),
        "worker": of_kind("Deployment", "shop-worker"),
        "server": of_kind("Deployment", "shop-server"),
    }
    for name, pod in pods.items():
        arguments = pod["containers"][0]["args"]
        composed = COMPOSE["services"][name]["command"]
        assert composed == arguments[: len(composed)]


def test_the_containers_do_what_their_probes_ask(
    empty_database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The migration, a worker and a server run with the manifests' own arguments."""
    monkeypatch.chdir(tmp_path)
    at = ["--database", empty_database_url]
    Path("shop.py").write_text(SHOP)
    migrate = of_kind("Job", "shop-migrate-1")["containers"][0]
    done = call(*at, *migrate["args"])
    assert done.returncode == 0, done.stderr

    worker = of_kind("Deployment", "shop-worker")["containers"][0]
    arguments = [each.replace("0.0.0.0:9464", "127.0.0.1:0") for each in worker["args"]]
    with running(tmp_path / "worker", *at, *arguments, cwd=tmp_path) as process:
        process.await_text("ready")
        process.popen.terminate()
        assert process.ended() == 0, process.text()

    server = of_kind("Deployment", "shop-server")["containers"][0]
    written = call("server", "token", "ann", "write")
    tokens = tmp_path / "tokens"
    tokens.write_text(written.stdout)
    tokens.chmod(0o600)
    monkeypatch.setenv("HOLDFAST_TOKENS_FILE", str(tokens))
    arguments = [each.replace("0.0.0.0", "127.0.0.1") for each in server["args"]]
    with running(tmp_path / "server", *at, *arguments, "--port", "0", cwd=tmp_path) as process:
        port = listens_at(process)
        for probe in (server["livenessProbe"], server["readinessProbe"]):
            get = probe["httpGet"]
            headers = {each["name"]: each["value"] for each in get["httpHeaders"]}
            assert answer(port, get["path"], headers) == 200
        assert answer(port, "/v1/runs", headers) == 401
        (checked,) = COMPOSE["services"]["server"]["healthcheck"]["test"][3:]
        checked = checked.replace("7433", str(port))
        subprocess.run([sys.executable, "-c", checked], check=True, timeout=60)


def listens_at(process: Process) -> int:
    text = process.await_text("http://127.0.0.1:")
    return int(text.partition("http://127.0.0.1:")[2].split()[0].strip('"}/'))


def answer(port: int, path: str, headers: dict[str, str]) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("GET", path, headers=headers)
    status = connection.getresponse().status
    connection.close()
    return status


def test_the_image_starts_the_program_that_the_arguments_are_for() -> None:
    lines = FILES["Dockerfile"].splitlines()
    assert shlex.split(lines[-1].partition(" ")[2].strip("[]")) == ["holdfast"]
