"""The recipes' locks outside of tasks: what they return, and what they tell."""

from __future__ import annotations

import subprocess
import sys

import pytest
from celery import Celery

from celery_exclusive import lock
from celery_exclusive.compat.cache_lock import CacheLock
from celery_exclusive.compat.cookbook import memcache_lock


def test_memcache_lock_yields_whether_it_is_held(app: Celery) -> None:
    with memcache_lock("a", "oid", app=app) as outer, memcache_lock("a", app=app) as inner:
        assert (outer, inner) == (True, False)
        assert lock("a", app=app).locked()
    assert not lock("a", app=app).locked()


def test_an_error_in_the_block_of_memcache_lock_releases_it(app: Celery) -> None:
    with pytest.raises(ZeroDivisionError), memcache_lock("a", app=app):
        _ = 1 / 0
    with memcache_lock("a", app=app) as acquired:
        assert acquired


def test_a_cache_lock_answers_at_once_and_releases_only_its_own(app: Celery) -> None:
    one, other = CacheLock("a", 60, app=app), CacheLock("a", app=app)
    assert one.acquire()
    assert not one.acquire()
    assert not other.acquire()
    other.release()
    del other
    assert one.locked()
    one.release()
    one.release()
    assert not one.locked()
    assert one.acquire()
    one.release()


@pytest.mark.proves("misspelt old options")
@pytest.mark.parametrize(("module", "option"), [("cookbook", "lock_expire"), ("cache_lock", "timeout")])
def test_changed_behaviour_of_a_recipe_is_warned_of_once_at_import(module: str, option: str) -> None:
    name = f"celery_exclusive.compat.{module}"
    code = f"import {name}\nimport {name}"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stderr.count("CompatWarning") == 1
    assert f"<string>:1: CompatWarning: {name}: {option}" in ran.stderr
    assert "wait=0" in ran.stderr
