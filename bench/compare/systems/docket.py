"""docket: a queue in Redis Streams whose ConcurrencyLimit lets one task of a key run."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import cache
from typing import Annotated, Any

from bench.compare import body
from bench.compare.place import Place

TITLE = "docket"
SERVER = "redis"
DEFAULT = "key: Annotated[str, ConcurrencyLimit(1)]"
TUNED = "redelivery_timeout=10 s, minimum_check_interval=10 ms"
PACKAGES = ("pydocket", "redis")
READY = "Starting worker"
KEYS = "*concurrency*"
PATIENCE = 400.0
"""Its redelivery timeout is five minutes."""
RATE = "key: Annotated[str, RateLimit(10, per=timedelta(seconds=1))]"
LACKS = {"child": "its worker is one process", "chord": "it has no chords", "chain": "it has no chains"}


@cache
def task(place: Place) -> Any:
    from docket import ConcurrencyLimit, RateLimit

    if place.rate:
        limit = RateLimit(place.rate, per=timedelta(seconds=1))

        async def rated(key: Annotated[str, limit], tag: str) -> None:  # type: ignore[valid-type] # noqa: ARG001
            await asyncio.to_thread(body.run, place.folder, tag)

        return rated

    if place.is_bare:

        async def bare(key: str, tag: str) -> None:  # noqa: ARG001 - as below
            await asyncio.to_thread(body.run, place.folder, tag)

        return bare

    # docket reads the annotation itself: it must not be a string.
    async def run(key: Annotated[str, ConcurrencyLimit(1)], tag: str) -> None:  # noqa: ARG001 - the lock's
        await asyncio.to_thread(body.run, place.folder, tag)

    return run


def work(place: Place) -> None:
    import logging

    from docket import Docket, Worker

    logging.basicConfig(level=logging.INFO)
    seconds = place.timeout or place.redelivery or (10 if place.is_tuned else 0)
    given: dict[str, Any] = {"redelivery_timeout": timedelta(seconds=seconds)} if seconds else {}
    if place.is_tuned:  # by default it looks for a free slot each quarter of a second
        given["minimum_check_interval"] = timedelta(milliseconds=10)

    async def forever() -> None:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(place.slots))
        async with Docket(name="compare", url=place.url) as docket:
            docket.register(task(place))
            async with Worker(docket, concurrency=place.slots, **given) as worker:
                await worker.run_forever()

    asyncio.run(forever())


@cache
def caller(place: Place) -> tuple[asyncio.AbstractEventLoop, Any]:
    """Return the loop and the docket of all calls of a process."""
    from docket import Docket

    loop = asyncio.new_event_loop()
    return loop, loop.run_until_complete(Docket(name="compare", url=place.url).__aenter__())


def send(place: Place, key: str, tag: str) -> str:
    loop, docket = caller(place)
    loop.run_until_complete(docket.add(task(place))(key, tag))
    return "sent"
