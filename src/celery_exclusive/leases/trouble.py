"""Logs the errors of a thread that repeats one activity."""

from __future__ import annotations

from celery_exclusive import notices
from celery_exclusive.errors import ExclusiveError
from celery_exclusive.system.threads import run_in_hub

_SOON = 1
"""Seconds until a failed activity is retried."""


class Trouble:
    """Keeps a repeated activity of a thread alive through errors, and logs when they begin and end.

    with Trouble("the renewal of leases"): ...
    """

    def __init__(self, what: str) -> None:
        self.what = what
        self.lasts = False

    def pause(self, period: float) -> float:
        """Return the seconds until the next time: few of them, if the last time failed."""
        return min(period, _SOON) if self.lasts else period

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> bool:
        if isinstance(error, Exception) and not self.lasts:
            traceback = None if isinstance(error, ExclusiveError) else error
            run_in_hub(
                notices.logger.warning, "%s failed; retrying: %s", self.what, error, exc_info=traceback
            )
        elif error is None and self.lasts:
            run_in_hub(notices.logger.info, "recovered: %s", self.what)
        self.lasts = error is not None
        return isinstance(error, Exception)
