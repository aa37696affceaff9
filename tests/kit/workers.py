"""Workers: the number in the token of a lease names the worker that has it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from celery_exclusive.stores.base import Store
from celery_exclusive.stores.workers import WorkerRecord
from tests.kit.subject import LONG, Subject

LIFE = int(LONG * 1e6)
WORKER = WorkerRecord(0x1A2B, "celery@web1", 4711, "web1", "0.1.0", 1_800_000_000)


@pytest.mark.promise(
    "A holder names its worker: the first digits of its token are its number, and the store knows the node "
    "name, pid, host, release and start of each worker that has kept the namespace within a day. What "
    "another release or program has written there is left out",
    name="workers by number",
    broke="one worker for each number; a record that is not forgotten, or stops a worker; no mark: each red",
)
class WorkerPromises(Subject):
    def test_a_worker_that_keeps_the_namespace_is_known_by_its_number(self) -> None:
        store = self.store_of_workers()
        assert store.workers() == {}
        for _ in range(2):
            assert store.keep_namespace("broker", LIFE, WORKER) == "broker"
        assert self.client().workers() == {WORKER.number: [WORKER]}

    def test_all_workers_with_one_number_are_known(self) -> None:
        store = self.store_of_workers()
        twin = replace(WORKER, nodename="celery@web2", since=WORKER.since + 1)
        other = replace(WORKER, number=1, pid=1)
        for worker in (twin, other, WORKER):
            store.keep_namespace("broker", LIFE, worker)
        assert store.workers() == {1: [other], WORKER.number: [WORKER, twin]}

    def test_a_process_that_is_no_worker_keeps_the_namespace_without_a_record(self) -> None:
        store = self.store_of_workers()
        store.keep_namespace("broker", LIFE)
        assert store.workers() == {}

    def test_the_workers_of_other_namespaces_are_not_known(self) -> None:
        self.store_of_workers().keep_namespace("broker", LIFE, WORKER)
        assert self.client(prefix=f"{self.prefix}x").workers() == {}

    def test_a_worker_of_a_broker_that_the_namespace_does_not_belong_to_is_not_known(self) -> None:
        store = self.store_of_workers()
        store.keep_namespace("broker", LIFE, WORKER)
        twin = replace(WORKER, pid=1)
        owner = store.keep_namespace("other", LIFE, twin)
        assert store.workers()[WORKER.number] == ([WORKER] if owner == "broker" else [WORKER, twin])

    def test_a_worker_that_is_forgotten_is_no_longer_known(self) -> None:
        store = self.store_of_workers()
        twin = replace(WORKER, pid=1)
        store.keep_namespace("broker", LIFE, twin)
        for _ in range(2):
            store.keep_namespace("broker", LIFE, WORKER)
            assert WORKER in store.workers()[WORKER.number]
            for _ in range(2):
                store.forget_worker(WORKER)
            assert store.workers() == {WORKER.number: [twin]}

    def test_a_look_at_the_owner_of_the_namespace_keeps_it_for_no_broker(self) -> None:
        store = self.client()
        for _ in range(2):
            assert store.namespace_owner() == ""
        assert store.keep_namespace("broker", LIFE) == "broker"
        owner = store.keep_namespace("other", LIFE)
        assert store.namespace_owner() in ("", owner)

    @pytest.mark.parametrize("name", ["ünïcode@コード", "'\"\\\n\x00", "\udcff", "x" * 1000])
    def test_a_worker_may_have_any_name(self, name: str) -> None:
        store = self.store_of_workers()
        store.keep_namespace("broker", LIFE, replace(WORKER, nodename=name))
        ((found,),) = store.workers().values()
        assert found == replace(WORKER, nodename=name[:100])

    def store_of_workers(self) -> Store:
        store = self.client()
        if not store.capabilities.listing:
            pytest.skip("this store knows no workers")
        return store
