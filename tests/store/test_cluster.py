"""A Redis Cluster whose slots move, whose nodes die, and which forgets a part of its data."""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path
from socketserver import StreamRequestHandler, ThreadingTCPServer
from threading import Thread
from typing import Any

import pytest
from celery.utils.functional import noop
from redis import exceptions
from redis.cluster import RedisCluster as ClientOfRedisPy
from redis.connection import AbstractConnection
from redis.crc import key_slot

from celery_exclusive.core.operations import (
    Acquire,
    AcquireAlone,
    Applied,
    Granted,
    Held,
    Parked,
    Renew,
    Stale,
)
from celery_exclusive.core.records import SECOND
from celery_exclusive.errors import NotDone, StoreUnavailable
from celery_exclusive.stores.base import open_store
from celery_exclusive.stores.redis.address import parse
from celery_exclusive.stores.redis.apply import words_of
from celery_exclusive.stores.redis.cluster import BUCKETS, ClusterStore, bucket_of
from celery_exclusive.stores.redis.node import Call, Node
from celery_exclusive.system.deadline import at_most, deadline
from tests.cluster import RedisCluster, slot_of
from tests.servers import RedisServer, wait_until
from tests.store.operations import LIFE, give
from tests.store.test_lock import Process
from tests.store.test_redis_user import LINE, live
from tests.worker.journal import Journal

pytestmark = pytest.mark.xdist_group("redis-cluster")
KEY = "a key"
LIMIT = 60
RIGHTS = LINE.partition(">PASSWORD ")[2]
SLOT = slot_of(KEY)


@pytest.fixture
def store(cluster: RedisCluster) -> Iterator[ClusterStore]:
    with closing(store_of(cluster)) as opened:
        yield opened


def store_of(cluster: RedisCluster, timeout: float = 30) -> ClusterStore:
    opened = open_store(f"{cluster.url}?socket_timeout={timeout}")
    assert isinstance(opened, ClusterStore)
    return opened


def take(id: str, **more: Any) -> Acquire:
    return Acquire(id, f"token of {id}", **{"ttl": LIFE, "message": b"message", **more})


def is_granted(store: ClusterStore, key: str, id: str) -> bool:
    return isinstance(store.apply(key, take(id, message=None)).answer, Granted)


def names_like(key: str) -> Iterator[str]:
    return (f"{key} {number}" for number in range(10_000))


def fence_of(store: ClusterStore, key: str, id: str, *, on: int) -> int:
    """The fence of a new lease on a key like this one, whose bucket has this slot."""
    name = next(name for name in names_like(key) if slot_of(name) == on)
    answer = store.apply(name, take(id, message=None)).answer
    assert isinstance(answer, Granted)
    return answer.fence


def key_on(cluster: RedisCluster, node: RedisServer) -> str:
    """A key whose bucket this node has."""
    return next(name for name in names_like("key") if cluster.owner(slot_of(name)) is node)


def keys_of_all(cluster: RedisCluster) -> list[str]:
    """One key on each primary."""
    return [key_on(cluster, node) for node in cluster.primaries()]


@pytest.fixture
def trips(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often something was sent to which node."""
    counted = Counter[str]()
    exchange, ask = Node.exchange, Node.ask

    def count_exchange(self: Node, calls: Any) -> Any:
        counted[self.url] += 1
        return exchange(self, calls)

    def count_ask(self: Node, *command: object) -> Any:
        counted[self.url] += 1
        return ask(self, *command)

    monkeypatch.setattr(Node, "exchange", count_exchange)
    monkeypatch.setattr(Node, "ask", count_ask)
    return counted


@pytest.fixture
def lose_the_next_reply(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Let a node do what it is asked, and its connection be lost before the answer is read; call `then`."""
    read, due = AbstractConnection.read_response, list[Callable[[], object]]()

    def lose(*args: Any, **kwargs: Any) -> Any:
        answer = read(*args, **kwargs)
        if due:
            due.pop()()
            raise exceptions.ConnectionError("Connection closed by server.")
        return answer

    monkeypatch.setattr(AbstractConnection, "read_response", lose)
    yield lambda then=noop: due.append(then)
    assert not due, "no reply was lost"


def test_a_node_that_is_loading_has_done_nothing() -> None:
    class Loading(StreamRequestHandler):
        def handle(self) -> None:
            while head := self.rfile.readline():
                words = [
                    self.rfile.read(int(self.rfile.readline()[1:]) + 2)[:-2] for _ in range(int(head[1:]))
                ]
                self.wfile.write(b"-LOADING it loads\r\n" if words[0] == b"GET" else b"+OK\r\n")

    with ThreadingTCPServer(("127.0.0.1", 0), Loading) as server:
        serving = Thread(target=server.serve_forever, args=(0.01,))
        serving.start()
        try:
            to = parse(f"redis://127.0.0.1:{server.server_address[1]}/0")
            node, calls = Node(to, "cluster", {}), [Call(("GET", "a")), Call(("GET", "b"))]
            node._greet = lambda _: node.heard.update(call.slot for call in calls)  # type: ignore[method-assign]
            for _ in node.exchange(calls):
                pass
            node.close()
        finally:
            server.shutdown()
            serving.join()
    assert [type(call.error) for call in calls] == [exceptions.BusyLoadingError] * 2
    assert [(call.is_open, call.is_repeated) for call in calls] == [(True, False)] * 2


@pytest.mark.proves("cluster round trips")
def test_each_bucket_has_one_slot_and_every_process_knows_it_by_the_key_alone() -> None:
    assert len({key_slot(b"%d" % number) for number in range(BUCKETS)}) == BUCKETS
    assert [bucket_of(key) for key in ("repo:17", "ünïcode", "")] == [52, 42, 0]


@pytest.mark.promise(
    "Redis Cluster: each operation is one round trip to the node of its key; renewals, sweeps, looks and "
    "the epoch are one for each node",
    name="cluster round trips",
    figure="300 leases: 3 trips",
    also="the kit and the differential test",
)
def test_an_operation_is_one_round_trip_and_what_is_for_all_locks_one_for_each_node(
    cluster: RedisCluster, store: ClusterStore, trips: Counter[str]
) -> None:
    keys = [f"key {number}" for number in range(300)]
    assert all(is_granted(store, key, "a") for key in keys)
    leases = [(key, Renew("a", "token of a", LIFE)) for key in keys]
    for work, count in (
        (lambda: store.apply(KEY, take("a")), 1),
        (lambda: store.renew(leases), 3),
        (store.reap, 3),
        (store.epoch, 3),
        (lambda: store.inspect_all(keys), 3),
        (lambda: store.line(KEY), 1),
    ):
        work()  # from now on all nodes know the script
        trips.clear()
        work()
        assert sum(trips.values()) == count
        assert set(trips.values()) == {1}


@pytest.mark.promise(
    "A sweep of a cluster that another worker has just done costs each node one script, and one round trip; "
    "it brings the times and the epoch of all buckets",
    figure="0.08 ms of all nodes, with 64 scripts 5 ms",
    broke="red before: 64 scripts",
)
def test_a_sweep_that_another_worker_has_done_is_one_script_for_each_node(
    cluster: RedisCluster, store: ClusterStore, trips: Counter[str]
) -> None:
    swept, every = store.reap(), 3600 * SECOND
    nodes = [node.client() for node in cluster.primaries()]
    for node in nodes:
        node.config_resetstat()
    trips.clear()
    replies = [store.reap(every=every) for _ in range(10)]
    ran = [node.info("commandstats") for node in nodes]
    assert [stats["cmdstat_evalsha"]["calls"] for stats in ran] == [10, 10, 10]
    assert sum(stats["cmdstat_get"]["calls"] for stats in ran) <= 10 * (BUCKETS + 2 * 3)
    assert sum(trips.values()) == 30
    assert [(reply.answer, reply.epoch) for reply in replies] == [(Applied(False), swept.epoch)] * 10
    assert all(min(later.times) > max(earlier.times) - SECOND for earlier, later in pairwise(replies))
    for number in (0, bucket_of(KEY), BUCKETS - 1):
        known = store.reap(every=every).epoch
        cluster.ask(cluster.owner(key_slot(b"%d" % number)), "SET", f"cx2:{{{number}}}:epoch", "another")
        assert store.reap(every=every).epoch not in ("", known)
    for node in nodes:
        node.close()


@pytest.mark.proves("moving slots")
def test_a_key_is_found_where_its_slot_has_moved_and_the_next_call_goes_there_at_once(
    cluster: RedisCluster, store: ClusterStore, trips: Counter[str]
) -> None:
    store.epoch()
    granted = store.apply(KEY, take("a")).answer
    store.apply(KEY, take("b"))
    trips.clear()
    cluster.move(SLOT, cluster.others(SLOT)[0])
    assert store.apply(KEY, take("a")).answer == granted
    assert sum(trips.values()) <= 3  # one node says where it is, and one may not know the script yet
    trips.clear()
    assert [wake.id for wake in store.apply(KEY, give("a")).wake] == ["b"]
    assert sum(trips.values()) == 1


@pytest.mark.promise(
    "A lock is granted to one owner while its slot moves, and calls follow it. ASK is not followed: "
    "redis-py's own client follows it, and is granted a held lock",
    name="moving slots",
    broke=(
        "ASK followed, MOVED not remembered; with redis-py 5, which names neither outside its own client, "
        "each move of a slot was a refusal"
    ),
)
def test_a_held_lock_is_not_granted_while_its_slot_moves(cluster: RedisCluster) -> None:
    with closing(store_of(cluster, timeout=1)) as store:
        store.apply(KEY, take("a"))
        for _ in cluster.moving(SLOT, cluster.others(SLOT)[0]):
            with pytest.raises(StoreUnavailable, match=r"ASK \d+ .*; its slot is on its way to another node"):
                store.apply(KEY, take("b"))
        assert isinstance(store.apply(KEY, take("b", message=None)).answer, Held)


@pytest.mark.proves("moving slots")
def test_the_client_of_redis_py_follows_an_ask_redirect_and_is_granted_a_lock_that_is_held(
    cluster: RedisCluster, store: ClusterStore
) -> None:
    """The control of the test above: so our calls wait, and do not go through that client."""
    store.apply(KEY, take("a"))
    to = cluster.others(SLOT)[0]
    moving = cluster.moving(SLOT, to)
    next(moving)
    bucket = store.buckets[bucket_of(KEY)]
    script, base, *_ = bucket.sweep(0, 0, 0)
    words = words_of(KEY, take("b", message=None), "", bucket._settings)
    with ClientOfRedisPy(host="127.0.0.1", port=cluster.port) as client:
        assert client.eval(script.text, 1, base, *words) > 0  # the fence of a grant
    cluster.ask(to, "FLUSHALL")  # a second lease there would stop the move
    for _ in moving:
        pass
    assert store.inspect(KEY).holders[0].id == "a"


@pytest.mark.proves("moving slots")
def test_a_call_waits_until_a_slot_has_moved(cluster: RedisCluster, store: ClusterStore) -> None:
    store.apply(KEY, take("a"))
    moving = cluster.moving(SLOT, cluster.others(SLOT)[0])
    next(moving)
    with ExitStack() as stack:
        stack.callback(lambda: [*moving])
        reply = in_thread(stack, lambda: store.apply(KEY, take("b")))
        for _ in moving:
            time.sleep(0.02)
        assert isinstance(reply().answer, Parked)


@pytest.mark.proves("moving slots")
def test_a_refusal_to_try_again_is_tried_again(cluster: RedisCluster, store: ClusterStore) -> None:
    """Only a command with several names gets it, which our scripts and commands never have."""
    base = f"cx2:{{{bucket_of(KEY)}}}:"
    store._nodes.ask("MSET", f"{base}one", 1, f"{base}two", 2)
    moving = cluster.moving(SLOT, cluster.others(SLOT)[0])
    while next(moving) not in (f"{base}one", f"{base}two"):
        pass
    next(moving)  # so that one has moved, and the other one has not
    with ExitStack() as stack:
        stack.callback(lambda: [*moving])
        with (
            closing(store_of(cluster, timeout=1)) as hasty,
            pytest.raises(StoreUnavailable, match="TRYAGAIN"),
        ):
            hasty._nodes.ask("MGET", f"{base}one", f"{base}two")
        answer = in_thread(stack, lambda: store._nodes.ask("MGET", f"{base}one", f"{base}two"))
        for _ in moving:
            pass
        assert answer() == [b"1", b"2"]


@pytest.mark.proves("moving slots")
def test_a_slot_that_no_node_has_is_waited_for_within_the_timeout(
    cluster: RedisCluster, store: ClusterStore
) -> None:
    store.apply(KEY, take("a"))
    owner = cluster.owner(SLOT)
    for node in cluster.nodes:
        cluster.ask(node, "CLUSTER", "DELSLOTS", SLOT)
    no_primary = r"CLUSTERDOWN .*; its slot has no primary now"
    with closing(store_of(cluster, timeout=1)) as hasty, pytest.raises(StoreUnavailable, match=no_primary):
        hasty.apply(KEY, take("b"))
    with ExitStack() as stack:
        reply = in_thread(stack, lambda: store.apply(KEY, take("b")))
        cluster.ask(owner, "CLUSTER", "ADDSLOTS", SLOT)
        assert isinstance(reply().answer, Parked)


@pytest.mark.promise(
    "The replica of a killed primary goes on with its leases and lines. A silent node keeps neither leases "
    "on others from being renewed nor messages that were woken there from being published. A request that "
    "is sent again is done once",
    name="cluster failover",
    broke=(
        "the first arguments sent again, a repeated release not taken for one, no last try for what others "
        "send on, an error instead of what was woken"
    ),
)
def test_a_replica_takes_over_from_a_killed_primary_with_its_leases_and_lines(
    cluster: RedisCluster, store: ClusterStore
) -> None:
    keys = keys_of_all(cluster)
    for key in keys:
        store.apply(key, take("a"))
        store.apply(key, take("b"))
    doomed = cluster.owner(SLOT)
    cluster.replica_of(doomed)
    doomed.kill()
    leases = [(key, Renew("a", "token of a", LIFE)) for key in keys]
    assert store.renew(leases) == [True] * 3
    assert [wake.id for key in keys for wake in store.apply(key, give("a")).wake] == ["b"] * 3
    assert sorted(store.scan()) == sorted(keys)


@pytest.mark.proves("cluster failover")
@pytest.mark.parametrize("is_connected", [True, False])
def test_a_node_that_does_not_answer_does_not_keep_leases_on_others_from_being_renewed(
    cluster: RedisCluster, *, is_connected: bool
) -> None:
    with closing(store_of(cluster, timeout=2)) as store:
        keys = keys_of_all(cluster)
        for key in keys:
            store.apply(key, take("a", ttl=60 * SECOND))
        paused = cluster.owner(slot_of(keys[0]))
        if not is_connected:
            store.close()
        paused.pause()
        with pytest.raises(StoreUnavailable, match=rf"node 127\.0\.0\.1:{paused.port}\) .*ime(out|d out)"):
            store.renew([(key, Renew("a", "token of a", LIFE)) for key in keys])
        for key in keys[1:]:
            assert store.inspect(key).holders[0].remaining > 60 * SECOND


@pytest.mark.promise(
    "A silent node of a cluster does not keep leases on other nodes from being renewed in time: renewals "
    "and the look at the epoch wait for it no longer than until the next ones are due",
    name="silent node",
    broke=(
        "each waited for the timeout of the store: a second holder after 39 s with a ttl of 30 s and the "
        "`socket_timeout` that the docs advise"
    ),
)
def test_renewals_wait_for_a_silent_node_only_until_the_next_ones_are_due(
    cluster: RedisCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits, exchange = list[float](), Node.exchange

    def note(self: Node, calls: Any) -> Iterator[None]:
        for _ in exchange(self, calls):
            yield
            waits.append(at_most(60))  # for the answer

    with closing(store_of(cluster, timeout=60)) as store:
        for key in (keys := keys_of_all(cluster)):
            store.apply(key, take("a", ttl=3 * SECOND))
        monkeypatch.setattr(Node, "exchange", note)
        assert store.renew([(key, Renew("a", "token of a", 3 * SECOND)) for key in keys]) == [True] * 3
    assert 0 < max(waits) <= 1


@pytest.mark.proves("silent node")
def test_a_new_connection_waits_no_longer_than_half_of_the_time_of_all_nodes(
    cluster: RedisCluster, store: ClusterStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits, connect = list[float](), Node._open

    def note(self: Node) -> Any:
        waits.append(at_most(60))
        return connect(self)

    monkeypatch.setattr(Node, "_open", note)
    with deadline(8):
        store.inspect_all(keys_of_all(cluster))
    assert len(waits) >= 3
    assert max(waits) <= 4


@pytest.mark.proves("cluster failover")
def test_a_sweep_returns_what_it_has_woken_though_a_node_does_not_answer(cluster: RedisCluster) -> None:
    with closing(store_of(cluster, timeout=2)) as store:
        before = store.reap().times
        silent, *_ = keys_of_all(cluster)
        node = cluster.owner(slot_of(silent))
        others = (number for number in range(BUCKETS) if cluster.owner(key_slot(b"%d" % number)) is not node)
        first = next(others)
        answering = next(name for name in names_like("key") if bucket_of(name) == first)
        for key in (silent, answering):
            let_holder_die(store, key)
        cluster.ask(cluster.owner(slot_of(answering)), "DEL", f"cx2:{{{first}}}:reaped")
        cluster.replica_of(node).kill()  # none takes over
        node.pause()
        reply = store.reap(every=3600 * SECOND)  # that bucket is asked whether it is due
        assert [wake.key for wake in reply.wake] == [answering]
        assert reply.times[bucket_of(silent)] == before[bucket_of(silent)]
        assert reply.times[bucket_of(answering)] > before[bucket_of(answering)]
        with pytest.raises(StoreUnavailable):
            store.reap()


@pytest.mark.proves("cluster failover")
@pytest.mark.parametrize("verb", ["reap", "release"])
def test_an_offer_made_while_a_node_is_silent_is_good_for_all_processes(
    cluster: RedisCluster, verb: str
) -> None:
    """A process that has not seen all nodes yet knows the epoch of the key's part alone."""
    silent, key, _ = keys_of_all(cluster)
    with closing(store_of(cluster, timeout=4)) as store, closing(store_of(cluster, timeout=4)) as new:
        store.epoch()
        if verb == "reap":
            let_holder_die(store, key)
        else:
            store.apply(key, take("a"))
            store.apply(key, take("b"))
        cluster.owner(slot_of(silent)).pause()
        (wake,) = (new.reap() if verb == "reap" else new.apply(key, give("a"))).wake
        assert isinstance(store.apply(key, take("b", promoted=wake.epoch)).answer, Granted)
        assert isinstance(
            store.apply(key, Acquire("b", "other", LIFE, promoted=wake.epoch, message=b"message")).answer,
            Stale,
        )


@pytest.mark.proves("cluster failover")
@pytest.mark.parametrize("verb", ["acquire", "park", "release", "renew"])
def test_a_command_that_is_sent_again_after_a_lost_reply_is_done_once(
    store: ClusterStore, lose_the_next_reply: Callable[[], None], verb: str
) -> None:
    store.reap()
    if verb == "acquire":
        lose_the_next_reply()
        assert store.apply(KEY, take("a")).answer == store.apply(KEY, take("a")).answer
        return
    store.apply(KEY, take("a"))
    lose_the_next_reply()
    if verb == "park":
        assert isinstance(store.apply(KEY, take("b")).answer, Parked)
        assert store.inspect(KEY).waiting == 1
    elif verb == "release":
        assert store.apply(KEY, give("a")).answer == Applied(True)
        assert store.apply(KEY, give("a")).answer == Applied(False)
    else:
        assert store.renew([(KEY, Renew("a", "token of a", LIFE))]) == [True]


@pytest.mark.proves("cluster failover")
def test_a_call_that_a_node_may_have_done_before_it_died_is_not_said_to_be_undone(
    cluster: RedisCluster, lose_the_next_reply: Callable[..., None]
) -> None:
    """`NotDone` lets a caller send its message without the store."""
    node = cluster.owner(SLOT)
    with closing(store_of(cluster, timeout=2)) as store, closing(store_of(cluster, timeout=2)) as other:
        store.epoch()
        cluster.replica_of(node).kill()  # none takes over
        lose_the_next_reply(node.kill)
        with pytest.raises(StoreUnavailable) as may_be_done:
            store.apply(KEY, take("a"))
        with pytest.raises(StoreUnavailable) as undone:
            other.apply(KEY, take("b"))
    assert [type(it.value) for it in (may_be_done, undone)] == [StoreUnavailable, NotDone]


@pytest.mark.proves("cluster failover")
def test_a_promoted_copy_is_not_lost_if_its_lease_ended_before_the_lost_reply_was_asked_for_again(
    store: ClusterStore, lose_the_next_reply: Callable[[], None]
) -> None:
    store.apply(KEY, take("a"))
    store.apply(KEY, take("b"))
    (wake,) = store.apply(KEY, give("a")).wake
    lose_the_next_reply()
    assert isinstance(store.apply(KEY, take("b", ttl=1, promoted=wake.epoch)).answer, Granted)


@pytest.mark.promise(
    "The loss of one node's data is noticed, and offers of the other nodes stay good",
    name="loss of one node's data",
    broke="the epoch of one bucket, an offer compared with the epoch of all",
)
def test_the_loss_of_one_node_s_data_is_another_epoch_which_a_sweep_tells(
    cluster: RedisCluster, store: ClusterStore
) -> None:
    before = store.epoch()
    assert store.reap().epoch == before
    for node in cluster.primaries():
        cluster.ask(node, "FLUSHALL")
        after = store.reap().epoch
        assert after not in ("", before)
        with closing(store_of(cluster)) as other:
            assert store.epoch() == other.epoch() == after
        before = after


@pytest.mark.proves("loss of one node's data")
def test_after_the_loss_of_one_node_s_data_offers_on_the_others_are_good_and_its_own_are_not(
    cluster: RedisCluster, store: ClusterStore
) -> None:
    lost, kept, _ = keys_of_all(cluster)
    wakes = {}
    for key in (lost, kept):
        store.apply(key, take("a"))
        store.apply(key, take("b"))
        (wakes[key],) = store.apply(key, give("a")).wake
    assert wakes[lost].epoch == wakes[kept].epoch == store.epoch()
    cluster.ask(cluster.owner(slot_of(lost)), "FLUSHALL")
    for key in (lost, kept):
        assert isinstance(store.apply(key, take("b", promoted=wakes[key].epoch)).answer, Granted)
        # Of a copy that was used, a second one is stale; what comes after a loss waits behind its own run.
        again = store.apply(key, Acquire("b", "other", LIFE, promoted=wakes[key].epoch, message=b"message"))
        assert isinstance(again.answer, Stale if key == kept else Parked)


@pytest.mark.promise(
    "Data that a node of a cluster has lost, as a replica that was behind or after a restart with older "
    "data, make another epoch, once for all, also where its connection outlived the loss. Fences grow over "
    "it. What moves in order is no loss",
    name="node with older data",
    broke=(
        "no statement, its answer not heard, new connections not looked at, slots that come back not "
        "looked at, whether a lost connection, MOVED or CLUSTER SLOTS tells of it"
    ),
)
def test_a_grant_that_a_new_primary_does_not_have_is_another_epoch_and_told_once(
    cluster: RedisCluster, store: ClusterStore
) -> None:
    epoch, doomed = store.epoch(), cluster.owner(SLOT)
    replica = cluster.replica_of(doomed)
    assert is_granted(store, KEY, "early")
    doomed.stop_replication()
    lost = fence_of(store, "another key", "a", on=SLOT)
    cluster.lose_owner(SLOT, replica)
    assert fence_of(store, "another key", "b", on=SLOT) > lost
    after = store.reap().epoch
    assert after not in ("", epoch)
    with closing(store_of(cluster)) as other:
        assert fence_of(other, "a third key", "c", on=SLOT) > lost
        assert store.epoch() == other.epoch() == after


@pytest.mark.proves("node with older data")
@pytest.mark.parametrize("is_connected", [True, False])
def test_older_data_of_a_node_that_was_restarted_are_told(
    cluster: RedisCluster, store: ClusterStore, *, is_connected: bool
) -> None:
    epoch, node = store.epoch(), cluster.owner(SLOT)
    replica = cluster.replica_of(node)
    assert is_granted(store, KEY, "a")
    cluster.ask(node, "SAVE")
    lost = fence_of(store, "another key", "a", on=SLOT)
    cluster.ask(replica, "CONFIG", "SET", "cluster-replica-no-failover", "yes")
    if not is_connected:  # no error tells of the restart
        store.close()
    try:
        node.restart(keep_data=True)
        wait_until(cluster.is_whole, "a whole cluster", 30)
        assert cluster.owner(SLOT) is node
        assert fence_of(store, "another key", "b", on=SLOT) > lost
        assert store.reap().epoch not in ("", epoch)
    finally:
        cluster.ask(replica, "CONFIG", "SET", "cluster-replica-no-failover", "no")


@pytest.mark.proves("node with older data")
@pytest.mark.parametrize("news", ["a lost connection", "MOVED", "CLUSTER SLOTS"])
def test_a_loss_of_data_while_another_node_had_the_slots_is_noticed_over_the_same_connection(
    cluster: RedisCluster, store: ClusterStore, news: str
) -> None:
    epoch, first = store.epoch(), cluster.owner(SLOT)
    second = cluster.replica_of(first)
    assert is_granted(store, KEY, "a")
    cluster.promote_replica_of(first)
    if news == "CLUSTER SLOTS":
        store._nodes.primaries()
    assert not is_granted(store, KEY, "b")
    second.stop_replication()
    lost = fence_of(store, "another key", "a", on=SLOT)
    if news == "a lost connection":
        cluster.lose_owner(SLOT, first)
    else:
        cluster.ask(first, "CLUSTER", "FAILOVER", "TAKEOVER")
        cluster.ask(second, "ACL", "SETUSER", "default", "+psync", "+sync")
        wait_until(lambda: cluster.is_whole() and cluster.owner(SLOT) is first, "the first primary", 30)
    if news == "CLUSTER SLOTS":
        store._nodes.primaries()
    assert fence_of(store, "another key", "b", on=SLOT) > lost
    assert store.reap().epoch not in ("", epoch)


@pytest.mark.proves("node with older data")
def test_a_slot_that_moves_without_a_loss_keeps_its_epoch(cluster: RedisCluster, store: ClusterStore) -> None:
    epoch = store.epoch()
    assert is_granted(store, KEY, "a")
    cluster.move(SLOT, cluster.others(SLOT)[0])
    assert store.reap().epoch == epoch
    cluster.promote_replica_of(cluster.owner(SLOT))
    assert store.renew([(KEY, Renew("a", "token of a", LIFE))]) == [True]
    assert store.reap().epoch == epoch


@pytest.mark.promise(
    "The leases of each node end by its own clock, and no dead run is recovered unless all clocks have run "
    "on",
    name="clocks of nodes",
    broke="one clock for all buckets, one clock for the reaper, a step of one of them ignored",
)
def test_each_bucket_recovers_dead_runs_by_the_clock_of_its_own_node(store: ClusterStore) -> None:
    now = 2_000_000_000 * SECOND
    ahead, behind = "key 1", "key 2"
    clocks = [now] * BUCKETS
    clocks[bucket_of(ahead)] += 3600 * SECOND
    for number, bucket in enumerate(store.buckets):
        bucket.clock = partial(clocks.__getitem__, number)
    for key in (ahead, behind):
        assert isinstance(
            store.apply(key, take("a", ttl=SECOND, at_once=True, recovers=True)).answer, Granted
        )
    last = store.reap(recovers_until=0)
    assert last.time == now + 3600 * SECOND
    assert (min(last.times), max(last.times)) == (now, last.time)
    clocks[:] = [it + 2 * SECOND for it in clocks]
    clocks[bucket_of(behind)] += 60 * SECOND  # its slot has moved to a node whose clock is ahead
    assert [wake.key for wake in store.reap(recovers_until=last.time + 2 * SECOND).wake] == [ahead]
    clocks[:] = [it + 2 * SECOND for it in clocks]
    assert [wake.key for wake in store.reap().wake] == [behind]


@pytest.mark.proves("clocks of nodes")
def test_clocks_of_nodes_that_differ_are_a_warning(store: ClusterStore) -> None:
    assert not [warning for warning in store.check() if "clock" in warning]
    store.buckets[7].clock = lambda: 2_000_000_000 * SECOND
    (warning,) = (warning for warning in store.check() if "clock" in warning)
    assert "the clocks of its nodes differ by" in warning


@pytest.mark.promise(
    "A bucket that has lost its epoch gets one, and the nodes that have theirs are asked for no write",
    broke="red before: NOPERM of a node that had all its epochs",
)
def test_a_missing_epoch_is_written_to_no_node_that_has_its_own(cluster: RedisCluster) -> None:
    with logged_in(cluster, f"ACL SETUSER locks reset on >PASSWORD {RIGHTS} +cluster|slots") as store:
        before, owner = store.epoch(), cluster.owner(SLOT)
        cluster.ask(owner, "DEL", f"cx2:{{{bucket_of(KEY)}}}:epoch")
        for other in set(cluster.primaries()) - {owner}:
            cluster.ask(other, "ACL", "SETUSER", "locks", "-set")
        assert store.epoch() not in ("", before)


@pytest.mark.promise(
    "A cluster without `CONFIG` is checked, its user needs `+cluster|slots`, and an error names what is no "
    "cluster, or cannot be reached",
    name="cluster checks",
)
def test_a_check_warns_once_of_what_all_nodes_have_and_needs_neither_config_nor_facts(
    cluster: RedisCluster, store: ClusterStore
) -> None:
    (warning,) = store.check()
    assert warning.startswith(f"store {store.url}: it writes nothing to disk, so a restart loses locks")
    user = f"ACL SETUSER locks reset on >PASSWORD {RIGHTS} +cluster|slots"
    with logged_in(cluster, user) as least:
        assert least.check() == []  # it may not ask CONFIG


@pytest.mark.proves("cluster checks")
@pytest.mark.parametrize("missing", ["cluster|slots", "evalsha", ""])
def test_the_smallest_user_needs_one_right_more_on_a_cluster(cluster: RedisCluster, missing: str) -> None:
    rights = " ".join(right for right in f"{RIGHTS} +cluster|slots".split() if right != f"+{missing}")
    with logged_in(cluster, f"ACL SETUSER locks reset on >PASSWORD {rights}") as store:
        if missing:
            with pytest.raises(StoreUnavailable, match=r"NOPERM .*; grant its user "):
                live(store)
        else:
            live(store)


@pytest.mark.proves("cluster checks")
def test_a_password_that_is_refused_later_is_told_at_once(cluster: RedisCluster, trips: Counter[str]) -> None:
    with logged_in(cluster, f"ACL SETUSER locks reset on >PASSWORD {RIGHTS} +cluster|slots") as store:
        live(store)
        for node in cluster.nodes:
            cluster.ask(node, "ACL", "SETUSER", "locks", "<PASSWORD")
        store.close()
        trips.clear()
        with pytest.raises(StoreUnavailable, match="correct user and password"):
            store.apply(KEY, take("a"))
        assert sum(trips.values()) == 1


@pytest.mark.proves("cluster checks")
def test_a_single_server_says_that_it_is_none(redis_url: str) -> None:
    url = redis_url.replace("redis://", "redis+cluster://")
    with closing(open_store(url)) as store, pytest.raises(StoreUnavailable) as refused:
        store.apply(KEY, take("a"))
    assert str(refused.value).endswith("; it is a single server: name it redis:// in exclusive_store")


@pytest.mark.proves("cluster checks")
def test_a_node_that_cannot_be_reached_is_named_and_others_tell_where_the_slots_are(
    cluster: RedisCluster,
) -> None:
    url, refusal = "redis+cluster://:secret@127.0.0.1:1", r"\*\*@127\.0\.0\.1:1 \(node .*:1\) does not answer"
    with closing(open_store(url)) as store, pytest.raises(StoreUnavailable, match=refusal):
        store.apply(KEY, take("a"))
    with closing(open_store(f"redis+cluster://127.0.0.1:1;127.0.0.1:{cluster.port}")) as store:
        assert is_granted(store, KEY, "a")


@pytest.mark.promise(
    "Eight processes never hold a lock two at once while slots of a cluster move and replicas take over, "
    "in order and from a killed primary",
    broke="ASK followed",
    figure="6 moves of slots, 3 failovers in order, 1 of a killed primary",
)
@pytest.mark.large
def test_eight_processes_are_never_two_at_once_while_slots_move_and_replicas_take_over(
    cluster: RedisCluster, tmp_path: Path
) -> None:
    journal = Journal(tmp_path / "journal")
    url = f"{cluster.url}?socket_timeout=60"
    with ExitStack() as stack:
        processes = [stack.enter_context(Process(url, "roam", journal.path)) for _ in range(8)]
        slots = {key: slot_of(f"x={key}") for key in ("k0", "k1", "k2")}
        for process in processes:
            process.hear()
        for slot in slots.values():
            for to in cluster.others(slot):
                cluster.move(slot, to)
        before = len(journal.events("start"))
        for primary in cluster.primaries():
            cluster.promote_replica_of(primary)
        assert len(journal.events("start")) > before
        doomed = cluster.owner(slots["k0"])
        with stopped(processes):
            for _ in range(2):  # what they had sent before may come after the first
                cluster.replica_of(doomed)
            doomed.kill()
        before = len(journal.events("start", key="k0"))
        wait_until(
            lambda: len(journal.events("start", key="k0")) > before + len(processes), "k0 again", LIMIT
        )
        for process in processes:
            process.end()
    assert {event["key"] for event in journal.events("start")} == set(slots)
    assert all(journal.most_open(key=key) == 1 for key in slots)
    fences = {key: [event["fence"] for event in journal.events("start", key=key)] for key in slots}
    assert all(len(set(its)) == len(its) for its in fences.values())


@contextmanager
def stopped(processes: list[Process]) -> Iterator[None]:
    """Let them stand still meanwhile."""
    for process in processes:
        process.process.send_signal(signal.SIGSTOP)
    yield
    for process in processes:
        process.process.send_signal(signal.SIGCONT)


def let_holder_die(store: ClusterStore, key: str) -> None:
    """Let b wait for a, whose lease has expired."""
    store.apply(key, AcquireAlone("a", "token of a", LIFE))
    store.apply(key, take("b"))
    store.apply(key, AcquireAlone("a", "token of a", 1))


@contextmanager
def logged_in(cluster: RedisCluster, user: str) -> Iterator[ClusterStore]:
    """The store as this user sees it."""
    for node in cluster.nodes:
        cluster.ask(node, *user.split())
    url = f"redis+cluster://locks:PASSWORD@127.0.0.1:{cluster.port}"
    opened = open_store(url, offer=0.002)
    assert isinstance(opened, ClusterStore)
    with closing(opened):
        yield opened


def in_thread(stack: ExitStack, work: Callable[[], Any]) -> Callable[[], Any]:
    """Begin in a thread; return what waits for the result."""
    return stack.enter_context(ThreadPoolExecutor(1)).submit(work).result
