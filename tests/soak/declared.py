"""The tasks of a round, drawn from its seed, as JSON: the shop declares them, and the judge reads them."""

from __future__ import annotations

import random
from typing import Any

from celery_exclusive import Debounce, Exclusive, OptionError, Unique

Declared = dict[str, Any]
_KINDS = {"exclusive": 10, "unique": 4, "debounce": 2, "both": 3}
_POLICIES = {"wait": 10, "latest": 3, "supersede": 3, "skip": 2, "raise": 2, "reschedule": 2}
_COUNT = 8


def draw(chance: random.Random) -> list[Declared]:
    """Draw the tasks of a round; two of them share the keys and options of others."""
    tasks = [_draw_one(chance, f"t{number}") for number in range(_COUNT)]
    return [*tasks[:-2], *({**tasks[it], "name": tasks[it - 2]["name"]} for it in range(2))]


def options(declared: Declared) -> dict[str, Any]:
    """Return the options of a task for `app.task`."""
    kinds: dict[str, Any] = {"exclusive": Exclusive, "unique": Unique, "debounce": Debounce}
    found: dict[str, Any] = {}
    for kind in kinds.keys() & declared.keys():
        given = dict(declared[kind])
        if isinstance(given.get("per"), dict):
            given["per"] = Exclusive(**given["per"])
        found["unique" if kind == "debounce" else kind] = kinds[kind](**given)
    return {**found, "acks_late": declared["late"], "reject_on_worker_lost": declared["late"]}


def _draw_one(chance: random.Random, name: str) -> Declared:
    while True:
        kind = _one_of(chance, _KINDS)
        task: Declared = {"name": name, "group": name, "late": chance.random() < 0.7}
        if kind in ("exclusive", "both"):
            task["exclusive"] = _exclusive(chance, name)
        if kind in ("unique", "both"):
            task["unique"] = _unique(chance, name)
        if kind == "debounce":
            task["debounce"] = {"key": f"{name}:{{key}}", "wait": 1, "max_wait": chance.choice([1, 4])}
            task["debounce"]["leading"] = chance.random() < 0.3
        try:
            options(task)
        except OptionError:
            continue
        if task["late"] or not any(task.get(kind, {}).get("recover") for kind in ("exclusive", "unique")):
            return task


def _exclusive(chance: random.Random, name: str) -> dict[str, Any]:
    policy = _one_of(chance, _POLICIES)
    drawn: dict[str, Any] = {
        "key": f"{name}:{{key}}",
        "on_conflict": policy,
        "limit": chance.choice([1, 1, 1, 2, 3]),
        "order": "published" if policy in ("latest", "supersede") else None,
    }
    if policy == "wait":
        drawn["order"] = chance.choice(["published", "published", "arrived", "any"])
        per = chance.choice(["part", {"by": "part", "limit": 1}, {"by": "part", "rate": "2/4s"}])
        extras: dict[str, Declared] = {
            "per": {"per": per, "limit": chance.choice([2, 3])},
            "give_up_after": {"give_up_after": 3, "on_give_up": chance.choice(["raise", "skip"])},
            "max_waiting": {"max_waiting": 3, "on_full": chance.choice(["raise", "skip"])},
            "": {},
        }
        drawn.update(chance.choice([*extras.values()]))
    if policy == "supersede":
        drawn.update({"limit": 1, "grace": chance.choice([None, 0, 1])})
    if chance.random() < 0.25:
        drawn.update(
            {"rate": chance.choice(["2/3s", "4/6s"]), "limit": chance.choice([drawn["limit"], None])}
        )
    if chance.random() < 0.25:
        drawn["cost"] = chance.choice([2, "cost"])
    drawn["keep_on_retry"] = chance.random() < 0.2
    drawn["recover"] = chance.choice([None, None, True, False])
    return drawn


def _unique(chance: random.Random, name: str) -> dict[str, Any]:
    ends: Declared = chance.choice(
        [{"until": "finished"}, {"until": "finished"}, {"until": "started"}, {"period": 2}]
    )
    policy = chance.choice(["skip", "skip", "raise", "share"])
    return {"key": f"{name}:{{key}}", "on_conflict": policy, **ends}


def _one_of(chance: random.Random, weights: dict[str, int]) -> str:
    return chance.choices([*weights], [*weights.values()])[0]
