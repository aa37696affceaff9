"""How far a run of the tests is, and how long it may still take."""

from __future__ import annotations

import time

import pytest


class Progress:
    """A plugin that prints a line after so many seconds, also where the output is no terminal.

    The tests that are left are taken to last as long on average as those that have ended.
    """

    def __init__(self, every: float = 30) -> None:
        self._every = every
        self._ended = 0
        self._began = self._said = 0.0

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        self._session = session
        self._reporter = session.config.pluginmanager.get_plugin("terminalreporter")

    def pytest_runtest_logstart(self) -> None:
        if not self._began:  # all tests are collected
            self._began = self._said = time.monotonic()

    def pytest_runtest_logfinish(self) -> None:
        self._ended += 1
        now = time.monotonic()
        if self._reporter and now - self._said >= self._every:
            self._said, seconds, of = now, now - self._began, self._session.testscollected
            left = seconds / self._ended * (of - self._ended)
            self._reporter.write_line(
                f"\n{self._ended} of {of} tests in {_shown(seconds)}, some {_shown(left)} left"
            )


def _shown(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"
