"""Exceptions as records."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from uuid import UUID

import pytest

from holdfast.codec import decode_error, decoder, describe, encode_error
from holdfast.errors import InvalidInput, PayloadError, RunFailed, StepFailed
from holdfast.types import ErrorInfo


class Declined(LookupError):
    class Hard(ValueError): ...


def caught(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as raised:
        return raised


def test_a_record_tells_class_message_and_place() -> None:
    info = describe(caught(Declined("no funds")))
    assert info.kind == f"{__name__}.Declined"
    assert info.message == "no funds"
    assert "in caught" in info.traceback
    assert info.traceback.endswith("Declined: no funds\n")
    assert str(info) == f"{__name__}.Declined: no funds"


def test_a_record_of_a_plain_function_has_no_frame_of_its_pool() -> None:
    with ThreadPoolExecutor(1) as pool:
        error = pool.submit(lambda: [][1]).exception()
    assert error is not None
    lines = describe(error).traceback.splitlines()
    assert sum('File "' in line for line in lines) == 1
    assert __file__ in lines[1]


def test_a_record_knows_the_classes_it_derives_from() -> None:
    info = describe(Declined())
    assert info.bases == ("builtins.LookupError",)
    assert info.matches(Declined)
    assert info.matches(LookupError)
    assert not info.matches(KeyError)
    assert describe(Declined.Hard()).matches(Declined.Hard)


PROGRAM = """
import sys

from holdfast.codec import describe

class Declined(LookupError): ...
class Hard(Declined): ...

if __name__ == "__main__":
    print(describe(Hard()).kind, *describe(Hard()).bases)
    import {name}
    assert describe(Hard()).matches({name}.Declined)
    assert describe({name}.Hard()).matches(Declined)
"""


@pytest.mark.parametrize(("module", "package"), [(False, False), (False, True), (True, True)])
def test_a_class_has_one_name_whether_its_file_is_run_or_imported(
    tmp_path: Path, module: bool, package: bool
) -> None:
    """`python shop.py` records what a worker that imports `shop` knows."""
    name = "store.shop" if package else "shop"
    file = tmp_path.joinpath(*name.split(".")).with_suffix(".py")
    file.parent.mkdir(exist_ok=True)
    if package:
        (file.parent / "__init__.py").touch()
    file.write_text(PROGRAM.format(name=name))
    command = [sys.executable, *(["-m", name] if module else [str(file)])]
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.stderr == ""
    assert done.stdout.split() == [f"{name}.Hard", f"{name}.Declined", "builtins.LookupError"]


def test_a_record_of_an_older_release_has_the_module_that_was_run() -> None:
    info = ErrorInfo("__main__.Declined.Hard", "", bases=("builtins.ValueError",))
    assert info.matches(Declined.Hard)
    assert info.matches(ValueError)
    assert not info.matches(Declined)
    assert not ErrorInfo("__main__.ValueError", "").matches(ValueError)


def test_a_record_comes_back_as_it_was_written() -> None:
    try:
        try:
            raise KeyError("inner")
        except KeyError as inner:
            raise Declined("outer") from inner
    except Declined as outer:
        info = describe(outer)
    assert decode_error(encode_error(info)) == info
    assert info.cause is not None
    assert info.cause.matches(KeyError)


def test_the_cause_follows_python() -> None:
    implicit, suppressed = Declined(), Declined()
    implicit.__context__ = suppressed.__context__ = KeyError("k")
    suppressed.__suppress_context__ = True
    assert (cause := describe(implicit).cause) is not None
    assert cause.kind == "builtins.KeyError"
    assert describe(suppressed).cause is None


def test_a_chain_of_causes_is_cut() -> None:
    error = Exception("first")
    for number in range(50):
        error, previous = Exception(str(number)), error
        error.__cause__ = previous
    depth, info = 0, describe(error)
    while info.cause is not None:
        depth, info = depth + 1, info.cause
    assert 1 < depth < 50


@pytest.mark.parametrize(
    "wrap", [lambda e: StepFailed("a", e), lambda e: RunFailed(UUID(int=1), e)]
)
def test_a_failed_step_or_run_keeps_its_recorded_error_as_cause(wrap) -> None:  # type: ignore[no-untyped-def]
    recorded = ErrorInfo("shop.Declined", "no funds", "Traceback …")
    assert describe(wrap(recorded)).cause == recorded


async def test_a_task_groups_first_error_is_its_cause() -> None:
    async def fail() -> None:
        raise Declined("in a group")

    with pytest.raises(ExceptionGroup) as raised:
        async with asyncio.TaskGroup() as group:
            group.create_task(fail())
    info = describe(raised.value)
    assert info.cause is not None
    assert info.cause.matches(Declined)
    assert "in a group" in info.traceback


def test_tracebacks_leave_out_the_engines_own_frames() -> None:
    def validate() -> None:
        decoder(int)('"x"')

    with pytest.raises(InvalidInput) as raised:
        validate()
    frames = describe(raised.value).traceback
    assert "in validate" in frames
    assert "_values.py" not in frames


def test_huge_errors_are_cut() -> None:
    info = describe(caught(ValueError("x" * 1_000_000)))
    assert len(encode_error(info)) < 20_000


@pytest.mark.parametrize("text", ["a\0b", "a\ud800b"])
def test_text_that_cannot_be_stored_is_cleaned(text: str) -> None:
    """Trap 20."""
    encoded = encode_error(describe(caught(ValueError(text))))
    assert "\\u0000" not in encoded
    assert json.loads(encoded)["message"] in ("ab", "a\\ud800b")


def test_an_error_that_cannot_be_printed_is_recorded() -> None:
    class Broken(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    assert "RuntimeError" in describe(caught(Broken())).message


def test_an_invalid_record_is_refused() -> None:
    with pytest.raises(PayloadError):
        decode_error('{"message": "no kind"}')
