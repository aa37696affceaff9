"""What people read: whatever keys, ids and arguments contain, a line of the log stays one line of text."""

from __future__ import annotations

import inspect
import io
import logging
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery
from celery.app.log import TaskFormatter

from celery_exclusive import Unique, notices, outcomes
from celery_exclusive.core.operations import Owner
from celery_exclusive.errors import (
    Conflict,
    DuplicateTask,
    ExclusiveError,
    LeaseLost,
    LockHeld,
    OptionError,
    StoreUnavailable,
    UnreadableKey,
)
from celery_exclusive.leases.repeated_job import RepeatedJob
from celery_exclusive.outcomes import Subject

HOSTILE = "a\n[2027-01-01 00:00:00,000: ERROR/MainProcess] forged\r\x1b[2J\x07\x85\u2028\u202eb"
ARGUMENTS: dict[str, Any] = {
    "str": HOSTILE,
    "int": 7,
    "float": 1.5,
    "float | None": 1.5,
    "Sequence[str]": [HOSTILE, HOSTILE],
    "Mapping[str, str]": {HOSTILE: HOSTILE},
    "Mapping[Any, int]": {"put": 7},
    "Sequence[Owner]": (Owner(f"{HOSTILE}/p", 1, 1, 1), Owner("b/p", 1, 1, 1)),
    "Exception": StoreUnavailable(HOSTILE),
    "UnreadableKey": UnreadableKey(HOSTILE, HOSTILE, HOSTILE),
    "BaseException": ValueError(HOSTILE),
    "Subject": Subject(HOSTILE, HOSTILE, HOSTILE, HOSTILE),
    "Exception | None": None,
    "Owner": Owner(f"{HOSTILE}/p", 1, 1, 1),
    "bool": False,
    "Option": Unique(skip_result=HOSTILE),
}
WITHOUT_A_LINE = ("acquired", "released", "joined_line", "not_acquired", "ended_without_body")
NOTICES = {
    name: function
    for module in (notices, outcomes)
    for name, function in inspect.getmembers(module, inspect.isfunction)
    if function.__module__ == module.__name__
    and not name.startswith("_")
    and name not in WITHOUT_A_LINE
    and function.__annotations__["return"] == "None"
    and {*function.__annotations__.values()} - {"int", "None"}
}


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    """What a handler of Celery's own makes of our records, but of no thread that another test has left."""
    stream, own = io.StringIO(), threading.get_ident()
    handler = logging.StreamHandler(stream)
    handler.addFilter(lambda record: record.thread == own)
    handler.setFormatter(TaskFormatter("[LINE] %(message)s", use_color=False))
    level = notices.logger.level
    notices.logger.addHandler(handler)
    notices.logger.setLevel(logging.INFO)
    yield stream
    notices.logger.removeHandler(handler)
    notices.logger.setLevel(level)


def assert_is_one_line(text: str) -> None:
    assert text.endswith("\n")
    assert text[:-1].isprintable(), text
    assert "forged" in text


@pytest.mark.promise(
    "Keys, ids, names and texts of other programs are part of one printable line, in every notice, also in "
    "one that is yet to be written",
    name="printable notices",
    broke="no filter at the logger; errors that keep the text they are given",
)
@pytest.mark.parametrize("name", NOTICES)
def test_a_notice_of_a_hostile_text_is_one_printable_line(name: str, app: Celery, log: io.StringIO) -> None:
    notice = NOTICES[name]
    services: Any = app._celery_exclusive  # type: ignore[attr-defined]
    services.store.url = HOSTILE
    kinds = {of: kind for of, kind in notice.__annotations__.items() if of != "return"}
    notice(**{of: services if kind == "Services" else ARGUMENTS[kind] for of, kind in kinds.items()})
    assert_is_one_line(log.getvalue())


@pytest.mark.proves("printable notices")
def test_a_text_that_is_logged_as_it_is_is_one_printable_line(log: io.StringIO) -> None:
    notices.logger.warning(f"100% {HOSTILE}")
    assert_is_one_line(log.getvalue())


@pytest.mark.proves("printable notices")
def test_a_traceback_of_a_hostile_error_has_no_line_that_looks_like_one_of_the_log(log: io.StringIO) -> None:
    with RepeatedJob(HOSTILE):
        raise RuntimeError(HOSTILE)
    first, *traceback = log.getvalue().splitlines()
    assert first.isprintable()
    assert any("RuntimeError" in line for line in traceback)
    assert all(line.isprintable() and line.startswith(" ") for line in traceback), traceback


@pytest.mark.proves("printable notices")
@pytest.mark.parametrize(
    "error",
    [
        *(kind(HOSTILE) for kind in (ExclusiveError, OptionError, LeaseLost, StoreUnavailable)),
        *(kind(HOSTILE, HOSTILE, HOSTILE) for kind in (Conflict, LockHeld, DuplicateTask)),
    ],
    ids=lambda error: type(error).__name__,
)
def test_the_text_of_an_error_is_printable_and_its_key_is_as_it_is(error: ExclusiveError) -> None:
    assert str(error).isprintable()
    assert "forged" in str(error)
    if isinstance(error, Conflict):
        assert (error.key, error.holder) == (HOSTILE, HOSTILE)
