"""The store behind a cache of Django: which server it is, and in which namespace."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import AbstractContextManager, closing
from typing import Any

import pytest
from celery import Celery
from celery.concurrency.prefork import TaskPool

from celery_exclusive import install
from celery_exclusive.core.operations import Acquire, Granted, Held
from celery_exclusive.core.records import SECOND
from celery_exclusive.errors import OptionError
from celery_exclusive.stores.base import open_store
from celery_exclusive.stores.django_cache import redis_of
from celery_exclusive.stores.memcached.store import MemcachedStore
from celery_exclusive.stores.memory import MemoryStore
from celery_exclusive.stores.redis.store import RedisStore
from celery_exclusive.worker.checks import refuse_unfit, warnings
from tests.django.databases import configured
from tests.memcached import MemcachedServer

pytestmark = pytest.mark.promise(
    "`django-cache://alias`: the Redis or memcached behind it is spoken to directly; sites of different "
    "`KEY_PREFIX`, or with a `db` of their own in OPTIONS, share no lock; what cannot keep locks, an alias "
    "that is not there and a process without Django settings are refused",
    broke="KEY_PREFIX, `db` left out; a login, another client class, a missing alias accepted",
)

LOCAL = r"django-cache://dev \(LocMemCache\)"
DJANGO = "django.core.cache.backends."
MEMCACHED = [f"{DJANGO}memcached.PyMemcacheCache", f"{DJANGO}memcached.PyLibMCCache"]
REDIS = [f"{DJANGO}redis.RedisCache", "django_redis.cache.RedisCache"]


def caches(**others: dict[str, Any]) -> AbstractContextManager[None]:
    return configured({}, CACHES={"default": {"BACKEND": f"{DJANGO}dummy.DummyCache"}, **others})


def take(id: str) -> Acquire:
    return Acquire(id, "token", 60 * SECOND)


@pytest.mark.parametrize("backend", REDIS, ids=["django", "django-redis"])
def test_a_redis_is_spoken_to_directly(redis_url: str, backend: str) -> None:
    with (
        caches(locks={"BACKEND": backend, "LOCATION": [redis_url, "redis://replica"]}),
        closing(open_store("django-cache://locks")) as behind,
        closing(open_store(redis_url)) as direct,
    ):
        assert isinstance(behind, RedisStore)
        assert isinstance(behind.apply("key", take("a")).answer, Granted)
        assert isinstance(direct.apply("key", take("b")).answer, Held)


@pytest.mark.parametrize("backend", MEMCACHED)
@pytest.mark.parametrize("place", [lambda server: server, lambda server: [server]], ids=["text", "list"])
def test_a_memcached_is_spoken_to_directly(
    memcached_url: str, backend: str, place: Callable[[str], Any]
) -> None:
    location = place(memcached_url.removeprefix("memcached://"))
    with (
        caches(locks={"BACKEND": backend, "LOCATION": location}),
        closing(open_store("django-cache://locks")) as behind,
        closing(open_store(memcached_url)) as direct,
    ):
        assert isinstance(behind, MemcachedStore)
        assert isinstance(behind.apply("key", take("a")).answer, Granted)
        assert isinstance(direct.apply("key", take("b")).answer, Held)


@pytest.mark.parametrize("beginning", ["unix:", ""], ids=["unix", "path"])
def test_a_memcached_behind_a_socket_file(beginning: str) -> None:
    with MemcachedServer(has_port=False) as server:
        location = beginning + server.url.removeprefix("memcached://")
        with (
            caches(locks={"BACKEND": MEMCACHED[0], "LOCATION": location}),
            closing(open_store("django-cache://locks")) as store,
        ):
            assert isinstance(store.apply("key", take("a")).answer, Granted)


@pytest.mark.parametrize("kind", ["redis", "memcached"])
def test_sites_with_different_key_prefixes_do_not_share_locks(
    kind: str, request: pytest.FixtureRequest
) -> None:
    url = request.getfixturevalue(f"{kind}_url")
    backend, location = (
        (REDIS[0], url) if kind == "redis" else (MEMCACHED[0], url.removeprefix("memcached://"))
    )
    site = {"BACKEND": backend, "LOCATION": location}
    with (
        caches(one={**site, "KEY_PREFIX": "one"}, two={**site, "KEY_PREFIX": "two"}, same={**site}),
        closing(open_store("django-cache://one")) as one,
        closing(open_store("django-cache://two")) as two,
        closing(open_store("django-cache://same")) as same,
        closing(open_store("django-cache://one")) as again,
    ):
        for id, store in {"a": one, "b": two, "c": same}.items():
            assert isinstance(store.apply("key", take(id)).answer, Granted)
        assert isinstance(again.apply("key", take("d")).answer, Held)


@pytest.mark.promise(
    "Locks of a Django cache in memory are in memory, and a worker is told of a store that processes share",
    name="Django, cache in memory",
    broke="called memory://django-cache-dev; no such store named",
)
def test_a_cache_in_memory_keeps_locks_in_memory() -> None:
    with caches(tests={"BACKEND": f"{DJANGO}locmem.LocMemCache"}):
        store = open_store("django-cache://tests", prefix="locmem")
        assert isinstance(store, MemoryStore)
        assert store.capabilities.one_process
        assert store.url == "django-cache://tests (LocMemCache)"


@pytest.mark.proves("Django, cache in memory")
def test_a_worker_with_a_cache_in_memory_is_told_of_a_store_that_processes_share() -> None:
    app = install(Celery("dev", broker="redis://", set_as_current=False))
    app.conf.exclusive_store = "django-cache://dev"
    services: Any = app._celery_exclusive  # type: ignore[attr-defined]
    with caches(dev={"BACKEND": f"{DJANGO}locmem.LocMemCache"}):
        with pytest.raises(OptionError, match=f"^exclusive_store: {LOCAL} is the memory") as refused:
            refuse_unfit(services, TaskPool)
        (warned,) = warnings(services)
        assert re.match(f"store {LOCAL}: it is the memory of this process", warned)
        for text in (str(refused.value), warned):
            assert "a store that processes share" in text
            assert "the file sqlite:////path/to/locks.db" in text
    app.close()


@pytest.mark.parametrize(
    ("cache", "text"),
    [
        ({"BACKEND": f"{DJANGO}db.DatabaseCache"}, "is a DatabaseCache, which cannot .* django://default"),
        ({"BACKEND": f"{DJANGO}filebased.FileBasedCache"}, "is a FileBasedCache, .* django://default"),
        ({"BACKEND": f"{DJANGO}dummy.DummyCache"}, "is a DummyCache"),
        ({"BACKEND": MEMCACHED[0], "LOCATION": ["a:1", "b:1"]}, "several servers"),
        ({"BACKEND": MEMCACHED[0], "LOCATION": "a:1;b:1"}, "several servers"),
        ({"BACKEND": MEMCACHED[1], "LOCATION": "a", "OPTIONS": {"username": "me"}}, "with a login"),
        (
            {"BACKEND": REDIS[1], "LOCATION": "redis://a", "OPTIONS": {"CLIENT_CLASS": "a.ShardClient"}},
            "is a RedisCache, which cannot keep locks",
        ),
    ],
)
def test_a_cache_that_cannot_keep_locks_is_refused(cache: dict[str, Any], text: str) -> None:
    with caches(locks=cache), pytest.raises(OptionError, match=text):
        open_store("django-cache://locks")


@pytest.mark.parametrize("url", ["django-cache://", "django-cache://lock", "django-cache://locks/1"])
def test_an_alias_that_is_not_there_is_refused(url: str) -> None:
    with caches(locks={}), pytest.raises(OptionError, match="there are default, locks"):
        open_store(url)


def test_a_process_without_django_settings_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DJANGO_SETTINGS_MODULE", raising=False)
    with pytest.raises(OptionError, match="DJANGO_SETTINGS_MODULE"):
        open_store("django-cache://default")


@pytest.mark.parametrize(
    ("location", "options", "url"),
    [
        ("redis://a/1", {"PASSWORD": "s&cret"}, "redis://a/1?password=s%26cret"),
        ("redis://a", {"db": "10"}, "redis://a?db=10"),
        ("redis://a/", {"db": 3, "password": "x"}, "redis://a/?password=x&db=3"),
        ("redis://a/1", {"db": 3}, "redis://a/1"),
        ("unix:///run/1/redis.sock?db=1", {"db": 3}, "redis+socket:///run/1/redis.sock?db=1"),
        ("unix:///run/1/redis.sock", {"db": 3}, "redis+socket:///run/1/redis.sock?db=3"),
        ("rediss://a/1", {"ssl_ca_certs": "/ca"}, "rediss://a/1?ssl_ca_certs=%2Fca"),
        ("rediss://a/1?ssl_ca_certs=own", {"ssl_ca_certs": "/ca"}, "rediss://a/1?ssl_ca_certs=own"),
        (
            "rediss://a/1",
            {"CONNECTION_POOL_KWARGS": {"ssl_cert_reqs": None, "max_connections": 5}},
            "rediss://a/1?ssl_cert_reqs=none",
        ),
    ],
)
def test_options_of_a_cache_are_part_of_its_url(location: str, options: dict[str, Any], url: str) -> None:
    assert redis_of({"BACKEND": REDIS[0], "LOCATION": location, "OPTIONS": options}) == url


@pytest.mark.promise(
    "Of several URLs in one `LOCATION` of a cache in Redis the first is the store; a `;` or `,` in a "
    "password does not end it",
    broke="split at each of these letters",
)
@pytest.mark.parametrize("backend", REDIS, ids=["django", "django-redis"])
@pytest.mark.parametrize(
    ("location", "url"),
    [
        ("redis://a/1;redis://b/1", "redis://a/1"),
        ("redis://a/1, redis://b/1", "redis://a/1"),
        ("unix:///run/a.sock;unix:///run/b.sock", "redis+socket:///run/a.sock"),
        ("redis://:one;two@a/1", "redis://:one;two@a/1"),
        ("redis://:one,two@a/1", "redis://:one,two@a/1"),
        ("redis://:one;two@a/1;rediss://:three,four@b/1", "redis://:one;two@a/1"),
        (["redis://:one;two@a/1", "redis://b/1"], "redis://:one;two@a/1"),
    ],
)
def test_of_several_servers_in_one_text_the_first_is_written_to(
    backend: str, location: Any, url: str
) -> None:
    assert redis_of({"BACKEND": backend, "LOCATION": location}) == url
