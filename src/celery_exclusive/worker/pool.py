"""The kind of a worker's pool: which of Celery's pools its class is, or inherits from."""

from __future__ import annotations

from typing import Any, Final, Literal

from celery_exclusive.errors import OptionError

PoolKind = Literal["prefork", "threads", "gevent", "solo"]

_KINDS: Final[dict[str, PoolKind]] = {
    "celery.concurrency.prefork": "prefork",
    "celery.concurrency.thread": "threads",
    "celery.concurrency.gevent": "gevent",
    "celery.concurrency.solo": "solo",
}
"""The pools that are supported, by their modules: the module of gevent cannot be imported everywhere."""


def kind_of(pool: Any) -> PoolKind:
    """Return the kind of a pool class, or raise OptionError: the heartbeat may not see its runs.

    In greenlets that are not gevent's, a task that computes would stop the heartbeat.
    """
    modules = (base.__module__ for base in pool.__mro__)
    kind: PoolKind | None = next((_KINDS[module] for module in modules if module in _KINDS), None)
    if kind is None or (pool.is_green and kind != "gevent"):
        raise OptionError(
            f"--pool: leases cannot be renewed in the pool {pool.__module__}:{pool.__qualname__}: "
            "use --pool=gevent, threads, prefork or solo, or a class that inherits from one of theirs"
        )
    return kind
