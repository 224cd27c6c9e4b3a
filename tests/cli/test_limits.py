"""`holdfast limits`."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from holdfast.cli import exits
from tests.cli.conftest import CommandLine


def test_limits_are_set_listed_and_removed(cli: CommandLine) -> None:
    assert "no limits" in cli("limits", "list").stderr
    shown = cli("limits", "set", "--queue", "mail", "--concurrency", "5").stdout
    assert shown == "queue 'mail' runs 5 at once\n"
    again = cli("limits", "set", "--queue", "mail", "--concurrency", "5", code=exits.FAILED)
    assert "just so" in again.stdout
    cli("limits", "set", "--activity", "shop/charge", "--rate", "10", "--per", "1m", "--smooth")
    cli("limits", "set", "--queue", "mail", "--fairness", "--key", "input.tenant")
    cli("limits", "set", "--queue", "mail", "--ageing", "5m")
    listed = cli("limits", "list").stdout
    assert "activity 'shop/charge' begins" in listed
    rules = [each["rule"] for each in cli.json("limits", "list")]
    assert [rule["kind"] for rule in rules] == ["rate", "ageing", "concurrency", "fairness"]
    assert cli("limits", "remove", "concurrency", "--queue", "mail").stdout == "removed\n"
    gone = cli("limits", "remove", "concurrency", "--queue", "mail", code=exits.FAILED)
    assert "no such limit" in gone.stderr


def test_a_rate_of_units_is_set_shown_and_removed(cli: CommandLine) -> None:
    """Beside one of tasks. `why` says how many units a run needs, and how many are free."""
    rate = ("limits", "set", "--queue", "default", "--rate")
    said = cli(*rate, "9000", "--per", "1h", "--units", "input.tokens").stdout
    assert said == "queue 'default' uses 9,000 in 1 h, by input.tokens\n"
    cli(*rate, "5", "--per", "1m")
    found = {each["rule"]["kind"]: each for each in cli.json("limits", "list")}
    assert found["units"]["rule"]["units"] == "input.tokens"
    assert (found["units"]["used"], found["rate"]["used"]) == (0, 0)
    assert datetime.fromisoformat(found["units"]["changed_at"]) <= datetime.now(UTC)
    assert "used" in cli("limits", "list").stdout
    assert cli("limits", "remove", "units", "--queue", "default").stdout == "removed\n"
    assert [each["rule"]["kind"] for each in cli.json("limits", "list")] == ["rate"]


def test_a_limit_on_what_nobody_has_is_set_with_a_warning(served: CommandLine) -> None:
    known = served("limits", "set", "--queue", "default", "--concurrency", "50")
    assert "WARNING" not in known.stderr
    unknown = served("limits", "set", "--queue", "defalt", "--concurrency", "5")
    assert "no live worker and no run has queue defalt; did you mean default?" in unknown.stderr
    answer = served.json(
        "limits", "set", "--workflow", "sample/dubble", "--rate", "5", "--per", "1m"
    )
    assert (answer["known"], answer["similar"][0]) == (False, "sample/double")
    named = served("limits", "set", "--activity", "weigh", "--concurrency", "5")
    assert named.stdout == "activity 'sample/weigh' runs 5 at once\n"
    nobody = served("limits", "remove", "concurrency", "--activity", "nope", code=exits.USAGE)
    assert "name the app as well, as in APP/nope" in nobody.stderr
    activity = served("limits", "set", "--activity", "sample/nope", "--rate", "5", "--per", "1m")
    assert "no live worker and no run has activity sample/nope" in activity.stderr


def test_limits_that_hold_runs_are_shown_beside_others_of_the_name(served: CommandLine) -> None:
    """Fault: --holds run was refused after the limit was set, as if it were one of an activity."""
    served("limits", "set", "--activity", "weigh", "--concurrency", "3")
    runs = ("--concurrency", "2", "--holds", "run")
    for where, said in (
        (("--workflow", "double"), "workflow 'sample/double'"),
        (("--queue", "weigh"), "queue 'weigh'"),
    ):
        shown = served("limits", "set", *where, *runs).stdout
        assert shown == f"{said} runs 2 at once (a run counts until it ends)\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--concurrency", "5"), "give one of --queue, --workflow and --activity"),
        (("--queue", "a", "--workflow", "b", "--concurrency", "5"), "give one of --queue"),
        (("--queue", "a", "--ageing", "5m", "--units", "input.a"), "are for --rate"),
        (("--queue", "a"), "give one of --concurrency, --rate, --fairness and --ageing"),
        (("--queue", "a", "--rate", "5"), "--rate needs its period"),
        (("--queue", "a", "--concurrency", "5", "--per", "1m"), "--smooth and --units are for"),
        (("--queue", "a", "--ageing", "5m", "--holds", "run"), "--holds is for --concurrency"),
        (("--queue", "a", "--fairness"), "--fairness needs the key"),
        (("--queue", "a", "--ageing", "5m", "--key", "input"), "leave out --key"),
    ],
)
def test_options_that_do_not_fit_are_refused(
    cli: CommandLine, arguments: tuple[str, ...], message: str
) -> None:
    assert message in cli("limits", "set", *arguments, code=exits.USAGE).stderr
