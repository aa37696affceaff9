"""One scene, played twice: with a recipe as printed, and with ours."""

from __future__ import annotations

from typing import Any

from tests.worker.journal import eventually
from tests.worker.lab import Lab, Worker


class Recipe:
    """A lab with the tasks of one recipe, and its worker.

    recipe.begin("printed", tag="a")     # a body that stays open
    ...
    assert recipe.most_open("printed") == 2
    """

    def __init__(self, lab: Lab, worker: Worker) -> None:
        self.lab, self.worker = lab, worker

    def begin(self, name: str, tag: str) -> Any:
        """Send a call, and wait until its body has begun; it stays open until `end`."""
        result = self.send(name, tag)
        self.lab.journal.wait_for("start", task=self.task(name), tag=tag)
        return result

    def send(self, name: str, tag: str) -> Any:
        """Send a call on the recipe's one key whose body stays open."""
        return self.lab.send(name, f"key of {name}", tag=tag, hold=True)

    def send_and_settle(self, name: str, tag: str) -> Any:
        """Send a call, and wait until its body has begun or it has ended without one."""
        result = self.send(name, tag)
        eventually(lambda: self.has_begun(name, tag) or result.ready(), f"{name} {tag} to begin or to end")
        return result

    def end(self, name: str, tag: str) -> None:
        """Let a body end, and wait until it has a result."""
        self.lab.open(tag)
        self.lab.journal.wait_for("end", task=self.task(name), tag=tag)
        eventually(lambda: not self.lab.messages_at_the_broker(), "an acknowledged message")

    def outlive(self, seconds: int) -> None:
        """Wait until what the Redis was given for so many seconds, up to now, has expired."""
        self.lab.doors.set("hourglass", 1, px=1000 * seconds + 100)
        eventually(lambda: not self.lab.doors.exists("hourglass"), "time to pass")

    def has_begun(self, name: str, tag: str) -> bool:
        return bool(self.lab.journal.events("start", task=self.task(name), tag=tag))

    def most_open(self, name: str) -> int:
        return self.lab.journal.most_open(task=self.task(name))

    def tags(self, name: str) -> list[str]:
        return self.lab.journal.tags("start", task=self.task(name))

    def task(self, name: str) -> str:
        return f"{self.lab.module}.{name}"
