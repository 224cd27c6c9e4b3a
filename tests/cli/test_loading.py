"""How a command line names an app."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from holdfast import App
from holdfast.cli.process.loading import AppNotLoaded, AppReference
from holdfast.errors import ConfigurationError

ONE = 'from holdfast import App\napp = App("one")\nagain = app\n'
TWO = 'from holdfast import App\nfirst = App("first")\nsecond = App("second")\n'


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty directory to work in; what is imported from it is forgotten."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    return tmp_path


def load(text: str) -> App:
    return AppReference.parse(text).load()


def test_a_module_of_the_working_directory_is_found(place: Path) -> None:
    (place / "loaded_one.py").write_text(ONE)
    assert load("loaded_one:app").name == load("loaded_one").name == "one"


def test_the_only_app_of_a_file_is_found(place: Path) -> None:
    (place / "deep").mkdir()
    (place / "deep" / "loaded_file.py").write_text(ONE)
    assert load("deep/loaded_file.py").name == load("deep/loaded_file.py:again").name == "one"


def test_a_file_in_a_package_is_imported_as_its_module(place: Path) -> None:
    package = place / "loaded_package"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "names.py").write_text('NAME = "relative"\n')
    (package / "work.py").write_text(
        "from holdfast import App\nfrom .names import NAME\napp = App(NAME)\n"
    )
    assert load("loaded_package/work.py").name == "relative"


def test_several_apps_in_a_module_must_be_told_apart(place: Path) -> None:
    (place / "loaded_two.py").write_text(TWO)
    assert load("loaded_two:second").name == "second"
    with pytest.raises(ConfigurationError, match="2 Apps: name it, as in loaded_two:first or"):
        load("loaded_two.py")


def test_a_module_without_an_app_says_what_it_needs(place: Path) -> None:
    (place / "loaded_none.py").touch()
    with pytest.raises(ConfigurationError, match=r"no App: it needs one, such as `app = App"):
        load("loaded_none")


def test_a_missing_module_is_told_from_a_missing_import(place: Path) -> None:
    (place / "loaded_importer.py").write_text("import nothing_of_this_name\n")
    with pytest.raises(ConfigurationError, match="there is no module nowhere_at_all"):
        load("nowhere_at_all:app")
    with pytest.raises(AppNotLoaded, match="No module named 'nothing_of_this_name'"):
        load("loaded_importer:app")


@pytest.mark.parametrize("text", ["", ":app", "nowhere.py", "no/such/file:app"])
def test_a_reference_without_a_module_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError):
        AppReference.parse(text)


def test_a_definition_that_cannot_work_shows_its_line(place: Path) -> None:
    (place / "loaded_wrong.py").write_text(
        'from holdfast import App\napp = App("x")\n@app.workflow\ndef sync(ctx):\n    pass\n'
    )
    with pytest.raises(AppNotLoaded) as caught:
        load("loaded_wrong.py")
    assert 'loaded_wrong.py", line 3' in str(caught.value)
    assert "must be an async function" in str(caught.value)
