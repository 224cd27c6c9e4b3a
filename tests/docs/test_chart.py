"""The chart: valid by the schemas of Kubernetes, and true of the programs and the database."""

from __future__ import annotations

import copy
import json
import re
from typing import Any

import asyncpg
import jsonschema
import kubernetes_validate
import pytest
import yaml
from click.testing import CliRunner

from holdfast import App, Client, Context
from holdfast.cli.root import holdfast
from holdfast.store.postgres import PostgresStore
from tests.docs.blocks import ROOT, read_blocks
from tests.docs.charts import documents, render

CHART = ROOT / "deploy" / "chart"
VALUES: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
SCHEMA: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
TEMPLATES = sorted(CHART.glob("templates/*.yaml"))


def changed(**groups: Any) -> dict[str, Any]:
    """Return the values of the chart with others in some groups."""
    values = copy.deepcopy(VALUES)
    for name, fields in groups.items():
        values[name] = {**values[name], **fields} if isinstance(fields, dict) else fields
    return values


EVERYTHING = changed(
    database={"listenKey": "direct"},
    worker={"queues": ["mail", "default"], "concurrency": 8},
    autoscaling={"enabled": True},
    server={"enabled": True},
)


def made(values: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return all objects of the chart by kind and name."""
    found = [each for path in TEMPLATES for each in documents(path, values)]
    return {f"{each['kind']}/{each['metadata']['name']}": each for each in found}


def test_the_values_fit_their_schema_and_others_do_not() -> None:
    for values in (VALUES, EVERYTHING):
        jsonschema.validate(values, SCHEMA)
    for wrong in (
        changed(replicas=3),
        changed(worker={"replica": 3}),
        changed(worker={"replicas": 0}),
        changed(worker={"queues": ["no name"]}),
        changed(autoscaling={"minReplicas": 0}),
        changed(autoscaling={"queue": "a' or 'b"}),
        changed(app="shop app"),
    ):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, SCHEMA)


def test_each_value_is_used() -> None:
    used = set[str]()
    for path in TEMPLATES:
        used |= set(re.findall(r"\.Values\.([\w.]+)", path.read_text(encoding="utf-8")))
    declared = {
        f"{name}.{field}" if isinstance(VALUES[name], dict) else name
        for name in VALUES
        for field in (VALUES[name] if isinstance(VALUES[name], dict) else [""])
    }
    assert used == declared


@pytest.mark.parametrize("values", [VALUES, EVERYTHING], ids=["defaults", "everything"])
def test_what_it_makes_fits_the_schemas_of_kubernetes(values: dict[str, Any]) -> None:
    for name, manifest in made(values).items():
        if "keda.sh" not in manifest["apiVersion"]:
            kubernetes_validate.validate(manifest, "1.37", strict=True)
        assert manifest["metadata"]["name"].startswith("shop-"), name


def test_what_is_switched_off_is_not_made() -> None:
    always = {"Job/shop-migrate", "Deployment/shop-worker"}
    assert made(VALUES).keys() == always
    assert made(EVERYTHING).keys() == always | {
        "TriggerAuthentication/shop-database",
        "ScaledObject/shop-worker",
        "Deployment/shop-server",
        "Service/shop-server",
    }
    # The scaler decides how many there are: a fixed number would be set back at each release.
    assert made(VALUES)["Deployment/shop-worker"]["spec"]["replicas"] == 2
    assert "replicas" not in made(EVERYTHING)["Deployment/shop-worker"]["spec"]


@pytest.mark.parametrize("values", [VALUES, EVERYTHING], ids=["defaults", "everything"])
def test_the_arguments_are_those_of_the_commands(values: dict[str, Any]) -> None:
    for name, manifest in made(values).items():
        if manifest["kind"] in ("Job", "Deployment"):
            [container] = manifest["spec"]["template"]["spec"]["containers"]
            done = CliRunner().invoke(holdfast, [*container["args"], "--help"])
            assert done.exit_code == 0, (name, done.output)
            given = {each for each in container["args"] if each.startswith("--")}
            assert given <= set(re.findall(r"--[a-z-]+", done.output)), name


def test_the_pod_outlives_the_grace_of_its_worker() -> None:
    pod = made(EVERYTHING)["Deployment/shop-worker"]["spec"]["template"]["spec"]
    [container] = pod["containers"]
    grace = container["args"][container["args"].index("--grace") + 1]
    assert pod["terminationGracePeriodSeconds"] == int(grace) + 10
    assert [each["name"] for each in container["env"]] == [
        "HOLDFAST_DATABASE_URL",
        "HOLDFAST_LISTEN_DATABASE_URL",
    ]
    assert container["args"][-4:] == ["--queue", "mail", "--queue", "default"]


def test_the_scaled_object_is_of_the_worker() -> None:
    """By the fields that KEDA asks for: its schema is not among those of Kubernetes."""
    objects = made(EVERYTHING)
    scaled = objects["ScaledObject/shop-worker"]["spec"]
    assert scaled.keys() == {"scaleTargetRef", "minReplicaCount", "maxReplicaCount", "triggers"}
    assert scaled["scaleTargetRef"] == {"name": "shop-worker"}
    [trigger] = scaled["triggers"]
    assert trigger.keys() == {"type", "metadata", "authenticationRef"}
    assert (trigger["type"], trigger["authenticationRef"]) == (
        "postgresql",
        {"name": "shop-database"},
    )
    assert trigger["metadata"].keys() == {"query", "targetQueryValue"}
    assert trigger["metadata"]["targetQueryValue"] == "8"  # each value of the metadata is a text
    [secret] = objects["TriggerAuthentication/shop-database"]["spec"]["secretTargetRef"]
    assert secret == {"parameter": "connection", "name": "shop-database", "key": "url"}


def test_the_page_has_the_scaler_of_the_chart() -> None:
    page = ROOT / "docs" / "howto" / "containers.md"
    [text] = [each.text for each in read_blocks(page) if each.file == "scaler.yaml"]
    objects = made(changed(autoscaling={"enabled": True}))
    assert list(yaml.safe_load_all(text)) == [
        objects["TriggerAuthentication/shop-database"],
        objects["ScaledObject/shop-worker"],
    ]


async def test_the_query_counts_what_waits_and_what_is_worked_on(database_url: str) -> None:
    app = App("shop")

    @app.workflow
    async def checkout(ctx: Context) -> None: ...

    [trigger] = made(EVERYTHING)["ScaledObject/shop-worker"]["spec"]["triggers"]
    query = trigger["metadata"]["query"]
    connection = await asyncpg.connect(database_url)
    store = PostgresStore(database_url)
    await store.open()
    async with Client(store=store, app=app) as client:
        try:
            assert await connection.fetchval(query) == 0
            for queue, delay in (
                ("default", None),
                ("default", None),
                ("default", "1h"),
                ("x", None),
            ):
                await client.start(checkout, queue=queue, delay=delay)
            assert await connection.fetchval(query) == 2
            await store.claim_tasks("ann", ["default"], ["shop/checkout@1"], 1, lease_seconds=30)
            assert await connection.fetchval(query) == 2  # one waits, one is worked on
        finally:
            await connection.close()
            await store.close()


def test_a_template_that_uses_more_is_refused() -> None:
    for template in ("{{ .Values.a | upper }}", '{{ include "a" . }}'):
        with pytest.raises(AssertionError):
            render(template, {"a": "b"}, "shop")
