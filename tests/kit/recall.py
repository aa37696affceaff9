"""Recall and Drop: a task that waits ends out of turn, by a worker or by an operator."""

from __future__ import annotations

from functools import partial

import pytest

from celery_exclusive.core.operations import Applied, Drop, Recall, Stale
from celery_exclusive.core.records import NAMED
from tests.kit.subject import LONG, SHORT, Subject, fence_of, found, woken


class RecallPromises(Subject):
    def test_a_message_that_expires_in_line_is_published_when_it_is_due(self) -> None:
        key = self.key()
        key.needs_line()
        key.hold("a")
        key.park("b", expires_in=LONG)
        key.park("c", message=b"the message", expires_in=SHORT)
        wake = key.reap_until_woken()
        assert (wake.id, wake.message) == ("c", b"the message")
        assert key.inspect().waiting == 2, "until a worker ends it"
        assert not key.reap().wake

    def test_an_expired_task_leaves_the_line_when_a_worker_ends_it(self) -> None:
        key = self.key()
        key.needs_line()
        key.hold("a")
        key.park("b", expires_in=SHORT)
        key.reap_until_woken()
        key.remove("b")
        assert key.inspect().waiting == 0
        assert not woken(key.release("a"))

    def test_a_task_that_waits_is_recalled_and_no_other(self) -> None:
        key = self.key()
        key.needs_line()
        key.hold("a")
        key.park("b")
        key.park("c", message=b"the message")
        reply = key.store.apply(key.name, Recall("c"))
        assert found(reply)
        assert [(wake.id, wake.message) for wake in reply.wake] == [("c", b"the message")]
        for id in ("a", "unknown"):
            assert key.store.apply(key.name, Recall(id)).answer == Applied(False)

    def test_all_places_are_listed(self) -> None:
        one, other = self.key("one"), self.key("other")
        one.needs_line()
        for key in (one, other):
            key.hold("a")
            key.park("b")
        one.park("c")
        assert sorted(one.store.places()) == [(one.name, "b"), (one.name, "c"), (other.name, "b")]
        one.remove("b")
        assert sorted(one.store.places()) == [(one.name, "c"), (other.name, "b")]

    def test_the_keys_that_a_task_holds_or_waits_for_are_found_by_its_id(self) -> None:
        held, line, crowd, others = map(self.key, ("held", "line", "crowd", "others"))
        held.needs_line()
        if not held.store.capabilities.listing:
            pytest.skip("this store cannot list its keys")
        held.hold("t_%!1/p")
        line.hold("a/p")
        line.park("t_%!1/q@queue")
        for number in range(NAMED + 2):
            crowd.hold(f"t_%!{number}/p", limit=100)
        alike = ("t_%!10/p", "t_%!1", "t_%!1/x/p", "tx%!1/p")
        for id in alike:
            others.hold(id, limit=len(alike))
        for id in alike:
            others.park(f"{id}0")
        assert sorted({*held.store.keys_of("t_%!1")}) == sorted([held.name, line.name, crowd.name])
        assert [*held.store.keys_of("unknown")] == []

    def test_a_recovered_run_says_how_often_it_was(self) -> None:
        key = self.key()
        key.needs_line()
        key.run("a", ttl=SHORT)
        for deaths in (1, 2):
            wake = key.reap_until_woken()
            assert wake.deaths == deaths
            again = key.acquire("a", ttl=SHORT, promoted=wake.epoch, message=wake.message, recovers=True)
            fence_of(again)

    def test_a_task_that_waits_is_dropped_once_and_no_copy_of_it_begins(self) -> None:
        key = self.key()
        key.needs_line()
        key.hold("a")
        key.park("b")
        key.park("c")
        assert woken(key.release("a")) == ["b"]
        epoch = key.store.epoch()
        drop = partial(key.store.apply, key.name)
        assert drop(Drop("b", "one")).answer == Applied(True)
        assert drop(Drop("b", "one")).answer == Applied(True), "the request again"
        assert drop(Drop("b", "another")).answer == Applied(False)
        assert [wake.id for wake in key.reap().wake] == ["c"]
        assert key.acquire("b", promoted=epoch).answer == Stale()
        fence_of(key.acquire("c", promoted=epoch))
        assert drop(Drop("c", "one")).answer == Applied(False), "it runs"
