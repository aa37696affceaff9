"""Logs the errors of a thread that repeats one activity."""

from __future__ import annotations

import time

from celery_exclusive import notices
from celery_exclusive.errors import ExclusiveError
from celery_exclusive.system.threads import run_in_hub

_SOON = 1
"""Seconds until a failed activity is retried."""
_AGAIN = 60
"""Seconds after which a log line says that an activity still fails."""


class RepeatedJob:
    """Keeps a repeated activity of a thread alive through errors, and logs when they begin, last and end."""

    def __init__(self, what: str) -> None:
        self.what = what
        self._since: float | None = None
        self._logged_at = 0.0

    @property
    def lasts(self) -> bool:
        return self._since is not None

    def pause(self, period: float) -> float:
        """Return the seconds until the next time: few of them, if the last time failed."""
        return min(period, _SOON) if self.lasts else period

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> bool:
        now = time.monotonic()
        if error is None:
            if self._since is not None:
                run_in_hub(notices.recovered, self.what, now - self._since)
            self._since = None
            return False
        if isinstance(error, Exception):
            self._log(error, now)
        if self._since is None:
            self._since = now
        return isinstance(error, Exception)

    def _log(self, error: Exception, now: float) -> None:
        if self._since is None:
            traceback = None if isinstance(error, ExclusiveError) else error
            run_in_hub(notices.failed, self.what, error, traceback)
        elif now - self._logged_at >= _AGAIN:
            run_in_hub(notices.still_fails, self.what, now - self._since, error)
        else:
            return
        self._logged_at = now
