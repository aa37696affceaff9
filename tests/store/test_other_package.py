"""A store that another package brings: `examples/folder_store`, installed as its users would install it."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from celery_exclusive.errors import OptionError
from celery_exclusive.stores import base
from celery_exclusive.stores.base import open_store

pytestmark = pytest.mark.promise(
    "Another package can bring a store: found by its entry point, under 170 lines, proven by the kit. One "
    "that cannot be imported is named",
    broke="no entry points; a tombstone forgotten in the example: the kit fails; AttributeError as it comes",
)

EXAMPLE = Path(__file__).parents[2] / "examples" / "folder_store"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("packages")
    options = ["--no-deps", "--no-build-isolation", "--python", sys.executable, "--target", str(folder)]
    subprocess.run(["uv", "pip", "install", "--quiet", *options, str(EXAMPLE)], check=True)
    return folder


@pytest.mark.large
def test_the_kit_proves_a_store_that_is_found_by_its_entry_point(installed: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", str(EXAMPLE)],
        env={**os.environ, "PYTHONPATH": str(installed)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    assert "skipped" not in done.stdout


def test_the_example_has_less_than_170_lines() -> None:
    assert len((EXAMPLE / "src/folder_store/__init__.py").read_text().splitlines()) < 170


@pytest.mark.parametrize("value", ["no_such_package:Store", "json:Store"])
def test_a_store_that_cannot_be_imported_is_named(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint("theirs", value, "celery_exclusive.stores")
    monkeypatch.setattr(base, "entry_points", lambda group: [point] if group == point.group else [])
    monkeypatch.setattr(base, "_installed", base._installed.__wrapped__)
    with pytest.raises(OptionError, match="exclusive_store: the store of theirs:// cannot be imported: "):
        open_store("theirs://somewhere")
    with pytest.raises(OptionError, match="did you mean 'theirs'"):
        open_store("their://somewhere")
