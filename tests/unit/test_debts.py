"""What is owed to a store is given back when it answers, also by a child that was forked meanwhile."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import pytest

from celery_exclusive.core.operations import Release
from celery_exclusive.debts import Debts
from celery_exclusive.errors import StoreUnavailable
from tests.worker.journal import eventually

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")


class SilentStore:
    def __init__(self) -> None:
        self.is_silent = True
        self.got: list[str] = []

    def apply(self, key: str, _: Any) -> None:
        if self.is_silent:
            raise StoreUnavailable("no answer")
        self.got.append(key)


def test_all_is_given_back_in_a_child_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("celery_exclusive.debts._FIRST_PAUSE", 0.01)
    store = SilentStore()
    installation: Any = SimpleNamespace(store=store)
    debts = Debts(installation)
    debts.add("before", Release("a", "t", done=False))
    child = os.fork()
    try:
        store.is_silent = False
        debts.add("after", Release("b", "t", done=False))
        eventually(lambda: store.got == ["before", "after"], "both", 30)
    finally:
        if not child:
            os._exit(len(store.got) != 2)
    assert os.waitpid(child, 0) == (child, 0)
    debts.add("when the thread has ended", Release("c", "t", done=False))
    eventually(lambda: len(store.got) == 3, "a third")
