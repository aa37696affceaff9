"""What loads the plugins of this package, as pytest and each command of Celery do, imports little of it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import celery_exclusive

OURS = "sorted(name for name in sys.modules if name.startswith('celery_exclusive'))"


def output(*command: str, cwd: Path | None = None) -> str:
    return subprocess.run(
        [sys.executable, *command], cwd=cwd, check=True, text=True, capture_output=True
    ).stdout


@pytest.mark.promise(
    "A run of pytest, and each command of Celery, imports of this package the plugin alone",
    name="imports",
    broke="red before: all of it, and Celery in each run of pytest",
)
def test_a_run_of_pytest_imports_of_this_package_its_fixture_only(tmp_path: Path) -> None:
    (tmp_path / "test_of_a_project.py").write_text(
        f"import sys\n\ndef test_it(pytestconfig):\n    print('celery' in sys.modules, {OURS})\n"
    )
    said = output("-m", "pytest", "-sq", "-p", "no:cacheprovider", "-p", "no:xdist", cwd=tmp_path)
    assert "False ['celery_exclusive', 'celery_exclusive.testing', 'celery_exclusive.testing.plugin']" in said


@pytest.mark.proves("imports")
def test_a_command_of_celery_imports_of_this_package_the_name_of_its_command_only() -> None:
    code = f"import sys; from celery.bin.celery import celery; print('locks' in celery.commands, {OURS})"
    assert output("-c", code).strip() == (
        "True ['celery_exclusive', 'celery_exclusive.cli', 'celery_exclusive.cli.locks', "
        "'celery_exclusive.display', 'celery_exclusive.errors']"
    )


@pytest.mark.proves("imports")
def test_a_project_that_declares_tasks_imports_no_answers_for_operators() -> None:
    code = f"import sys; from celery_exclusive import Exclusive, Task, Unique, install, lock; print({OURS})"
    assert "operate" not in output("-c", code)


@pytest.mark.proves("imports")
def test_the_command_lists_its_commands_when_it_is_asked() -> None:
    said = output("-m", "celery", "locks", "--help")
    assert all(f"\n  {name} " in said for name in ("create-tables", "ls", "release"))


@pytest.mark.proves("imports")
@pytest.mark.parametrize("first", ["celery_exclusive.installer", "celery_exclusive.options.declared"])
def test_the_public_names_are_there_whatever_was_imported_before(first: str) -> None:
    code = f"import {first}; from celery_exclusive import *; print(install.__name__, Exclusive(), lock('a'))"
    assert output("-c", code).strip() == "install Exclusive() lock('a')"


def test_another_name_is_missing_as_from_any_module() -> None:
    assert not hasattr(celery_exclusive, "Exclusiv")
