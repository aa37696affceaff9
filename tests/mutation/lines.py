"""Which test passes which line, in its own process and in those that it starts.

A copy of the repository has this file as `src/sitecustomize.py`, so each of its processes imports it. In
the process of the tests it is a plugin of pytest, too (which need not rewrite it: PYTEST_DONT_REWRITE).
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from time import monotonic
from types import FrameType
from typing import Any

SRC = Path(__file__).parent
ROOT = f"{SRC / 'celery_exclusive'}{os.sep}"
FOUND = SRC.parent / "lines-of-tests"
"""A file for each test: its id, its seconds, and `path:line` of each line."""


class _Lines:
    """The lines that the current test has passed in this process."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        self._seen: set[tuple[str, int]] = set()
        current = FOUND / "current"
        number = current.read_text() if current.exists() else "none"
        self._file = os.open(FOUND / number, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def trace(self, frame: FrameType, event: str, _: Any) -> Any:
        return self._trace_line if frame.f_code.co_filename.startswith(ROOT) else None

    def _trace_line(self, frame: FrameType, event: str, _: Any) -> Any:
        place = frame.f_code.co_filename, frame.f_lineno
        if event == "line" and place not in self._seen:
            self._seen.add(place)
            os.write(self._file, f"{place[0][len(ROOT) :]}:{place[1]}\n".encode())
        return self._trace_line


if FOUND.exists():
    _lines = _Lines()
    os.register_at_fork(after_in_child=_lines.begin)
    threading.settrace(_lines.trace)
    sys.settrace(_lines.trace)

    import pytest

    _number = iter(range(10**6))

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
        """Leave all but a share of the tests to other copies: LINES_SHARE is "3 of 8"."""
        share, _, shares = os.environ["LINES_SHARE"].partition(" of ")
        items[:] = items[int(share) :: int(shares)]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
        number = str(next(_number))
        (FOUND / "current").write_text(number)
        _lines.begin()
        sys.settrace(_lines.trace)  # a test may have set another
        begin = monotonic()
        try:
            return (yield)  # type: ignore[return-value]
        finally:
            with (FOUND / number).open("a") as file:
                file.write(f"test {monotonic() - begin:.2f} {item.nodeid}\n")
