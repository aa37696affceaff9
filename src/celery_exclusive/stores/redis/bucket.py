"""The server of one bucket: the node of the cluster that has the bucket now."""

from __future__ import annotations

from typing import Any

from celery_exclusive.stores.redis.call import Call, script_call
from celery_exclusive.stores.redis.nodes import Nodes
from celery_exclusive.stores.redis.scripts import Script


class Bucket:
    """A bucket as a server. It has no `place`: a message cannot be pushed there with a lease."""

    place = ""

    def __init__(self, nodes: Nodes, number: int) -> None:
        self._nodes, self._number = nodes, number
        self.url = nodes.url

    def run(self, script: Script, base: str, *arguments: object, again: tuple[object, ...] = ()) -> Any:
        return self._nodes.ask(script_call(self._number, script, base, arguments, again))

    def ask(self, *command: object) -> Any:
        return self._nodes.ask(Call(self._number, command))

    def close(self) -> None:
        self._nodes.close()
