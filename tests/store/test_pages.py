"""Pages of a line on Redis: hostile ids, long messages, and what a page costs the server."""

from __future__ import annotations

import pytest

from celery_exclusive.core.operations import Acquire
from celery_exclusive.core.records import SECOND
from celery_exclusive.stores.base import TASKS_PER_PAGE, Cursor, Page, Store, open_store
from celery_exclusive.stores.text import to_bytes, to_text
from tests.servers import RedisServer

LIFE = 60 * SECOND
HOSTILE = [b"\xff\xfe", b"a", b"a\x00", b"aa", b"B", "ä".encode(), b"\xed\xa0\x80", b" ", b"z" * 300]


@pytest.fixture
def store(redis_url: str) -> Store:
    store = open_store(redis_url)
    store.apply("key", Acquire("holder", "token", LIFE))
    return store


def park(store: Store, id: str, message: bytes = b"message") -> None:
    store.apply("key", Acquire(id, "token", LIFE, message=message))


def rest(store: Store, after: Cursor | None = None, count: int = 1) -> list[str]:
    page = store.line("key", after, count)
    ids = [place.waiting.id for place in page.places]
    return ids + (rest(store, page.next, count) if page.next else [])


@pytest.mark.proves("pages of a line")
@pytest.mark.parametrize("kind", ["q", "a"])
def test_ids_of_other_programs_at_one_place_are_each_on_one_page(
    redis_server: RedisServer, store: Store, kind: str
) -> None:
    park(store, "first")
    name = f"cx2:{{0}}:{kind}:key"
    with redis_server.client() as redis:
        redis.zadd(name, dict.fromkeys(HOSTILE, 2**53 - 1))
        in_order = [to_text(id) for id in redis.zrange(name, 0, -1) if id != b"first"]
        assert rest(store) == rest(store, count=4) == ["first", *in_order]
        for place, id in enumerate(in_order):
            after = Cursor({"q": "waiting", "a": "aside"}[kind], 2**53 - 1, id)
            assert rest(store, after) == in_order[place + 1 :]
            assert redis.zrem(name, to_bytes(id))
            assert rest(store, after) == in_order[place + 1 :]


@pytest.mark.proves("pages of a line")
def test_a_page_of_long_messages_has_fewer_tasks(store: Store) -> None:
    ids = [f"{number}" for number in range(250)]
    for id in ids:
        park(store, id, bytes(20_000))
    page = store.line("key", count=1000)
    assert len(page.places) == 100
    assert rest(store, count=1000) == ids


@pytest.mark.proves("pages of a line")
def test_no_page_holds_the_server_up_for_long(store: Store) -> None:
    ids = [f"{number}" for number in range(TASKS_PER_PAGE + 1)]
    for id in ids:
        park(store, id)
    page = store.line("key", count=10_000)
    assert len(page.places) == TASKS_PER_PAGE
    assert rest(store, page.next) == ids[-1:]


@pytest.mark.proves("pages of a line")
def test_a_task_whose_message_was_deleted_is_shown_without_one(
    redis_server: RedisServer, store: Store
) -> None:
    park(store, "a")
    with redis_server.client() as redis:
        redis.delete("cx2:{0}:m:key")
    (place,) = store.line("key").places
    assert (place.waiting.id, place.message) == ("a", b"")


@pytest.mark.proves("pages of a line")
def test_messages_that_another_program_has_overwritten_are_none(
    redis_server: RedisServer, store: Store
) -> None:
    park(store, "a")
    with redis_server.client() as redis:
        redis.set("cx2:{0}:m:other", "x")
    assert store.messages_of([("other", "a"), ("key", "a")]) == [b"", b"message"]


@pytest.mark.proves("pages of a line")
@pytest.mark.parametrize("score", ["inf", "1.5"])
def test_a_place_that_is_no_time_is_damage(redis_server: RedisServer, store: Store, score: str) -> None:
    with redis_server.client() as redis:
        redis.execute_command("ZADD", "cx2:{0}:q:key", score, "a")
    with pytest.raises(Exception, match="lock key are damaged"):
        store.line("key")
    assert store.line("other") == Page()
