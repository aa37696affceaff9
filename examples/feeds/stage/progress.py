"""Live progress: a table that redraws itself on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import shutil
import sys
import time
from collections import Counter
from typing import TextIO
from urllib.parse import unquote, urlsplit

from .board import Board, State

_LINE_EVERY = 2.0
_COLUMNS: tuple[State, ...] = ("running", "waiting", "skipped", "done")


def name(feed: str) -> str:
    """Return the short name of a feed."""
    return unquote(urlsplit(feed).path).strip("/") or feed


class Progress:
    """Shows a board; `tell` puts a line above the table."""

    def __init__(self, board: Board, feeds: list[str], out: TextIO = sys.stdout) -> None:
        self._board = board
        self._feeds = feeds
        self._out = out
        self._is_live = out.isatty()
        self._begin = time.monotonic()
        self._drawn: list[str] = []
        self._last = ("", 0.0)

    def tell(self, text: str) -> None:
        """Say what has just happened."""
        self._clear()
        print(f"{self._seconds():5.1f} s  {text}", file=self._out, flush=True)

    def show(self) -> None:
        """Draw the table anew, or print a line if one is due and there is news."""
        if self._is_live:
            self._draw([line[: shutil.get_terminal_size().columns] for line in self._table()])
        elif self._board.submitted:
            now, text = time.monotonic(), self._summary()
            if text != self._last[0] and now - self._last[1] >= _LINE_EVERY:
                self._last = (text, now)
                self.tell(text)

    def close(self) -> None:
        """Take the table away, for the report to follow."""
        self._clear()

    def _draw(self, lines: list[str]) -> None:
        if lines != self._drawn:
            self._clear()
            print(*lines, sep="\n", file=self._out, flush=True)
            self._drawn = lines

    def _clear(self) -> None:
        if self._drawn:
            print(f"\x1b[{len(self._drawn)}A\x1b[J", end="", file=self._out)
            self._drawn = []

    def _seconds(self) -> float:
        return time.monotonic() - self._begin

    def _summary(self) -> str:
        counts = self._board.count()
        shown = ", ".join(f"{counts[column]} {column}" for column in _COLUMNS)
        return f"{len(self._board.submitted)} submitted: {shown}"

    def _table(self) -> list[str]:
        submitted = Counter(self._board.submitted.values())
        rows = [self._row(name(feed), submitted[feed], self._board.count(feed)) for feed in self._feeds]
        total = self._row("all", len(self._board.submitted), self._board.count())
        head = f"{'feed':<26}{'submitted':>10}" + "".join(f"{column:>10}" for column in _COLUMNS)
        return ["", head, "-" * len(head), *rows, "-" * len(head), total]

    @staticmethod
    def _row(label: str, submitted: int, counts: Counter[State]) -> str:
        return f"{label[:25]:<26}{submitted:>10}" + "".join(f"{counts[column]:>10}" for column in _COLUMNS)
