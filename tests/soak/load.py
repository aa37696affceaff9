"""The load of a round: calls and canvases, drawn from its seed, and made by several threads."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from threading import Thread
from typing import Any
from uuid import uuid4

from celery import chain, chord, group

from tests.soak.declared import Declared
from tests.worker.lab import Lab

_FORMS = {"plain": 20, "chain": 2, "chord": 2, "group": 2, "link": 1}
_ENDS = {"return": 8, "fail": 1, "retry": 2}
_KEYS = "ab"
_CALLERS = 3
_BEYOND_TTL = 9


@dataclass(frozen=True)
class Order:
    """When to call what: `at` counts from the begin of the load."""

    at: float
    form: str
    calls: tuple[dict[str, Any], ...]


def draw(chance: random.Random, tasks: Sequence[Declared], seconds: float, calls: int) -> list[Order]:
    """Draw orders with some so many calls: often a few at once for one key."""
    numbers, orders = count(1), list[Order]()
    while (number := next(numbers)) < calls:
        at, task, key = chance.uniform(0, seconds), chance.choice(tasks), chance.choice(_KEYS)
        for _ in range(chance.choice([1, 1, 2, 4])):
            form = chance.choices([*_FORMS], [*_FORMS.values()])[0]
            members = [task, *chance.choices(tasks, k=0 if form == "plain" else chance.choice([1, 2]))]
            calls_ = tuple(_call(chance, next(numbers), it, key, form == "plain") for it in members)
            orders.append(Order(at + number / 1e6, form, calls_))
    return sorted(orders, key=lambda order: order.at)


def _call(chance: random.Random, number: int, task: Declared, key: str, is_plain: bool) -> dict[str, Any]:
    seconds = chance.choice([*[0.02, 0.1, 0.3, 0.3, 1, 2] * 5, _BEYOND_TTL])
    ends = chance.choices([*_ENDS], [*_ENDS.values()])[0] if is_plain else "return"
    options: dict[str, Any] = {}
    if is_plain and chance.random() < 0.1 and "debounce" not in task and _may_be_late(task):
        options["countdown"] = chance.choice([1, 3])
    if is_plain and chance.random() < 0.05:
        options["expires"] = chance.choice([2, 5])
    args = [number, key, chance.choice("pq"), chance.choice([1, 1, 2]), seconds, ends]
    return {"number": number, "task": task["name"], "args": args, "options": options}


def _may_be_late(task: Declared) -> bool:
    return task.get("exclusive", {}).get("on_conflict") not in ("latest", "supersede")


class Load:
    """Threads that make orders in time, and tell the journal what they were answered.

    with Load(lab, orders): ...  # all are made at the end
    """

    def __init__(self, lab: Lab, orders: Sequence[Order]) -> None:
        self._lab, self._orders = lab, orders
        lab.app.finalize()  # before there are threads
        self._threads = [Thread(target=self._call, args=(orders[it::_CALLERS],)) for it in range(_CALLERS)]

    def __enter__(self) -> None:
        self._began = time.monotonic()
        for thread in self._threads:
            thread.start()

    def __exit__(self, *_: object) -> None:
        for thread in self._threads:
            thread.join()

    def _call(self, orders: Sequence[Order]) -> None:
        for order in orders:
            time.sleep(max(0, self._began + order.at - time.monotonic()))
            self._make(order)

    def _make(self, order: Order) -> None:
        after = dict(_after(order))
        for call in order.calls:
            _, key, part, _, _, ends = call["args"]
            self._lab.journal.write(
                "calling", number=call["number"], task=call["task"], key=key, part=part, ends=ends,
                form=order.form, after=after.get(call["number"], []), **call["options"],
            )  # fmt: skip
        numbers = [call["number"] for call in order.calls]
        linked = order.calls[1:] if order.form == "link" else ()
        for call in linked:
            call["options"]["task_id"] = uuid4().hex
        try:
            result = self._canvas(order).apply_async()
        except Exception as error:  # noqa: BLE001 - each is an answer, and the judge's to judge
            self._lab.journal.write("called", numbers=numbers, error=type(error).__name__, text=str(error))
        else:
            ids = [*_ids(result), *(call["options"]["task_id"] for call in linked)]
            facts = {name: getattr(result, name, None) for name in ("outcome", "existing_id")}
            self._lab.journal.write("called", numbers=numbers, ids=ids, **facts)

    def _canvas(self, order: Order) -> Any:
        first, *others = (
            self._lab.task(call["task"]).si(*call["args"]).set(**call["options"]) for call in order.calls
        )
        if order.form == "chain":
            return chain(first, *others)
        if order.form == "chord":
            return chord([first, *others[:-1]], others[-1])
        if order.form == "group":
            return group(first, *others)
        for other in others:
            first.link(other)
        return first


def _ids(result: Any) -> Iterator[str]:
    """Yield the ids in a result of a call, in the order of its members."""
    if result.parent:
        yield from _ids(result.parent)
    yield from [each.id for each in result.results] if hasattr(result, "results") else [result.id]


def _after(order: Order) -> Iterator[tuple[int, list[int]]]:
    """Yield the numbers of the calls that follow others, and of those that they follow."""
    first, *others = [call["number"] for call in order.calls]
    if order.form == "chain":
        yield from ((other, [before]) for before, other in zip([first, *others], others, strict=False))
    if order.form == "chord":
        yield others[-1], [first, *others[:-1]]
    if order.form == "link":
        yield from ((other, [first]) for other in others)
