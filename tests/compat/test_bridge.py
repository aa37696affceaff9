"""Two releases on one broker: the old lock and the new option do not see each other, a bridge has both."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

import pytest

from celery_exclusive import DuplicateTask, LockState
from tests.worker.journal import eventually
from tests.worker.lab import Lab

FEED, DIGEST = "bridge.import_feed", "bridge.send_digest"
OF_PACKAGES = (DIGEST, "bridge.send_invoice", "bridge.send_report")
"""The tasks of celery-once, celery-singleton and celery-heimdall."""
OLD_LOCKS = ("*import_feed-k", "qo_bridge.send_digest*", "SINGLETONLOCK_*", "h-lock:*")
REFUSALS = ("AlreadyQueued", "DuplicateTaskError", "AlreadyQueuedError")


class Deploy:
    """The releases that run side by side, each with a worker and a queue of its own."""

    def __init__(self, make_lab: Callable[..., Lab], releases: tuple[str, ...]) -> None:
        self.labs = {name: make_lab(module=f"tests.compat.shop_bridge_{name}") for name in releases}
        self.journal = next(iter(self.labs.values())).journal
        self._tags = count()
        for name, lab in self.labs.items():
            lab.start_worker(name, 2, options=("-Q", name))

    def call(self, task: str, by: str, at: str) -> str | None:
        """Publish a call by one release for a worker of another; return its tag if its body runs."""
        tag = f"{next(self._tags)}: {by} to {at}"
        try:
            result = self.labs[by].app.tasks[task].apply_async(("k", tag, True), queue=at)
        except Exception as error:
            if isinstance(error, DuplicateTask) or type(error).__name__ in REFUSALS:
                return None
            raise
        if getattr(result, "outcome", None) == "skipped":
            return None
        eventually(
            lambda: self.journal.events("start", tag=tag) or result.ready(), f"{tag} to begin or to end"
        )
        return tag if self.journal.events("start", tag=tag) else None

    def end(self, tag: str) -> None:
        lab: Any = next(iter(self.labs.values()))
        lab.open(tag)
        self.journal.wait_for("end", tag=tag)
        eventually(lambda: not any(map(lab.doors.keys, OLD_LOCKS)), "the end of the old locks")
        self.wait_until_free()

    def wait_until_free(self) -> None:
        """Wait until none of the new keys is held."""
        tasks = [lab.app.tasks[name] for lab in self.labs.values() for name in (FEED, *OF_PACKAGES)]
        for task in tasks:
            if getattr(task, "exclusive", None) or getattr(task, "unique", None):
                eventually(lambda task=task: is_free(task.lock_state("k")), "free keys")


def is_free(state: LockState) -> bool:
    return not state.holders and not state.unique_holder


@pytest.mark.promise(
    "A deploy without a bridge lets two bodies in",
    figure="2 bodies, with each of two locks",
)
def test_the_old_lock_and_the_new_option_let_two_bodies_in(make_lab: Callable[..., Lab]) -> None:
    deploy = Deploy(make_lab, ("old", "new"))
    for task in (FEED, DIGEST):
        assert deploy.call(task, "old", "old")
        assert deploy.call(task, "new", "new")
        assert deploy.journal.most_open(task=task) == 2


@pytest.mark.promise(
    "A deploy with the bridge lets one body in, and refuses no call for nothing",
    name="bridge",
    broke="the bridge without the old lock; without the new option",
)
@pytest.mark.parametrize("releases", [("old", "between"), ("between", "new")], ids="-".join)
def test_a_bridge_of_the_cookbooks_lock_lets_one_body_in(
    make_lab: Callable[..., Lab], releases: tuple[str, str]
) -> None:
    deploy = Deploy(make_lab, releases)
    for holder, other in (releases, releases[::-1]):
        tag = deploy.call(FEED, holder, holder)
        assert tag
        assert not deploy.call(FEED, other, other)
        assert not deploy.call(FEED, holder, holder)
        deploy.end(tag)
    assert deploy.journal.most_open(task=FEED) == 1


@pytest.mark.proves("bridge")
@pytest.mark.parametrize(
    ("releases", "ways"),
    [
        # Workers get the bridge before publishers do, or after: each way may happen.
        (("old", "between"), ["old old", "old between", "between old", "between between"]),
        # Publishers get the last release first, and workers when none of the bridge is left.
        (("between", "new"), ["between between", "new between"]),
        # Processes that publish and work leave the bridge in two steps.
        (
            ("between", "after"),
            ["between between", "between after", "after between", "after after"],
        ),
        (("after", "new"), ["after after", "after new", "new after", "new new"]),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, tuple) else "",
)
def test_a_bridge_of_a_package_lets_one_body_in_and_loses_no_call(
    make_lab: Callable[..., Lab], releases: tuple[str, ...], ways: list[str]
) -> None:
    deploy = Deploy(make_lab, releases)
    for task in OF_PACKAGES:
        for by, at in map(str.split, ways):
            tag = deploy.call(task, by, at)
            assert tag, f"a call of {task} by {by} for {at} is lost"
            for other_by, other_at in map(str.split, ways):
                assert not deploy.call(task, other_by, other_at)
            deploy.end(tag)
        assert deploy.journal.most_open(task=task) == 1


def refuse_a_call_by_the_unique_key_alone(deploy: Deploy, task: str) -> None:
    """Such a call leaves no old lock, else the first call after it would be lost."""
    tag = deploy.call(task, "new", "new")
    assert tag
    assert not deploy.call(task, "between", "between")
    deploy.end(tag)


@pytest.mark.promise(
    "Publishers leave the bridge first, since a worker without it leaves the old lock of a publisher with it",
    broke="the wrong order",
)
def test_a_worker_without_the_bridge_leaves_the_old_lock_of_a_publisher_with_it(
    make_lab: Callable[..., Lab],
) -> None:
    deploy = Deploy(make_lab, ("between", "new"))
    for task in OF_PACKAGES:
        refuse_a_call_by_the_unique_key_alone(deploy, task)
    tag = deploy.call(DIGEST, "between", "new")
    assert tag
    deploy.labs["new"].open(tag)
    deploy.journal.wait_for("end", tag=tag)
    deploy.wait_until_free()
    assert not deploy.call(DIGEST, "between", "between")  # which is why publishers go first
    lost = deploy.call(DIGEST, "new", "new")
    assert lost
