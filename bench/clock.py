"""How long something takes: contenders in turn, round by round, so that a busy moment hits all of them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from statistics import median

ROUNDS, CALLS = 15, 200


@contextmanager
def one_processor() -> Generator[None]:
    """Keep this process, and the servers that it starts, on one processor.

    They work in turn, so another one does nothing for them. But on which of two the kernel puts each of them
    changes what a contender takes by a factor of two, and not of all contenders alike.
    """
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(before)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def medians(contenders: dict[str, Callable[[], object]], calls: int = CALLS) -> dict[str, float]:
    """Microseconds per call, the median of the rounds."""
    rounds: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(ROUNDS):
        for name, call in contenders.items():
            began = time.perf_counter()
            for _ in range(calls):
                call()
            rounds[name].append((time.perf_counter() - began) / calls * 1e6)
    return {name: median(times) for name, times in rounds.items()}


def table(title: str, times: dict[str, float]) -> None:
    """Print times, and their ratios to the first."""
    floor = next(iter(times.values()))
    print(title)
    for name, microseconds in times.items():
        print(f"  {name:<58} {microseconds:8.1f} us  {microseconds / floor:5.2f}x")
