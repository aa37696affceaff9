"""Each thing that can be wrong with the locks of a Django project is one message of `manage.py check`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.django.databases import ENGINES, postgresql, sqlite
from tests.django.shop_project import Shop, with_file

FILE = sqlite(Path("/nowhere/shop.db"))
DUMMY = {"ENGINE": ENGINES + "dummy"}


@pytest.mark.promise(
    "Each misconfiguration of a Django project is one message of `manage.py check`",
    name="Django, checks",
    broke="routers not asked",
)
@pytest.mark.parametrize(
    ("settings", "found", "said"),
    [
        ({"CELERY_EXCLUSIV_STORE": "x"}, "E001", "did you mean 'CELERY_EXCLUSIVE_STORE'?"),
        (
            {"CELERY_EXCLUSIVE_STORE": None, "CELERY_BROKER_URL": "amqp://mq"},
            "E001",
            "add one line",
        ),
        ({"CELERY_EXCLUSIVE_STORE": "postgesql://db"}, "E002", "did you mean 'postgresql'?"),
        ({"CELERY_EXCLUSIVE_STORE": "django://lock"}, "E003", "did you mean 'locks'?"),
        ({"CELERY_EXCLUSIVE_STORE": "django://"}, "E003", "write django://default"),
        ({"CELERY_EXCLUSIVE_STORE": "django://dummy"}, "E004", "of the kind unknown"),
        (
            {"DATABASE_ROUTERS": ["shop.routers.NoLocks"]},
            "E005",
            "allow_migrate('locks', 'celery_exclusive')",
        ),
        ({"APPS": []}, "W006", "celery_exclusive.contrib.django is not in INSTALLED_APPS"),
        ({"CELERY_EXCLUSIVE_STORE": "django://default"}, "W007", "an alias of their own"),
        ({"CELERY_EXCLUSIVE_STORE": "redis://cache"}, "I008", "its migrations make no tables"),
        ({}, None, "no issues"),
        ({"APPS": [], "CELERY_EXCLUSIVE_STORE": "redis://cache"}, None, "no issues"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_settings(settings: dict[str, Any], found: str | None, said: str) -> None:
    databases = {"default": FILE, "locks": FILE, "dummy": DUMMY}
    shop = Shop(**{"DATABASES": databases, "CELERY_EXCLUSIVE_STORE": "django://locks", **settings})
    assert shop.check() == ([found] if found else [])
    assert said in shop.said


@pytest.mark.proves("Django, checks")
def test_a_project_that_does_not_import_its_celery_app() -> None:
    shop = Shop(DATABASES={"default": FILE})
    assert shop.check(SHOP_WITHOUT_CELERY="1") == ["E001"]
    assert "import that in the __init__.py beside it" in shop.said


@pytest.mark.proves("Django, checks")
def test_a_database_that_cannot_be_used(tmp_path: Path) -> None:
    shop = with_file(tmp_path / "missing")
    assert shop.check("--database", "locks") == ["E010"]
    assert "there is no folder" in shop.said
    assert shop.check("--database", "default") == []


@pytest.mark.proves("Django, checks")
def test_a_postgres_server_that_does_not_answer() -> None:
    shop = Shop(DATABASES={"default": postgresql("postgresql://tests@127.0.0.1:1/postgres")})
    assert shop.check() == []
    assert "check that it runs" in shop.run("manage.py", "check", "--database", "default").stdout


@pytest.mark.proves("Django, checks")
def test_tables_of_another_release(tmp_path: Path, postgres_url: str, postgres_database: Any) -> None:
    shop = Shop(DATABASES={"default": postgresql(postgres_url)})
    shop.manage("migrate", "celery_exclusive")
    with postgres_database.connect() as connection:
        connection.execute("UPDATE exclusive2_version SET version = 99")
    assert shop.check("--database", "default") == ["E010"]
    assert "tables of another release of celery-exclusive (version 99" in shop.said


@pytest.mark.proves("Django, checks")
def test_a_warning_of_the_store_is_a_warning_of_the_check(tmp_path: Path) -> None:
    shop = with_file(tmp_path, DATABASE_ROUTERS=[])
    shop.manage("migrate", "--database=locks")
    assert shop.check("--database", "locks") == ["W011"]
    assert "tables of others" in shop.said


@pytest.mark.proves("Django, checks")
def test_an_admin_without_jinja(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.modules['jinja2'] = None")
    shop = with_file(tmp_path)
    shop.manage("check")
    path = os.pathsep.join([f"{tmp_path}", os.environ.get("PYTHONPATH", "")])
    assert shop.check(PYTHONPATH=path) == ["W012"]
    assert "pip install 'celery-exclusive[django]'" in shop.said
