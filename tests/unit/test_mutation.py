"""A mutation is seen if tests that pass without it do not pass with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutation import __main__ as mutation
from tests.mutation import copy
from tests.mutation.copy import PACKAGE, Copy
from tests.mutation.mutants import mutants
from tests.mutation.suites import SUITES, Passing

TESTS = """
import os
from celery_exclusive.numbers import LIMIT
def test_sees(): assert LIMIT == 1
def test_does_not_see(): assert LIMIT
def test_fails(): assert not LIMIT
def test_ends_the_process(): os._exit(LIMIT)
"""


def note(folder: Path, text: str) -> None:
    """Note these lines for one test."""
    folder.mkdir(exist_ok=True)
    (folder / f"{len(list(folder.iterdir()))}-0").write_text(text)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "test", "verdict"),
    [
        ("LIMIT = 1", "test_sees", "failed (unit)"),
        ("LIMIT = 1", "test_does_not_see", "passed"),
        ("LIMIT = 1", "test_fails", "flaky (unit)"),
        ("LIMIT = 1", "test_that_does_not_exist", "flaky (unit)"),
        ("LIMIT = 1\nassert LIMIT == 1", "test_sees", "not collected (unit)"),
        ("LIMIT = 0", "test_ends_the_process", "failed (unit)"),
        ("LIMIT = 6", "test_ends_the_process", "flaky (unit)"),
    ],
)
def test_a_mutation_is_seen_by_tests_that_pass_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, test: str, verdict: str
) -> None:
    repository = tmp_path / "repository"
    monkeypatch.setattr(copy, "REPOSITORY", repository)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    (package := repository / PACKAGE).mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "numbers.py").write_text(text)
    (repository / "test_limit.py").write_text(TESTS)
    note(tmp_path / "unit", f"numbers.py:1\ntest 0.1 test_limit.py::{test}\n")
    passing = {suite.name: Passing(tmp_path / suite.name) for suite in SUITES}
    first = next(mutants(package / "numbers.py", package))
    assert mutation.judge(first, Copy(tmp_path / "copy"), passing) == verdict


def test_lines_that_a_worker_passes_after_its_test_has_ended_belong_to_the_test(tmp_path: Path) -> None:
    note(tmp_path / "lines", "a.py:1\ntest 0.1 id of the test\na.py:2\n")
    note(tmp_path / "lines", "")
    note(tmp_path / "lines", "a.py:1\n")  # its process was killed
    (tmp_path / "a.py").write_text("\nLIMIT = 1")
    first = next(mutants(tmp_path / "a.py", tmp_path))
    assert [test.id for test in Passing(tmp_path / "lines").quickest(first, 10)] == ["id of the test"]
