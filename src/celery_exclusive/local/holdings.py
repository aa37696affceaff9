"""The acquisitions that one `lock()` object holds."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from celery_exclusive.local.acquisition import Acquisition
from celery_exclusive.system.off_loop import thread_and_task


class Holdings:
    """The acquisitions of one `lock()` object in this process. A forked child holds nothing of its parent.

    Any thread or context may end them: its own, or else the latest one.
    """

    def __init__(self) -> None:
        self._held: list[Acquisition] = []
        self._blocks: list[Acquisition] = []  # that have not ended, whether or not release() was called

    def add(self, acquisition: Acquisition, *, is_block: bool) -> None:
        self._held.append(acquisition)
        if is_block:
            self._blocks.append(acquisition)
            acquisition.enter_block()

    def find(self) -> Acquisition | None:
        return next(iter(_own_first(self._held, _is_of_this_caller)), None)

    def pop(self) -> Acquisition | None:
        return _pop(self._held, _is_of_this_caller)

    def pop_block(self) -> Acquisition | None:
        """Remove the block that ends here; return its acquisition. None: `release()` has ended it."""
        if block := _pop(self._blocks, lambda block: block.is_block_here):
            block.leave_block()
            with suppress(ValueError):
                self._held.remove(block)
                return block
        return None


def _is_of_this_caller(acquisition: Acquisition) -> bool:
    return acquisition.caller == thread_and_task()


def _own_first(them: list[Acquisition], is_own: Callable[[Acquisition], bool]) -> list[Acquisition]:
    ours = [acquisition for acquisition in them.copy() if not acquisition.is_of_parent]
    return sorted(ours, key=is_own)[::-1]


def _pop(them: list[Acquisition], is_own: Callable[[Acquisition], bool]) -> Acquisition | None:
    for acquisition in _own_first(them, is_own):
        with suppress(ValueError):  # another thread may have removed it meanwhile
            them.remove(acquisition)
            return acquisition
    return None
