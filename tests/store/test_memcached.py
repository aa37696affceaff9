"""What only the store in memcached has: one server, its clock, and no line."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from typing import Any

import pytest

from celery_exclusive.core.operations import (
    Acquire,
    AcquireAlone,
    Applied,
    Granted,
    Held,
    KeyOperation,
    Release,
    Renew,
    Restore,
    Stale,
)
from celery_exclusive.core.records import SECOND
from celery_exclusive.errors import ExclusiveError, OptionError, StoreRefused, StoreUnavailable, UnreadableKey
from celery_exclusive.stores.base import open_store
from celery_exclusive.stores.document_store import Change
from celery_exclusive.stores.memcached.client import Client
from celery_exclusive.stores.memcached.store import MemcachedStore
from tests.memcached import MemcachedServer
from tests.proxy import Proxy
from tests.servers import wait_until
from tests.store.operations import give

LIFE = 60 * SECOND
TINY = ("-m", "2", "-t", "1")


@pytest.fixture
def store(memcached_url: str) -> Iterator[MemcachedStore]:
    opened = open_store(memcached_url)
    assert isinstance(opened, MemcachedStore)
    yield opened
    opened.close()


def has_ipv6() -> bool:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


def take(id: str, ttl: int = LIFE, **facts: Any) -> Acquire:
    return Acquire(id, f"token of {id}", ttl, **facts)


def fence(answer: object) -> int:
    assert isinstance(answer, Granted)
    return answer.fence


# Leases ----------------------------------------------------------------------------------------------


def test_a_task_that_cannot_be_parked_gets_the_holder_as_answer(store: MemcachedStore) -> None:
    store.apply("key", take("a"))
    answer = store.apply("key", take("b", message=b"message", max_waiting=3)).answer
    assert isinstance(answer, Held)
    assert [owner.id for owner in answer.by] == ["a"]
    assert store.inspect("key").waiting == 0


@pytest.mark.promise(
    "A lease on memcached lasts for its ttl at least, although the clock has whole seconds",
    broke="no grace",
)
def test_a_lease_that_is_not_renewed_ends_after_its_ttl_and_not_before(store: MemcachedStore) -> None:
    lives = {"a": 0.1, "b": 1, "c": 1.7, "d": 0.1, "e": 1, "f": 1.7}
    granted = {}
    for key, ttl in lives.items():
        fence(store.apply(key, take("a", int(ttl * SECOND))).answer)
        granted[key] = time.monotonic()
        time.sleep(0.15)  # somewhere in its second
    while granted:
        for key in list(granted):
            if isinstance(store.apply(key, take("b")).answer, Granted):
                assert time.monotonic() - granted.pop(key) >= lives[key]


def test_a_lease_of_years_is_held(store: MemcachedStore) -> None:
    years = 157_766_400 * SECOND
    fence(store.apply("u:key", AcquireAlone("a", "t", years, phase="period")).answer)
    (holder,) = store.inspect("u:key").holders
    assert abs(holder.remaining - years) <= 4 * SECOND
    assert isinstance(store.apply("u:key", AcquireAlone("b", "t", years, phase="period")).answer, Held)


@pytest.mark.promise(
    "A restart, a flush and an eviction of memcached are noticed and reported",
    name="memcached, loss of data",
)
def test_fences_grow_over_releases_and_a_restarted_server_has_another_epoch(
    start_memcached: Callable[..., MemcachedServer],
) -> None:
    server = start_memcached()
    with closing(open_store(server.url)) as store:
        fences = []
        for number in range(50):
            fences.append(fence(store.apply("key", take(f"{number}")).answer))
            store.apply("key", give(f"{number}"))
        assert fences == sorted(set(fences))
        epoch = store.epoch()
        server.kill()
        server.start()
        assert store.epoch() not in ("", epoch)


@pytest.mark.promise(
    "On memcached a copy that comes while its task runs does not run after it",
    broke="the copy is not noted in the lease",
)
def test_a_task_that_is_delivered_again_after_its_end_does_not_run_again(store: MemcachedStore) -> None:
    fence(store.apply("key", take("a", acks_late=True)).answer)
    assert isinstance(store.apply("key", Acquire("a", "again", LIFE, redelivered=True)).answer, Held)
    assert store.apply("key", give("a")).answer == Applied(True)
    assert store.apply("key", Acquire("a", "again", LIFE, redelivered=True)).answer == Stale()
    fence(store.apply("key", take("b")).answer)


def test_a_task_that_was_not_done_runs_again(store: MemcachedStore) -> None:
    store.apply("key", take("a", acks_late=True))
    store.apply("key", Release("a", "token of a", "open"))
    fence(store.apply("key", Acquire("a", "again", LIFE, redelivered=True)).answer)


@pytest.mark.promise(
    "A memcached store keeps exclusion, owners, renewal, copies, fences, names, amounts, threads and forks",
    name="memcached",
    broke="no compare-and-swap",
)
def test_two_processes_that_write_one_key_do_not_overwrite_each_other(memcached_url: str) -> None:
    granted, refused = [], []

    def work(number: int) -> None:
        with closing(open_store(memcached_url)) as store:
            for turn in range(30):
                id = f"{number} {turn}"
                answer = store.apply("key", take(id, limit=2)).answer
                (granted if isinstance(answer, Granted) else refused).append(id)
                if isinstance(answer, Granted):
                    inside.append(id)
                    assert len(inside) <= 2
                    inside.remove(id)
                    assert store.apply("key", give(id)).answer == Applied(True)

    inside: list[str] = []
    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(granted) + len(refused) == 180
    assert granted
    with closing(open_store(memcached_url)) as store:
        assert store.inspect("key").holders == ()


# Round trips, and answers that are lost ---------------------------------------------------------------


@pytest.mark.promise(
    "A verb on memcached costs one round trip that reads and one that writes, a heartbeat of 300 leases two",
    figure="counted",
)
def test_a_verb_reads_once_and_writes_once(store: MemcachedStore, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[list[bytes]] = []
    original = Client._try

    def count(self: Client, connection: Any, commands: list[bytes], read: Any) -> Any:
        sent.append(commands)
        return original(self, connection, commands, read)

    monkeypatch.setattr(Client, "_try", count)

    def trips(ask: Callable[[], object]) -> int:
        sent.clear()
        ask()
        return len(sent)

    store.epoch()
    assert trips(lambda: store.apply("key", take("a", acks_late=True))) == 2
    assert trips(lambda: store.apply("key", take("b"))) == 1  # held
    assert trips(lambda: store.inspect_all(["key", "other"])) == 1
    assert trips(lambda: store.apply("key", give("a"))) == 2  # with a tombstone
    names = [f"key {number}" for number in range(300)]
    for name in names:
        store.apply(name, take("a"))
    leases = [(name, Renew("a", "token of a", 2 * LIFE)) for name in names]
    assert trips(lambda: store.renew(leases)) == 2
    assert trips(lambda: store.renew([])) == 0


def test_leases_of_one_key_and_lost_ones_are_renewed_together(store: MemcachedStore) -> None:
    for id in "ab":
        store.apply("key", take(id, limit=2))
    store.apply("damaged", take("a"))
    store._client.ask([b"ms %b 1 T60\r\n?" % store._lock("damaged")])
    renewals = [("key", "a"), ("lost", "a"), ("damaged", "a"), ("key", "b"), ("key", "c")]
    longer = [(key, Renew(id, f"token of {id}", 5 * LIFE)) for key, id in renewals]
    assert store.renew(longer) == [True, False, False, True, False]
    assert all(holder.remaining > 4 * LIFE for holder in store.inspect("key").holders)


@pytest.mark.promise(
    "An answer of memcached that is lost changes nothing; a write that arrives late changes nothing",
    name="memcached, lost answers",
    broke="what was written is not looked for; no compare-and-swap",
)
def test_a_write_whose_answer_is_lost_is_done_once(
    memcached_server: MemcachedServer, memcached_url: str
) -> None:
    with (
        Proxy(memcached_server.port) as proxy,
        closing(open_store(f"memcached://127.0.0.1:{proxy.port}")) as store,
    ):
        store.epoch()
        for verb in (take("a"), take("a"), give("a"), take("b"), Restore("b", "token of b", LIFE), give("b")):
            proxy.lose(b"ms ")
            answer = store.apply("key", verb).answer
            assert isinstance(answer, Granted) or answer == Applied(True)
            proxy.restore()
        for verb in (take("a"), give("a")):
            proxy.lose(b"mg ")
            answer = store.apply("key", verb).answer
            assert isinstance(answer, Granted) or answer == Applied(True)
        store.apply("key", take("a"))
        proxy.lose(b"ms ")
        assert store.renew([("key", Renew("a", "token of a", 3 * LIFE))]) == [True]


class Overtaken(MemcachedStore):
    """A store whose first write comes after the same write by another client."""

    def swap(self, key: str, version: int, change: Change) -> bool:
        if not self.is_overtaken:
            self.is_overtaken = True
            with closing(open_store(self.url)) as other:
                assert other.apply(key, give("a")).answer == Applied(True)
        return super().swap(key, version, change)

    is_overtaken = False


@pytest.mark.promise(
    "Of two clients of memcached that release one lease at the same instant one has released it",
    broke="a write of the other client taken for the own one, since both wrote the same",
)
def test_a_lease_is_released_by_one_of_two_clients(memcached_url: str) -> None:
    with closing(open_store(memcached_url)) as store, closing(Overtaken(memcached_url)) as late:
        store.apply("key", take("a"))
        assert late.apply("key", give("a")).answer == Applied(False)


@pytest.mark.proves("memcached, outage")
def test_a_server_that_is_gone_or_does_not_answer_is_said_to_be_so_and_comes_back(
    start_memcached: Callable[..., MemcachedServer],
) -> None:
    server = start_memcached()
    with closing(open_store(f"{server.url}?timeout=1")) as store:
        fence(store.apply("key", take("a")).answer)
        server.pause()
        with pytest.raises(StoreUnavailable, match=r"does not answer: .*timed out"):
            store.apply("key", give("a"))
        server.resume()
        store.apply("key", give("a"))
        assert store.inspect("key").holders == ()
        server.kill()
        with pytest.raises(StoreUnavailable, match="Connection refused; check that it runs"):
            store.inspect("key")
        server.start()
        fence(store.apply("key", take("b")).answer)


@pytest.mark.proves("memcached, lost answers")
@pytest.mark.parametrize("verb", [take("a"), give("a"), Restore("a", "token of a", LIFE)])
def test_a_write_that_arrives_late_does_not_change_what_was_written_meanwhile(
    memcached_server: MemcachedServer, memcached_url: str, verb: KeyOperation
) -> None:
    with (
        Proxy(memcached_server.port) as proxy,
        closing(open_store(f"memcached://127.0.0.1:{proxy.port}?timeout=1")) as slow,
        closing(open_store(memcached_url)) as store,
    ):
        if isinstance(verb, Release):
            store.apply("key", take("a"))
        slow.epoch()
        proxy.withhold(b"ms ")
        with pytest.raises(StoreUnavailable, match="timed out"):
            slow.apply("key", verb)
        if isinstance(verb, Release):
            store.apply("key", verb)
        fence(store.apply("key", take("b")).answer)
        proxy.deliver()
        wait_until(lambda: not proxy.is_on_its_way, "the late write", 30)
        assert [holder.id for holder in store.inspect("key").holders] == ["b"]


@pytest.mark.promise(
    "A memcached that is cut off, stands still, or is killed is given up in time, and used when it is back",
    name="memcached, outage",
)
def test_a_partition_is_told_and_ends(memcached_server: MemcachedServer, memcached_url: str) -> None:
    with (
        Proxy(memcached_server.port) as proxy,
        closing(open_store(f"memcached://127.0.0.1:{proxy.port}?timeout=1")) as store,
    ):
        fence(store.apply("key", take("a")).answer)
        for cut in (proxy.cut, lambda: proxy.drop(requests=True), lambda: proxy.drop(replies=True)):
            cut()
            with pytest.raises(StoreUnavailable, match="does not answer"):
                store.apply("key", give("a"))
            with pytest.raises(StoreUnavailable, match="does not answer"):
                store.renew([("key", Renew("a", "token of a", LIFE))])
            proxy.restore()
            assert isinstance(store.apply("key", take("a")).answer, Granted)
        assert store.apply("key", give("a")).answer == Applied(True)


# A full server, and neighbours -------------------------------------------------------------------------


def fill(store: Any, key: str, count: int = 30_000) -> None:
    """Write items as large as this lock, more than the server has memory for, as a cache beside it does."""
    (lock,) = store._client.ask([b"mg %b v" % store._lock(key)])
    text = lock.value or b""
    with suppress(StoreUnavailable):  # it refuses what it has no memory for
        for start in range(0, count, 500):
            names = [b"%b%06d" % (store._lock(key)[:-6], start + number) for number in range(500)]
            store._client.ask([b"ms %b %d T0\r\n%b" % (name, len(text), text) for name in names])


@pytest.mark.proves("memcached, full")
def test_a_full_server_that_evicts_nothing_refuses_and_the_check_warns_of_it(
    start_memcached: Callable[..., MemcachedServer],
) -> None:
    server = start_memcached("-M", *TINY)
    with closing(open_store(server.url)) as store:
        (warning,) = store.check()
        assert "it deletes the lock that it cannot write" in warning
        store.apply("held", take("a"))
        fill(store, "held")
        with pytest.raises(StoreUnavailable, match=r"out of memory .*give it more"):
            store.apply("key", take("a"))
        assert [holder.id for holder in store.inspect("held").holders] == ["a"]
        renewal = ("held", Renew("a", "token of a", 2 * LIFE))
        with pytest.raises(StoreUnavailable, match="out of memory"):
            store.renew([renewal])
        assert store.renew([renewal]) == [False]  # the server has deleted it


@pytest.mark.proves("memcached, loss of data")
def test_an_evicted_lease_is_lost_for_its_holder_and_the_check_warns_of_it(
    start_memcached: Callable[..., MemcachedServer],
) -> None:
    server = start_memcached(*TINY)
    with closing(open_store(server.url)) as store:
        assert store.check() == []
        store.apply("held", take("a"))
        fill(store, "held")
        assert store.inspect("held").holders == ()
        assert store.renew([("held", Renew("a", "token of a", LIFE))]) == [False]
        (warning,) = store.check()
        assert "it has evicted " in warning
        assert store.apply("held", Restore("a", "token of a", LIFE)).answer == Applied(True)


@pytest.mark.promise(
    "On a full memcached a lease that is renewed stays; with `-M` a warning says what that means",
    name="memcached, full",
)
def test_a_lease_that_is_renewed_is_not_evicted(start_memcached: Callable[..., MemcachedServer]) -> None:
    server = start_memcached(*TINY)
    with closing(open_store(server.url)) as store:
        store.apply("held", take("a"))
        for number in range(1, 6):
            fill(store, "held", 1_000)
            assert store.renew([("held", Renew("a", "token of a", (number + 1) * LIFE))]) == [True]


@pytest.mark.promise(
    "More leases than an item of memcached holds are refused, and those that are held stay",
    broke="the item is sent: the server deletes the one it has",
)
@pytest.mark.proves("refused for good")
def test_more_leases_than_one_item_holds_are_refused_and_the_others_stay(store: MemcachedStore) -> None:
    ids = [f"{number:030000}" for number in range(40)]
    held = []

    def fill_up() -> None:
        for id in ids:
            store.apply("key", take(id, limit=40))
            held.append(id)

    with pytest.raises(StoreRefused, match=r"lock key do not fit into one item .* lower the limit"):
        fill_up()
    seen = store.inspect("key")
    assert [holder.id for holder in seen.holders] == held[: len(seen.holders)]
    assert len(seen.holders) + seen.others == len(held)
    assert store.renew([("key", Renew(ids[0], f"token of {ids[0]}", 2 * LIFE))]) == [True]
    assert store.apply("key", give(ids[0])).answer == Applied(True)
    fence(store.apply("key", take("again", limit=40)).answer)


@pytest.mark.promise(
    "What other programs write to an item of memcached is damage of one lock, or named",
    name="memcached, other programs",
)
@pytest.mark.proves("impossible time-outs")
def test_a_lock_that_another_program_has_written_to_is_reported_as_damaged(store: MemcachedStore) -> None:
    for text in (b"", b"?", b"[]", b'["other", 1, 1, []]', b'["key", 1, "x", []]', b'["key", 1, 1, [["a"]]]'):
        store._client.ask([b"ms %b %d T60\r\n%b" % (store._lock("key"), len(text), text)])
        with pytest.raises(UnreadableKey, match=r"lock key are damaged"):
            store.apply("key", take("a"))
        with pytest.raises(UnreadableKey, match=r"lock key are damaged"):
            store.inspect("key")
        assert store.inspect_all(["key"])[0].problem
        store.forget("key")
        fence(store.apply("key", take("a")).answer)


@pytest.mark.proves("memcached, other programs")
def test_a_clock_that_another_program_has_written_to_is_named_in_the_error(store: MemcachedStore) -> None:
    store.apply("key", take("a"))
    store._client.ask([b"ms cx#clock 1 T60\r\n?"])
    with pytest.raises(StoreUnavailable, match="item cx#clock was written by another program; delete it"):
        store.apply("key", take("b"))


@pytest.mark.proves("memcached, loss of data")
def test_a_cache_that_is_flushed_has_another_epoch(
    store: MemcachedStore, memcached_server: MemcachedServer
) -> None:
    epoch = store.epoch()
    store.apply("key", take("a"))
    memcached_server.ask(b"flush_all")
    assert store.epoch() != epoch
    assert store.apply("key", Restore("a", "token of a", LIFE)).answer == Applied(True)
    assert isinstance(store.apply("key", take("b")).answer, Held)


@pytest.mark.proves("memcached, other programs")
@pytest.mark.parametrize("text", ["k" * 199, "k" * 300, "ü" * 200, "two words\r\nflush_all", "a#b", "\udcff"])
def test_any_text_names_an_item_of_its_own(store: MemcachedStore, text: str) -> None:
    for key in (text, f"{text}2"):
        fence(store.apply(key, take("a")).answer)
    assert len(store._lock(text)) <= 250
    assert b" " not in store._lock(text)
    assert [holder.id for holder in store.inspect(text).holders] == ["a"]


# Wrong use ---------------------------------------------------------------------------------------------


@pytest.mark.proves("memcached, misuse")
@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("memcached://a:11211,b:11211", "several servers.*two tasks would hold one lock"),
        ("memcached://a;b", "several servers"),
        ("memcached://", "cannot understand"),
        ("memcached://user:secret@a", "has no login"),
        ("memcached://a/path", "cannot understand"),
        ("memcached://a:port", "cannot understand"),
        ("memcached://a?timeout=soon", "cannot understand"),
        ("memcached://[::1", "cannot understand"),
        ("memcached://me:secret\u2100@a", "cannot understand"),
        ("memcached://a?time_out=3", "cannot understand"),
    ],
)
def test_a_url_that_cannot_be_meant_is_refused(url: str, text: str) -> None:
    with pytest.raises(OptionError, match=text) as refusal:
        open_store(url)
    assert "secret" not in str(refusal.value)


def test_a_socket_file_is_an_address() -> None:
    with MemcachedServer(has_port=False) as server, closing(open_store(server.url)) as store:
        fence(store.apply("key", take("a")).answer)
        assert server.url.startswith("memcached:///")
        server.kill()
        with pytest.raises(StoreUnavailable, match="does not answer"):
            store.inspect("key")


@pytest.mark.skipif(not has_ipv6(), reason="no IPv6 here")
def test_an_address_of_ipv6(start_memcached: Callable[..., MemcachedServer]) -> None:
    server = start_memcached("-l", "::1")
    with closing(open_store(f"memcached://[::1]:{server.port}")) as store:
        fence(store.apply("key", take("a")).answer)


@pytest.mark.promise(
    "A server that is no memcached, too old, or runs with `-C` is refused, and so are several servers and "
    "logins",
    name="memcached, misuse",
    broke="a value that is cut off counts as whole",
)
@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (b"ERROR\r\n", r"ERROR; it must be memcached 1\.6\.10 or newer"),
        (b"CLIENT_ERROR unauthenticated\r\n", "it asks for a login, which memcached:// does not support"),
        (b"-ERR unknown command 'mg'\r\n", "b\"-ERR unknown command 'mg'\" is no answer of memcached; check"),
        (b"HTTP/1.1 400 Bad Request\r\n", "is no answer of memcached; check its URL"),
        (b"\x15\x03\x01" * 8000, "is no answer of memcached"),
        (b"VA many t1\r\n", "does not answer"),
        (b"STAT\r\n", "does not answer"),
        (b"VA 10 t1\r\nshort", "does not answer: Connection closed by server"),
        (b"", "does not answer: Connection closed by server"),
    ],
)
def test_a_server_that_is_no_memcached_is_reported(answer: bytes, text: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def reply() -> None:
            with suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    with connection:
                        connection.recv(4096)
                        connection.sendall(answer)
                        connection.shutdown(socket.SHUT_WR)
                        connection.recv(4096)

        threading.Thread(target=reply, daemon=True).start()
        with (
            closing(open_store(f"memcached://127.0.0.1:{listener.getsockname()[1]}")) as store,
            pytest.raises(StoreUnavailable, match=text),
        ):
            store.check()


@pytest.mark.proves("memcached, misuse")
def test_a_server_that_cannot_compare_and_swap_is_refused(
    start_memcached: Callable[..., MemcachedServer],
) -> None:
    server = start_memcached("-C")
    with closing(open_store(server.url)) as store:
        for ask in (store.check, lambda: store.apply("key", take("a"))):
            with pytest.raises(StoreUnavailable, match="it runs with -C"):
                ask()


def test_memcached_refuses_to_list_locks(store: MemcachedStore) -> None:
    with pytest.raises(ExclusiveError, match="cannot list its locks"):
        store.scan()


@pytest.mark.proves("too many clients")
def test_a_server_with_too_many_clients_is_to_allow_more() -> None:
    with MemcachedServer("-c", "64", "-t", "1") as server, ExitStack() as clients:

        def connect() -> None:
            clients.enter_context(socket.create_connection(("127.0.0.1", server.port)))

        def refusal() -> str:
            connect()
            with closing(open_store(server.url)) as store:
                try:
                    store.apply("key", take("a"))
                except StoreUnavailable as error:
                    return str(error)
            return ""

        for _ in range(60):  # each refusal takes a moment on a busy machine
            connect()
        # The server closes the connection, perhaps before its words are read.
        wait_until(
            lambda: "ERROR Too many open connections; raise its option -c" in refusal(), "the hint", 120
        )
