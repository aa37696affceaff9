"""What type checkers say to the documented spellings, with the stubs of Celery (celery-types) and without."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.pages import BLOCKS, SHORT, Example
from tests.typing.checkers import Checkers, Finding

HERE = Path(__file__).parent
PRELUDE = """
from celery import Celery
from celery_exclusive import Debounce, Exclusive, Unique, install, lock

__all__ = ["Debounce", "Exclusive", "Unique", "app", "install", "lock", "page", "rebuild", "save"]

app = install(Celery("pages"))
page = 1
def save(page: object, fence: int) -> None: ...
def rebuild() -> None: ...
"""
"""The names that pages use without an import."""
MODULES = {
    example: f"{re.sub(r'[^a-z0-9]+', '_', example.place.lower())}_{number}"
    for number, example in enumerate((*BLOCKS, *SHORT))
}
CHECKERS = [(checker, has_stubs) for checker in ("mypy", "pyright") for has_stubs in (True, False)]
Reports = Mapping[tuple[str, bool], list[Finding]]


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> Reports:
    """What each checker finds in the modules of this folder, and in the examples of all pages."""
    folder = tmp_path_factory.mktemp("typing")
    pages = folder / "code/pages"
    pages.mkdir(parents=True)
    for name in ("api.py", "wrong.py"):
        shutil.copy(HERE / name, folder / "code")
    (pages / "prelude.py").write_text(PRELUDE)
    for example, name in MODULES.items():
        (pages / f"{name}.py").write_text(complete(example))
    environments = {has_stubs: Checkers(folder, has_stubs=has_stubs) for has_stubs in (True, False)}
    with ThreadPoolExecutor() as pool:
        runs = {each: pool.submit(getattr(environments[each[1]], each[0])) for each in CHECKERS}
        return {each: run.result() for each, run in runs.items()}


def complete(example: Example) -> str:
    code = example.code
    if "from feeds import" in code:
        code = code.replace("from feeds import", f"from pages.{MODULES[example.feeds]} import")
    return f"from pages.prelude import *\n{code}\n"


@pytest.fixture(params=CHECKERS, ids=lambda each: f"{each[0]}-{'with' if each[1] else 'without'}-stubs")
def checker(request: pytest.FixtureRequest) -> tuple[str, bool]:
    each: tuple[str, bool] = request.param
    return each


@pytest.mark.promise(
    "mypy --strict and pyright find nothing in the documented spellings, in annotated code and in each "
    "example of README and docs, with celery-types and without; with it, nor does pyright's strict mode",
    broke="`delay` and `set` left to Celery; an example with `call.outcom`",
)
def test_checkers_find_nothing_in_the_documented_spellings(
    reports: Reports, checker: tuple[str, bool]
) -> None:
    assert not [found for found in reports[checker] if found.file != "wrong.py"]


@pytest.mark.promise(
    "mypy and pyright report wrong values and names of options, of `lock()`, and of the arguments of tasks",
    broke="`py.typed` deleted; `limit: Any`",
)
def test_checkers_report_wrong_values_and_names(reports: Reports, checker: tuple[str, bool]) -> None:
    found = {(found.line, found.code) for found in reports[checker] if found.file == "wrong.py"}
    assert found == set(expected(*checker))


def expected(checker: str, has_stubs: bool) -> Iterator[tuple[int, str]]:
    for number, line in enumerate((HERE / "wrong.py").read_text().splitlines(), 1):
        for code in filter(None, line.partition("  # ")[2].split(", ")):
            # Without stubs each class of Celery is Any to mypy, which has every attribute.
            is_seen = has_stubs or code not in {"attr-defined", "return-value"}
            if code.startswith("report") == (checker == "pyright") and is_seen:
                yield number, code


def test_the_documented_spellings_run() -> None:
    subprocess.run([sys.executable, HERE / "api.py"], check=True, timeout=60)
