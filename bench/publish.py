"""The cost of `delay()` with an option, against a bare one, by one producer. Most have a key of their own."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from itertools import count

from bench import peers, size
from bench.bare import Socket, lock_with_each_message
from bench.clock import SLICES, interleaved, per_call
from bench.row import OURS, Figure, Row, shares
from bench.tasks import KEPT, make
from celery_exclusive.seams.kombu_message import capturing, push_or_send
from tests.servers import RedisServer

CALLS, ROUNDS = 50, 9
UNIQUE = f"{OURS}, unique"
BUSY = f"{OURS}, one busy key"
FLOOR = "lock and message in one script"
FLOOR_APART = "one round trip to the other Redis before"


def run() -> list[Row]:
    with RedisServer() as broker, RedisServer() as other:
        one = _measure(broker, broker, ["bare", FLOOR, UNIQUE, KEPT, OURS, BUSY, *peers.UNIQUE])
        apart = _measure(broker, other, ["bare", FLOOR_APART, UNIQUE, *peers.UNIQUE])
    return [
        _row(
            "publish", "`delay()` with `unique=`, one Redis (plain `delay()` = 1)", 0.95, one, UNIQUE, FLOOR
        ),
        _row(
            "publish-apart",
            "`delay()` with `unique=`, locks in another Redis (plain `delay()` = 1)",
            0.80,
            apart,
            UNIQUE,
            FLOOR_APART,
        ),
        _row(
            "publish-exclusive",
            "`delay()` with `exclusive=` (plain `delay()` = 1)",
            0.95,
            one,
            OURS,
            KEPT,
        ),
        _row(
            "publish-busy",
            "`delay()` with `exclusive=`, one busy key, so only the first is sent (plain `delay()` = 1)",
            0.95,
            one,
            BUSY,
            KEPT,
        ),
    ]


def _measure(broker: RedisServer, store: RedisServer, names: list[str]) -> dict[str, list[float]]:
    absent = peers.missing(*peers.UNIQUE)
    contenders = {name: _publisher(name, broker, store) for name in names if name not in absent}
    return interleaved(contenders, size.scaled(ROUNDS), SLICES)


def _publisher(name: str, broker: RedisServer, store: RedisServer) -> Callable[[], float]:
    task = make(OURS if name == BUSY else name, broker.url, store=store.url)
    numbers = count()
    other = Socket(store.port)

    def call() -> None:
        key = "busy" if name == BUSY else f"{name} {next(numbers)}"
        if name == FLOOR_APART:
            other.ask("SET", key, "1", "NX", "PX", "600000")
        if name == KEPT:
            with task.app.producer_or_acquire() as producer:
                task.apply_async((key,), producer=capturing(producer, "task", push_or_send))
        else:
            task.delay(key)

    calls = per_call(call, size.scaled(CALLS))

    def measure() -> float:
        with lock_with_each_message() if name == FLOOR else nullcontext():
            each = calls()
        with broker.client() as client:
            client.delete("celery")  # so that each round finds the same broker
        return each

    return measure


def _row(
    name: str, what: str, goal: float, measured: dict[str, list[float]], ours: str, floor: str | None = None
) -> Row:
    wanted = {ours, floor, *(peers.UNIQUE if ours == UNIQUE else ())}
    figures = {who: figure for who, figure in shares(measured, "bare").items() if who in wanted}
    absent = peers.missing("celery-once", *peers.UNIQUE) if ours == UNIQUE else {}
    notes = {
        "bare, us": Figure.of(measured["bare"]).median,
        "added, us": Figure.of(measured[ours]).median - Figure.of(measured["bare"]).median,
    }
    return Row(name, what, "share", goal, figures, floor=floor, ours=ours, missing=absent, notes=notes)
