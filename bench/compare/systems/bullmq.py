"""BullMQ for Python: a queue in Redis. Here each key is a queue with a global concurrency of one."""

from __future__ import annotations

import asyncio
from typing import Any

from bench.compare import body
from bench.compare.place import Place

TITLE = "BullMQ for Python"
SERVER = "redis"
DEFAULT = "a queue and a Worker per key; queue.setGlobalConcurrency(1)"
TUNED = "lockDuration=10_000, stalledInterval=10_000"
PACKAGES = ("bullmq", "redis")
READY = "worker is ready"
KEYS = "bull:*:lock"
PATIENCE = 120.0
"""Two checks for stalled jobs, 30 s apart, and a start."""
LACKS = {
    "child": "its worker is one process",
    "chord": "its flows were not tried",
    "chain": "its flows were not tried",
    "speed": "its worker here has the queues of two keys",
}
QUEUES = ("key", "other")


def work(place: Place) -> None:
    from bullmq import Queue, Worker

    seconds = place.timeout or place.redelivery or (10 if place.is_tuned else 0)
    locks = {"lockDuration": seconds * 1000, "stalledInterval": seconds * 1000} if seconds else {}
    options: Any = {"connection": place.url, **locks}  # its default: one slot for each queue

    async def process(job: Any, _token: str) -> None:
        await asyncio.to_thread(body.run, place.folder, job.data["tag"])

    async def forever() -> None:
        for name in QUEUES:
            queue = Queue(name, {"connection": place.url})
            await queue.setGlobalConcurrency(1)
            await queue.close()
        workers = [Worker(name, process, options) for name in QUEUES]
        for worker in workers:
            worker.on("error", print)
        print(READY, len(workers), flush=True)
        await asyncio.Event().wait()

    asyncio.run(forever())


def send(place: Place, key: str, tag: str) -> str:
    from bullmq import Queue

    async def add() -> None:
        queue = Queue(key, {"connection": place.url})
        await queue.add("work", {"tag": tag})
        await queue.close()

    asyncio.run(add())
    return "sent"
