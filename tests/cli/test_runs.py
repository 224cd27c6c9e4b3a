"""`holdfast runs` list, show, log, signal, cancel, terminate and wait."""

from __future__ import annotations

import json
from uuid import UUID

import pytest

from holdfast.cli import exits
from holdfast.values.trace_ids import trace_text
from tests.cli.conftest import CommandLine
from tests.cli.processes import SAMPLE, call, running


def ids(cli: CommandLine, *filters: str) -> set[str]:
    return {run["run_id"] for run in cli.json("runs", "list", *filters)["runs"]}


def test_list_filters_by_each_property(cli: CommandLine) -> None:
    one = cli.start("double", '{"customer": 1, "items": [1, 2]}', "--tag", "a", "--queue", "q")
    two = cli.start("pack", '{"customer": 2}', "--key", "k", "--delay", "1h")
    assert ids(cli) == {one, two}
    assert ids(cli, "--workflow", "double") == {one}
    assert ids(cli, "--workflow", "double", "--workflow", "pack") == {one, two}
    assert ids(cli, "--state", "waiting") == {two}
    assert ids(cli, "--queue", "q") == ids(cli, "--tag", "a") == {one}
    assert ids(cli, "--key", "k") == ids(cli, "--input", '{"customer": 2}') == {two}
    assert ids(cli, "--since", "1h") == {one, two}
    assert ids(cli, "--until", "1h") == set()


@pytest.mark.parametrize("width", [60, 80, 100, 120])
def test_a_list_fits_the_terminal_and_still_names_state_and_run(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    monkeypatch.setattr("holdfast.cli.render.console._WIDTH", width)
    run = cli.start("double", "1", "--key", "an-order-with-a-very-long-key", "--queue", "nobodys")
    (line,) = [each for each in cli("runs", "list").stdout.splitlines() if "queued" in each]
    assert len(line) <= width
    named, workflow, key = line.split()[:3]
    assert run.endswith(named)
    assert "sample/double@1".startswith(workflow.removesuffix("…"))
    assert workflow == "sample/double@1" or width < 80  # times and ids do not cut it
    assert key.startswith("an-order-with" if width >= 80 else "an-")
    assert cli("runs", "show", named).stdout.splitlines()[0].split()[1] == run


@pytest.mark.parametrize(("key", "code"), [("order-7", exits.USAGE), ("12345678", exits.NOT_FOUND)])
def test_a_key_alone_names_the_run_that_is_meant(cli: CommandLine, key: str, code: int) -> None:
    """Also a key that may be a part of an id. A run and its retry have one name."""
    run = cli.start("double", "1", "--key", key)
    cli("runs", "terminate", run)
    cli("runs", "retry", run)
    refused = cli("runs", "show", key, code=code).stderr
    assert f"(did you mean sample/double/{key}?)" in refused
    assert "did you mean" not in cli("runs", "show", f"{key}0", code=code).stderr
    absent = cli("runs", "show", f"sample/double/{key}0", code=exits.NOT_FOUND).stderr
    assert f"no run of sample/double was started with the key '{key}0'" in absent


def test_list_continues_at_a_cursor(cli: CommandLine) -> None:
    started = [cli.start("double", str(number)) for number in range(3)]
    first = cli.json("runs", "list", "--limit", "2")
    second = cli.json("runs", "list", "--limit", "2", "--cursor", first["cursor"])
    assert [run["run_id"] for run in first["runs"] + second["runs"]] == started[::-1]
    assert second["cursor"] is None


def test_runs_are_counted(cli: CommandLine) -> None:
    cli.start("double", "1", "--tag", "a", "--tag", "b")
    cli.start("double", "2", "--tag", "b")
    assert cli("runs", "count", "--by", "tag").stdout == "      2  b\n      1  a\n"
    counted = cli.json("runs", "count", "--by", "state", "--tag", "a")
    assert counted == {"by": "state", "counts": {"queued": 1}, "searched_until": None}
    assert "no runs" in cli("runs", "count", "--by", "tag", "--tag", "none").stderr
    assert "'two words' is not a name" in cli("runs", "count", "--by", "two words", code=2).stderr


def test_list_refuses_an_unknown_state(cli: CommandLine) -> None:
    assert "there are queued" in cli("runs", "list", "--state", "asleep", code=exits.USAGE).stderr


def test_list_refuses_a_workflow_that_nobody_has_had(cli: CommandLine) -> None:
    refused = cli("runs", "list", "--workflow", "duble", code=exits.USAGE)
    assert "no app with a workflow 'duble' has ever had a worker on this database" in refused.stderr


def test_list_is_a_table_for_people(cli: CommandLine) -> None:
    run = cli.start("double", "1", "--key", "k")
    row = next(line for line in cli("runs", "list").stdout.splitlines() if run in line)
    assert row.split()[1:4] == ["sample/double@1", "k", "queued"]


@pytest.mark.parametrize("part", [lambda run: run[:13], lambda run: run[-8:]], ids=["start", "end"])
def test_a_part_of_an_id_names_a_run(cli: CommandLine, part: object) -> None:
    run = cli.start("double", "1")
    assert callable(part)
    assert cli.json("runs", "show", part(run))["run_id"] == run


def test_a_part_that_fits_several_runs_is_refused(cli: CommandLine) -> None:
    first, second = cli.start("double", "1"), cli.start("double", "2")
    result = cli("runs", "show", first[:6], code=exits.USAGE)
    assert first in result.stderr
    assert second in result.stderr


def test_workflow_and_key_name_a_run(cli: CommandLine) -> None:
    run = cli.start("pack", '{"id": 1}', "--key", "order/7")
    assert cli.json("runs", "show", "pack/order/7")["run_id"] == run


def test_a_list_by_key_has_the_retries_too(cli: CommandLine) -> None:
    """C19."""
    first = cli.start("pack", '{"id": 1}', "--key", "order/7")
    cli.start("pack", '{"id": 1}', "--key", "order/8")
    cli("runs", "terminate", "pack/order/7")
    cli("runs", "retry", "pack/order/7")
    again = cli.json("runs", "show", "pack/order/7")["run_id"]
    for words in (("--workflow", "pack"), ()):
        found = cli.json("runs", "list", "--key", "order/7", *words)["runs"]
        assert [run["run_id"] for run in found] == [again, first]


def test_show_draws_a_timeline(served: CommandLine) -> None:
    run = served.start("pack", '{"id": 7}')
    served("runs", "signal", run, "packed", '"by Ada"')
    served("runs", "wait", run)
    shown = served("runs", "show", run).stdout
    assert "completed" in shown
    assert '"7 by Ada"' in shown
    assert "✉ packed" in shown


def test_show_names_the_trace_of_a_run(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    run = cli.start("pack")
    assert cli.json("runs", "show", run)["trace_id"] is None
    monkeypatch.setenv("HOLDFAST_TRACE_URL", "https://traces.test/{trace_id}")
    trace_id = cli.json("runs", "show", run)["trace_id"]
    assert trace_id == trace_text(UUID(run), None)
    assert f"https://traces.test/{trace_id}" in cli("runs", "show", run).stdout.replace("\n", "")


def test_show_writes_what_the_encoding_of_stdout_has(served: CommandLine) -> None:
    run = served.start("fail")
    served.await_state(run, "failed")
    ascii_only = {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    done = call("--database", served.url, "runs", "show", run, env=ascii_only)
    assert (done.returncode, done.stderr) == (exits.OK, "")
    assert "x break_down" in done.stdout


def test_show_in_json_has_values_and_the_log(served: CommandLine) -> None:
    run = json.loads(served("start", "double", "4", "--wait", "--json").stdout)["run_id"]
    shown = served.json("runs", "show", run)
    assert shown["values"] == {"progress": {"number": 4}}
    assert [event["type"] for event in shown["log"]][-1] == "WorkflowCompleted"


def test_log_writes_an_entry_a_line(served: CommandLine) -> None:
    run = served.json("start", "double", "4", "--wait")["run_id"]
    entries = [
        json.loads(line) for line in served("runs", "log", run, "--json").stdout.splitlines()
    ]
    assert [entry["idx"] for entry in entries] == list(range(len(entries)))
    assert (entries[0]["type"], entries[0]["details"]) == ("WorkflowStarted", 4)
    assert (entries[-1]["type"], entries[-1]["details"]) == ("WorkflowCompleted", 8)


def test_log_follows_to_the_end(served: CommandLine) -> None:
    """T10. A log is followed live, without driving the run."""
    run = served.start("pack", '{"id": 1}')
    served.await_state(run, "waiting")
    served("runs", "signal", run, "packed", "1")
    lines = served("runs", "log", run, "--follow").stdout.splitlines()
    assert "WorkflowStarted" in lines[0]
    assert "WorkflowCompleted" in lines[-1]


def test_a_signal_id_is_delivered_once(cli: CommandLine) -> None:
    run = cli.start("pack", '{"id": 1}')
    send = ("runs", "signal", run, "packed", "1", "--id", "parcel-9")
    assert [cli.json(*send)["delivered"] for _ in range(2)] == [True, False]


def test_a_run_that_ended_refuses_a_signal(cli: CommandLine) -> None:
    run = cli.start("pack", '{"id": 1}')
    cli("runs", "terminate", run)
    assert "has ended" in cli("runs", "signal", run, "packed", code=exits.FAILED).stderr


def test_cancel_and_terminate_end_runs_and_say_so(cli: CommandLine) -> None:
    """S10. A cancel ends a run that no worker has; the second changes nothing."""
    one, two = cli.start("pack", '{"id": 1}'), cli.start("pack", '{"id": 2}')
    cli("runs", "cancel", one, two, "--reason", "the customer called")
    assert {cli.state(one), cli.state(two)} == {"cancelled"}
    assert "had ended before" in cli("runs", "terminate", one, code=exits.FAILED).stdout
    assert "reason: the customer called" in cli("runs", "why", one).stdout


def test_the_reason_of_a_termination_is_kept(cli: CommandLine) -> None:
    run = cli.start("pack", '{"id": 1}')
    cli("runs", "terminate", run, "--reason", "started by mistake")
    assert "reason: started by mistake" in cli("runs", "why", run).stdout
    assert "■ terminated" in cli("runs", "show", run).stdout


def test_nothing_is_cancelled_when_one_of_the_runs_is_unknown(cli: CommandLine) -> None:
    run = cli.start("pack", '{"id": 1}')
    cli("runs", "cancel", run, "pack/nobody", code=exits.NOT_FOUND)
    assert cli.state(run) == "queued"


def test_wait_ends_with_how_the_run_ended(cli: CommandLine, tmp_path: object) -> None:
    run = cli.start("double", "4")
    cli("runs", "terminate", run)
    assert "terminated" in cli("runs", "wait", run, code=exits.FAILED).stderr


def test_workers_are_listed_with_what_they_serve(
    cli: CommandLine, tmp_path_factory: pytest.TempPathFactory
) -> None:
    assert cli.json("workers") == []
    log = tmp_path_factory.mktemp("log") / "log"
    with running(log, "--database", cli.url, "worker", SAMPLE, "--queue", "q") as worker:
        worker.await_text("ready")
        (found,) = cli.json("workers")
        assert (found["pid"], found["queues"]) == (worker.pid, ["q"])
        assert "sample/double@1" in found["handlers"]
        assert found["worker_id"] in cli("workers").stdout
        assert found["worker_id"] in cli("workers", "list").stdout
    assert cli.json("workers") == []


def test_streams_are_listed_and_written(cli: CommandLine) -> None:
    """Texts as they are, other values as JSON; from an offset on; and as lines of objects."""
    run = cli.start("speak", '["Good ", "day", {"x": 1}]')
    assert "the run has no streams" in cli("runs", "stream", run).stdout
    assert call("--database", cli.url, "worker", SAMPLE, "--once", "--run-logs").returncode == 0
    assert cli("runs", "stream", run).stdout.startswith("words  3 values, ")
    assert cli.json("runs", "stream", run)["streams"][0]["name"] == "words"
    for follow in ((), ("--follow",)):
        assert cli("runs", "stream", run, "words", *follow).stdout == 'Good day{"x":1}\n'
        assert cli("runs", "stream", run, "words", "--after", "2", *follow).stdout == '{"x":1}\n'
        lines = cli("runs", "stream", run, "words", "--json", *follow).stdout.splitlines()
        assert [json.loads(line)["offset"] for line in lines] == [1, 2, 3]
    assert cli("runs", "stream", run, "words", "--all-attempts").stdout == 'Good day{"x":1}\n'
    refused = cli("runs", "stream", run, "words", "--after", "9", code=exits.USAGE)
    assert "the offset is that of another stream" in refused.stderr
    line = cli("runs", "logs", run, "--follow").stdout
    assert line.endswith("info     [utter] 3 words words=3\n")
    [line] = cli("runs", "logs", run, "--json", "--call", "utter").stdout.splitlines()
    assert (json.loads(line)["message"], json.loads(line)["fields"]) == ("3 words", {"words": 3})
    help = cli("runs", "stream", "--help").stdout
    assert "an object without a value" in " ".join(help.split())
    nothing = cli("runs", "logs", run, "--level", "warning")
    assert nothing.stdout == ""
    assert "workers keep lines with --run-logs" in nothing.stderr
    assert cli("runs", "logs", run, "--after", "1").stderr == "", "nothing newer has come"
