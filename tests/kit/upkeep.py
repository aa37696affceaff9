"""Nothing left, names and namespaces, and what an operator sees."""

from __future__ import annotations

from itertools import count, islice
from zlib import crc32

import pytest

from celery_exclusive.core.operations import Applied, Held
from celery_exclusive.core.records import WOKEN_AT_ONCE
from celery_exclusive.errors import StoreUnavailable
from celery_exclusive.stores.base import Snapshot, Wake
from tests.kit.subject import (
    LONG,
    OTHER,
    SHORT,
    Key,
    Subject,
    fence_of,
    found,
    until,
    woken,
)

NAMES = (
    "x:shop.tasks.sync:0123456789abcdef0123456789abcdef",
    "repo:17",
    "two words",
    "ünïcode/コード/🔑",
    "{brace}:a}{b",
    "a:b::c|d,e;f=g",
    "glob*[a-z]?\\",
    "50% off'\"`$(x)",
    "line\nbreak\ttab\x00nul",
    "x" * 200,
)


class LookPromises(Subject):
    def test_an_unknown_key_is_free_and_empty(self) -> None:
        assert self.key().inspect() == Snapshot()

    def test_a_key_shows_its_holders_and_its_line(self) -> None:
        key = self.key()
        for id in "ab":
            key.hold(id, limit=2)
        snapshot = key.inspect()
        assert [owner.id for owner in snapshot.holders] == ["a", "b"]
        assert all(owner.age >= 0 and 0 < owner.remaining <= LONG * 1e6 for owner in snapshot.holders)
        key.needs_line()
        for id in "cde":
            key.acquire(id, limit=2, message=b"")
        assert (key.inspect().waiting, key.inspect().aside) == (3, 0)

    def test_several_keys_are_shown_in_the_order_in_which_they_are_named(self) -> None:
        one, other, unknown = (self.key(name) for name in ("one", "other", "unknown"))
        one.hold("a")
        other.hold("b")
        names = [other.name, unknown.name, one.name, other.name]
        seen = [[owner.id for owner in found.holders] for found in one.store.inspect_all(names)]
        assert seen == [["b"], [], ["a"], ["b"]]
        assert one.store.inspect_all([]) == []

    def test_the_age_of_a_lease_grows_over_renewals(self) -> None:
        key = self.key()
        key.hold("a")
        until(lambda: key.inspect().holders[0].age > SHORT * 1e6, "the lease grows older")
        assert key.renew("a")
        assert key.inspect().holders[0].age > SHORT * 1e6

    def test_a_holder_whose_lease_expired_is_not_shown(self) -> None:
        key = self.key()
        key.hold("a", ttl=SHORT)
        until(lambda: key.inspect() == Snapshot(), "the key looks free")

    def test_looking_changes_nothing(self) -> None:
        key = self.key(offer=SHORT)
        key.hold("a")
        key.park("b")
        (wake,) = key.release("a").wake
        for _ in range(3):
            key.inspect()
            self.lists(key.store)
        fence_of(key.follow(wake))

    def test_scan_yields_the_keys_that_have_a_holder_or_a_line(self) -> None:
        store = self.client()
        self.key("held").hold("a")
        self.key("released").hold("a")
        self.key("released").release("a")
        line = self.key("line")
        if store.capabilities.line:
            line.hold("a")
            line.park("b")
            line.release("a")
        assert self.lists(store, "held", *["line"] * store.capabilities.line)

    def test_scan_finds_many_keys_once_each(self) -> None:
        store = self.client()
        names = [f"key {number}" for number in range(300)]
        for name in names:
            Key(store, name).hold("a")
        assert self.lists(store, *names)

    @pytest.mark.parametrize("prefix", ["a", "a*", "a:", "[a]", "ä"])
    def test_scan_takes_a_prefix_as_it_is_written(self, prefix: str) -> None:
        store = self.client()
        names = ["a", "a*b", "ab", "a:b", "[a]b", "äb", "b"]
        for name in names:
            Key(store, name).hold("a")
        assert self.lists(store, *(name for name in names if name.startswith(prefix)), prefix=prefix)

    def test_all_clients_know_one_epoch_and_offers_carry_it(self) -> None:
        key = self.key()
        key.hold("a")
        key.park("b")
        (wake,) = key.release("a").wake
        assert wake.epoch == key.store.epoch() == self.client().epoch()
        assert self.client(prefix=f"{self.prefix}x").epoch() != wake.epoch

    def test_losing_its_data_changes_the_epoch_of_a_store(self) -> None:
        before = self.client().epoch()
        self.lose_data()
        assert self.client().epoch() not in ("", before)

    def test_a_check_returns_warnings_as_strings(self) -> None:
        assert all(self.client().check())

    def test_a_store_that_does_not_answer_says_so(self) -> None:
        store = self.unreachable_store()
        with pytest.raises(StoreUnavailable):
            Key(store, "key").acquire("a")
        with pytest.raises(StoreUnavailable):
            Key(store, "key").release("a")
        with pytest.raises(StoreUnavailable):
            Key(store, "key").renew("a")
        with pytest.raises(StoreUnavailable):
            store.reap()


class NamePromises(Subject):
    @pytest.mark.proves("large and odd arguments")
    @pytest.mark.parametrize("name", NAMES)
    def test_any_string_is_a_key(self, name: str) -> None:
        key = self.key(name)
        key.hold("a")
        assert self.lists(key.store, name)
        assert key.holders() == ["a"]
        assert key.renew("a")
        key.park("b")
        (wake,) = key.release("a").wake
        assert wake.key == name
        fence_of(key.follow(wake))
        assert found(key.release("b"))
        assert self.lists(key.store)

    @pytest.mark.parametrize("id", NAMES)
    def test_any_string_is_an_id(self, id: str) -> None:
        key = self.key()
        key.hold(id)
        assert key.holders() == [id]
        answer = key.acquire("b", OTHER).answer
        assert isinstance(answer, Held)
        assert answer.by[0].id == id
        assert found(key.release(id))
        key.hold("a")
        key.park(id)
        (wake,) = key.release("a").wake
        assert wake.id == id
        fence_of(key.follow(wake))
        assert found(key.release(id))
        assert key.is_stale(id, redelivered=True)

    def test_namespaces_do_not_see_each_other(self) -> None:
        one, two = self.key("2key", prefix=self.prefix), self.key("key", prefix=f"{self.prefix}2")
        one.hold("a")
        assert self.lists(two.store)
        two.hold("a")
        assert self.lists(one.store, "2key")
        one.park("b")
        assert two.inspect().waiting == 0
        assert not two.release("a").wake
        assert not two.reap().wake
        assert woken(one.release("a")) == ["b"]


class UpkeepPromises(Subject):
    def test_within_a_period_only_one_client_reaps(self) -> None:
        one, two = self.client(), self.client()
        every = int(LONG * 1e6)
        assert one.reap(every=every).answer == Applied(True)
        assert two.reap(every=every).answer == Applied(False)
        assert one.reap(every=every).answer == Applied(False)

    def test_after_a_period_a_client_reaps_again(self) -> None:
        store = self.client()
        every = int(SHORT * 1e6)
        store.reap(every=every)
        until(lambda: store.reap(every=every).answer == Applied(True), "the period is over")

    @pytest.mark.promise(
        "The store says when it was last swept, by its own clock, and a look at it changes nothing",
        broke="the time of another clock; a look that counts as a sweep: each red",
    )
    def test_the_time_of_the_last_sweep_is_known(self) -> None:
        store = self.client()
        if not store.capabilities.line:
            pytest.skip("this store needs no sweep")
        assert store.times().swept is None
        assert store.reap().answer == Applied(True)
        seen = store.times()
        assert seen.swept is not None
        assert seen.swept <= seen.now
        until(lambda: self.client().times().now > seen.now, "the clock goes on")
        assert self.client().times().swept == seen.swept
        assert store.reap().time <= store.times().now

    @pytest.mark.proves("sweeps")
    def test_a_sweep_looks_at_no_more_keys_than_its_limit(self) -> None:
        keys = [self.key_of_dying_holder("b") for _ in range(5)]
        for key in keys:
            key.wait_until_expired()
        offered: list[str] = []
        for number in (2, 4, 5):
            reply = keys[0].store.reap(limit=2)
            offered += [wake.key for wake in reply.wake]
            assert len(offered) == number
            assert reply.more == (number < len(keys))
        assert sorted(offered) == sorted(key.name for key in keys)

    @pytest.mark.promise(
        "A sweep that has woken messages of a megabyte leaves the other keys to the next one, which is due "
        "at once",
        broke="red before: all in one reply",
    )
    def test_a_sweep_that_has_woken_a_megabyte_leaves_the_rest_to_the_next(self) -> None:
        names = (name for number in count() if crc32((name := f"key {number}").encode()) % 64 == 0)
        keys, store = [self.key(name) for name in islice(names, 8)], self.client()  # one bucket of a cluster
        for key in keys:
            key.needs_line()
            key.hold("a")
            key.park("b", message=bytes(WOKEN_AT_ONCE // 2 + 1), expires_in=SHORT)
        due = store.times().now + SHORT * 1e6
        until(lambda: store.times().now > due, "all messages have expired")
        reply, woken = store.reap(), list[Wake]()
        assert reply.more
        while reply.more:
            assert WOKEN_AT_ONCE < reply.size < 2 * WOKEN_AT_ONCE
            woken += reply.wake
            reply = store.reap()
        woken += reply.wake
        assert sorted(wake.key for wake in woken) == sorted(key.name for key in keys)

    def test_a_quiet_namespace_has_nothing_to_reap(self) -> None:
        reply = self.client().reap()
        assert (reply.answer, reply.wake, reply.aside, reply.more) == (Applied(True), (), (), False)
        assert not self.client().reap(limit=0).more

    @pytest.mark.promise(
        "Nothing is left of what has ended but a fence and tombstones, which end",
        name="nothing left",
        also="each history of the differential test",
    )
    def test_nothing_is_left_of_finished_tasks(self) -> None:
        store = self.client(tombstone_ttl=SHORT)
        for number in range(20):
            key = Key(store, f"key {number}")
            key.hold("a")
            assert found(key.release("a"))
        self.leaves_nothing(store_of=self.key("key 0"))

    @pytest.mark.proves("nothing left")
    def test_nothing_is_left_of_a_line_that_has_emptied(self) -> None:
        key = self.key(tombstone_ttl=SHORT)
        key.hold("0")
        for number in range(1, 20):
            key.park(f"{number}")
        reply = key.release("0")
        while reply.wake:
            (wake,) = reply.wake
            fence_of(key.follow(wake))
            reply = key.release(wake.id)
        assert self.lists(key.store)
        self.leaves_nothing(store_of=key)

    @pytest.mark.proves("nothing left")
    def test_nothing_is_left_of_dead_holders(self) -> None:
        key = self.key()
        key.hold("a", ttl=SHORT)
        key.wait_until_expired()
        self.leaves_nothing(store_of=key)

    def test_nothing_is_left_of_dead_holders_beside_a_living_one(self) -> None:
        key = self.key()
        key.hold("dead", ttl=SHORT, limit=2)
        key.hold("living", limit=2)
        until(lambda: key.holders() == ["living"], "the short lease has ended")
        assert found(key.release("living"))
        self.leaves_nothing(store_of=key)

    def test_nothing_is_left_of_removed_tasks(self) -> None:
        key = self.key(tombstone_ttl=SHORT)
        key.hold("a")
        key.park("b")
        assert found(key.remove("b"))
        assert found(key.release("a"))
        self.leaves_nothing(store_of=key)

    def leaves_nothing(self, *, store_of: Key) -> None:
        store = store_of.store

        def left() -> list[str]:
            store.reap()
            listed = store.scan() if store.capabilities.listing else ()
            return [*listed, *self.kept_for_ever(self.prefix)]

        until(lambda: not left(), "nothing is left")
        assert store_of.inspect() == Snapshot()
