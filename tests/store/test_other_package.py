"""A store that another package brings: `examples/folder_store`, installed as its users would install it."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from importlib import import_module
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from celery_exclusive.errors import OptionError
from celery_exclusive.stores import base
from celery_exclusive.stores.base import open_store

pytestmark = pytest.mark.promise(
    "Another package can bring a store: found by its entry point, under 190 lines, with public names alone, "
    "proven by the kit. One that cannot be imported is named",
    broke="no entry points; a tombstone forgotten in the example, or an abstract method: the kit fails; a "
    "name that is in no `__all__`; AttributeError as it comes",
)

EXAMPLE = Path(__file__).parents[2] / "examples" / "folder_store"
SOURCE = EXAMPLE / "src/folder_store/__init__.py"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("packages")
    options = ["--no-deps", "--no-build-isolation", "--python", sys.executable, "--target", str(folder)]
    subprocess.run(["uv", "pip", "install", "--quiet", *options, str(EXAMPLE)], check=True)
    return folder


@pytest.mark.parametrize("tests", ["free_key", pytest.param("test", marks=pytest.mark.large, id="all")])
def test_the_kit_proves_a_store_that_is_found_by_its_entry_point(installed: Path, tests: str) -> None:
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-k", tests]
    paths = [str(installed), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, str(EXAMPLE)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    assert "skipped" not in done.stdout


def test_the_example_has_less_than_190_lines() -> None:
    assert len(SOURCE.read_text().splitlines()) < 190


def test_the_example_uses_public_names_alone() -> None:
    imports = [node for node in ast.walk(ast.parse(SOURCE.read_text())) if isinstance(node, ast.ImportFrom)]
    used = {(str(node.module), name.name) for node in imports for name in node.names}
    ours = {(module, name) for module, name in used if module.startswith("celery_exclusive")}
    assert len(ours) > 10
    assert not [(module, name) for module, name in ours if name not in import_module(module).__all__]


@pytest.mark.parametrize("value", ["no_such_package:Store", "json:Store"])
def test_a_store_that_cannot_be_imported_is_named(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint("theirs", value, "celery_exclusive.stores")
    monkeypatch.setattr(base, "entry_points", lambda group: [point] if group == point.group else [])
    monkeypatch.setattr(base, "_installed", base._installed.__wrapped__)
    with pytest.raises(OptionError, match="exclusive_store: the store of theirs:// cannot be imported: "):
        open_store("theirs://somewhere")
    with pytest.raises(OptionError, match="did you mean 'theirs'"):
        open_store("their://somewhere")
