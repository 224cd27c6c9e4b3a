"""`holdfast check`: what a deploy would do to runs, before it is made."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

import click

from holdfast.cli.answers import current_settings
from holdfast.cli.exits import Refusal
from holdfast.cli.framework import FilePath, command, option
from holdfast.cli.inputs import app_argument, past_moment, process_count
from holdfast.cli.render.console import plain, write_json
from holdfast.insight.wording import several

if TYPE_CHECKING:
    from datetime import datetime

    from holdfast.cli.process.checking import Wish
    from holdfast.insight.check import CheckReport, Finding

Format: TypeAlias = Literal["text", "github"]

WOULD = {
    "stuck": "would be stuck",
    "held": "would be held back",
    "fails": "would fail at once",
    "unserved": "would not be served",
}
_UNCHECKED = 2


@command(
    "check",
    examples=(
        "holdfast check shop:app",
        "holdfast check shop:app --workflow checkout --since 30d --jobs auto",
        "holdfast check shop:app --sample 500 --format github       in a workflow of CI",
        "holdfast check shop:app --logs tests/logs                  without a database",
    ),
)
@app_argument
@option("--workflow NAME...", "Only runs of this workflow.", name="workflows")
@option(
    "--sample N", "At most N runs of each workflow and version, the newest.", type=click.IntRange(1)
)
@option("--all", "Every open run; the default.", name="whole")
@option(
    "--since MOMENT",
    "Only runs created then or later: 2030-01-31T12:00, or 30d for 30 days ago.",
    type=past_moment,
)
@option(
    "--logs DIR",
    "Check the runs that `holdfast runs export` has written to this directory or file, and "
    "no database.",
    type=FilePath(exists=True),
)
@option(
    "--build BUILD",
    "Also runs that are pinned to this build, as before `holdfast runs move-build`.",
)
@option(
    "--jobs COUNT",
    "How many processes replay, or auto for one on each processor.",
    type=process_count,
    default="1",
)
@option(
    "--format",
    "Write for people, or annotations of GitHub.",
    name="form",
    type=click.Choice(["text", "github"]),
    default="text",
)
@click.pass_context
def check(
    context: click.Context,
    app_reference: str,
    workflows: tuple[str, ...],
    sample: int | None,
    whole: bool,
    since: datetime | None,
    logs: str | None,
    build: str | None,
    jobs: int,
    form: Format,
) -> None:
    """Replay open runs with the code at hand, and say which of them it cannot continue.

    Nothing is written, no step runs, and no worker is disturbed: a role that may only read is
    enough. Run it before a deploy, with the code that is to be deployed. Runs that are pinned to
    another build are left out, because this code will never have them.

    The exit code is 0 if all runs continue, and 1 if some would be stuck, held back or without a
    worker. It is 2 if some could not be checked, if --logs has none, or if the app cannot be
    loaded, and 3 if the database cannot be used. Runs that would fail at once are named, too.
    """
    from holdfast.cli.process.checking import Wish, check_in_parts
    from holdfast.cli.process.hash_seed import fix_hash_seed

    if whole and sample is not None:
        raise click.UsageError("give either --sample or --all")
    if logs is not None and (sample, since, build) != (None, None, None):
        raise click.UsageError(
            "--sample, --since and --build are about the runs of a database, not --logs"
        )
    fix_hash_seed()
    wish = Wish(app_reference, workflows, sample, since, logs, build)
    report = check_in_parts(current_settings(), wish, jobs)
    if logs is not None and not (report.checked or report.unchecked):
        of = " of these workflows" if workflows else ""
        raise Refusal(f"nothing was checked: {logs} has no run{of}", _UNCHECKED)
    if current_settings().json:
        findings = [plain(each) for each in report.findings]
        unchecked = [plain(each) for each in report.unchecked]
        write_json({"checked": report.checked, "findings": findings, "unchecked": unchecked})
    elif form == "github":
        _annotate(report)
    else:
        _write(report, wish)
    context.exit(1 if report.differs else _UNCHECKED if report.unchecked else 0)


def _write(report: CheckReport, wish: Wish) -> None:
    for each in report.findings:
        place = "" if each.file is None else f"{each.file}:{each.line}: "
        click.echo(f"{place}{_title(each)}")
        click.echo(f"  {_example(each)}")
        for line in each.reason.splitlines():
            click.echo(f"  {line}")
    for log in report.unchecked:
        click.echo(f"{log.where} was not checked: {log.reason}", err=True)
    found = sum(each.runs for each in report.findings)
    told = f"{several(found, 'run')} would not continue" if found else "all continue"
    some = "" if wish.sample is None else f", the newest {wish.sample:,} of each workflow"
    click.echo(f"checked {several(report.checked, 'run')}{some}: {told}", err=True)


def _annotate(report: CheckReport) -> None:
    for each in report.findings:
        level = "warning" if each.kind == "fails" else "error"
        place = "" if each.file is None else f"file={_property(each.file)},line={each.line},"
        text = _message(f"{_example(each)}\n{each.reason}")
        click.echo(f"::{level} {place}title={_property(_title(each))}::{text}")
    for log in report.unchecked:
        click.echo(
            f"::warning title=a run was not checked::{_message(f'{log.where}: {log.reason}')}"
        )


def _title(finding: Finding) -> str:
    return f"{several(finding.runs, 'run')} of {finding.workflow} {WOULD[finding.kind]}"


def _example(finding: Finding) -> str:
    entry = "" if finding.index is None else f", entry {finding.index} of its log"
    return f"{'run' if finding.runs == 1 else 'one is run'} {finding.run_id}{entry}"


def _message(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _message(text).replace(":", "%3A").replace(",", "%2C")
