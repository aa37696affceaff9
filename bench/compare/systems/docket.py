"""docket: a queue in Redis Streams whose ConcurrencyLimit lets one task of a key run."""

import asyncio
from datetime import timedelta
from functools import cache
from typing import Annotated, Any

from bench.compare import body
from bench.compare.place import Place

TITLE = "docket"
SERVER = "redis"
DEFAULT = "key: Annotated[str, ConcurrencyLimit(1)]"
TUNED = "redelivery_timeout=10 s"
PACKAGES = ("pydocket", "redis")
READY = "Starting worker"
KEYS = "*concurrency*"
PATIENCE = 400.0
"""Its redelivery timeout is five minutes."""
LACKS = {"child": "its worker is one process", "chord": "it has no chords"}


@cache
def task(folder: str) -> Any:
    from docket import ConcurrencyLimit

    # docket reads the annotation itself: it must not be a string.
    async def run(key: Annotated[str, ConcurrencyLimit(1)], tag: str) -> None:  # noqa: ARG001 - the lock's
        await asyncio.to_thread(body.run, folder, tag)

    return run


def work(place: Place) -> None:
    import logging

    from docket import Docket, Worker

    logging.basicConfig(level=logging.INFO)
    seconds = place.timeout or place.redelivery or (10 if place.is_tuned else 0)
    redelivery: dict[str, Any] = {"redelivery_timeout": timedelta(seconds=seconds)} if seconds else {}

    async def forever() -> None:
        async with Docket(name="compare", url=place.url) as docket:
            docket.register(task(place.folder))
            async with Worker(docket, concurrency=place.slots, **redelivery) as worker:
                await worker.run_forever()

    asyncio.run(forever())


def send(place: Place, key: str, tag: str) -> str:
    from docket import Docket

    async def add() -> None:
        async with Docket(name="compare", url=place.url) as docket:
            await docket.add(task(place.folder))(key, tag)

    asyncio.run(add())
    return "sent"
