"""A project's own tests, with its locks in its databases: the caller's transactions are not in the way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.django.databases import postgresql, sqlite
from tests.django.shop_project import Shop, with_file

CALLED = """
import django; django.setup()
from django.contrib.auth.models import User
from django.test import Client
client = Client()
client.force_login(User.objects.create_superuser("root"))
print(client.get("/admin/celery_exclusive/lock/", follow=True).content.decode())
"""


def atomic(database: dict[str, Any], **test: Any) -> dict[str, Any]:
    return {**database, "ATOMIC_REQUESTS": True, "TEST": test}


def passes(shop: Shop) -> None:
    said = shop.manage("test", "--noinput")
    assert "\nOK\n" in said, said
    assert "Found 12 test(s)" in said


@pytest.mark.promise(
    "In `TestCase`, `TransactionTestCase` and under `ATOMIC_REQUESTS` no rollback and no flush undoes a "
    "lock; the test database can be dropped",
    name="Django, tests of a project",
    broke="connections kept open: PostgreSQL would not drop it",
    also="the project's own tests",
)
@pytest.mark.proves("odd records", "Django, admin")
def test_the_shop_s_tests_pass_with_locks_in_a_file_of_their_own(tmp_path: Path) -> None:
    files = {
        alias: atomic(sqlite(tmp_path / f"{alias}.db"), NAME=tmp_path / f"test-{alias}.db")
        for alias in ("default", "locks")
    }
    passes(with_file(tmp_path, DATABASES=files))


@pytest.mark.proves("Django, tests of a project", "Django, admin")
def test_the_shop_s_tests_pass_with_locks_in_the_default_database_in_postgres(postgres_url: str) -> None:
    passes(Shop(DATABASES={"default": atomic(postgresql(postgres_url), NAME="test_shop")}))


@pytest.mark.promise(
    "Django's admin shows the page of locks, whatever the store, and adds, changes and deletes no rows. To "
    "see the page, to release a key, to do so by force, or to pause it, and to drop a task need permissions "
    "of their own; each action is logged",
    name="Django, admin",
    broke="a permission not asked for; nothing logged",
    also="the project's own tests, `tests/django/shop/orders/tests.py`",
)
def test_the_admin_tells_that_tables_are_missing_and_shows_a_page_of_another_store(tmp_path: Path) -> None:
    shop = with_file(tmp_path)
    shop.manage("migrate")
    said = shop.run("-c", CALLED).stdout
    assert "lacks the tables for locks: run `python manage.py migrate celery_exclusive --data" in said
    shop.settings["CELERY_EXCLUSIVE_STORE"] = "memory://"
    page = shop.run("-c", CALLED.replace("root", "other")).stdout
    assert "No key needs a person." in page
    assert "memory://" in page
