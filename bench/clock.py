"""How long something takes: contenders in turn, round by round, so that a busy moment hits all of them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from statistics import median

from bench import size

SLICES = 8


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


def interleaved(
    contenders: dict[str, Callable[[], float]], rounds: int, slices: int = 1
) -> dict[str, list[float]]:
    """Ask each contender for its figure, in turn, in so many rounds after a first one that does not count.

    In each round they have several turns, and the median of these is the figure: what else the machine does
    for a moment is in one turn.
    """
    figures: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(rounds + 1):
        turns = [{name: measure() for name, measure in contenders.items()} for _ in range(slices)]
        if number:
            for name, kept in figures.items():
                kept.append(median(turn[name] for turn in turns))
    return figures


def per_call(call: Callable[[], object], calls: int) -> Callable[[], float]:
    """Return what measures the microseconds of a call, over so many."""

    def measure() -> float:
        began = time.perf_counter()
        for _ in range(calls):
            call()
        return (time.perf_counter() - began) / calls * 1e6

    return measure


def timed(contenders: dict[str, Callable[[], object]], calls: int = 200) -> dict[str, list[float]]:
    """Microseconds per call, round by round."""
    each = size.scaled(calls // SLICES)
    measures = {name: per_call(call, each) for name, call in contenders.items()}
    return interleaved(measures, size.scaled(15), SLICES)


def table(title: str, times: dict[str, list[float]]) -> None:
    """Print times, and their ratios to the first."""
    floor = median(next(iter(times.values())))
    print(title)
    for name, rounds in times.items():
        print(f"  {name:<58} {median(rounds):8.1f} us  {median(rounds) / floor:5.2f}x")
