"""A publisher: a process that makes the calls which the test asks for, and answers what they returned."""

from __future__ import annotations

import json
from importlib import import_module
from typing import Any

from celery import chord


def main() -> None:
    shop = import_module("tests.worker.shop_crashes")
    while True:
        _, asked = shop.doors.blpop(["asks:publisher"])
        number, *call = json.loads(asked)
        shop.doors.rpush(f"answers:{number}", json.dumps(_publish(shop, *call)))


def _publish(
    shop: Any, name: str, args: list[str], kwargs: dict[str, Any], options: dict[str, Any]
) -> dict[str, Any]:
    if name == "chord":
        options.pop("task_id")
        body = _publish_chord(shop, *args, options)
        return {"id": body.id, "outcome": "published", "members": [it.id for it in body.parent.results]}
    result = getattr(shop, name).apply_async(args, kwargs, **options)
    return {"id": result.id, "outcome": result.outcome, "members": []}


def _publish_chord(shop: Any, key: str, tag: str, options: dict[str, Any]) -> Any:
    members = [shop.alone.s(key, "first"), shop.once.s(f"{key}, unique", "second")]
    body = shop.gather.s(key=key, tag=tag).set(**options)
    return chord([member.set(**options) for member in members])(body)
