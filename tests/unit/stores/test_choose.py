"""Which store an app gets that names none: every line of the table in stores.md, and some more."""

from __future__ import annotations

import re
import ssl
import subprocess
import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from celery import Celery
from django.conf import LazySettings

from celery_exclusive.errors import OptionError
from celery_exclusive.stores import base
from celery_exclusive.stores.base import open_store
from celery_exclusive.stores.choose import choose
from celery_exclusive.stores.redis import address, sentinel

STORES = Path(__file__).parents[3] / "docs/evidence/which-store.md"
DJANGO_REDIS = "django.core.cache.backends.redis.RedisCache"
LOCAL_MEMORY = "django.core.cache.backends.locmem.LocMemCache"


CACHES = None, "redis://cache/2"
RESULTS = None, "rpc://", "redis://results/1", "db+postgresql://db/app", "db+sqlite:////srv/results.db"
"""What "any" stands for."""


class Line(NamedTuple):
    """One line of the table, for one of the brokers, result backends and caches that it names."""

    broker: str
    result_backend: str | None
    cache: str | None
    extra: str | None
    store: str | None
    origin: str


def lines_of_the_table() -> Iterator[Line]:
    section = STORES.read_text().partition("## Which store")[2].partition("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("| `")]
    assert rows
    for brokers, backends, caches, extra, store in rows:
        found = re.match(r"`(.+?)` \((.+?)\)", store)
        for broker, backend, cache in product(
            values(brokers), values(backends, RESULTS), values(caches, CACHES)
        ):
            assert broker
            yield Line(broker, backend, cache, values(extra)[0], *(found.groups() if found else (None, "")))


def values(cell: str, any_of: tuple[str | None, ...] = ()) -> list[str | None]:
    """What is in backquotes, without a remark that follows; "none" is one of them."""
    if cell == "any":
        return [*any_of]
    return [next(iter(re.findall(r"`(.+?)`", part)), None) for part in cell.split(", ")] or [None]


LINES = list(lines_of_the_table())


def conf_of(broker: str | None, result_backend: str | None, **more: Any) -> Any:
    app = Celery("chooser", broker=broker, set_as_current=False)
    app.conf.update({"result_backend": result_backend, **more})
    return app.conf


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CELERY_BROKER_URL", "CELERY_BROKER_WRITE_URL", "CELERY_RESULT_BACKEND"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delitem(sys.modules, "django.conf", raising=False)


def use_django(
    monkeypatch: pytest.MonkeyPatch, cache: dict[str, Any], engine: str = "", **database: object
) -> None:
    """As in a process that has configured Django: its settings can be made only once per process."""
    settings = LazySettings()
    settings.configure(CACHES={"default": cache}, DATABASES={"default": {"ENGINE": engine, **database}})
    monkeypatch.setitem(sys.modules, "django.conf", SimpleNamespace(settings=settings))


@pytest.mark.promise(
    "Every line of [which-store.md](evidence/which-store.md) is so; a missing driver names its extra",
    name="which store",
    broke="Django not looked at",
)
@pytest.mark.parametrize("line", LINES, ids=lambda line: f"{line.broker} {line.result_backend} {line.cache}")
def test_every_line_of_the_table_is_so(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    if line.cache:
        use_django(monkeypatch, {"BACKEND": DJANGO_REDIS, "LOCATION": line.cache})
    folders = dict.fromkeys(("data_folder_in", "data_folder_out"), "/var/spool/proj")
    options = {**folders, "master_name": "main"}
    conf = conf_of(
        line.broker,
        line.result_backend,
        broker_transport_options=options,
        result_backend_transport_options=options,
    )
    if not line.store:
        with pytest.raises(OptionError, match=r'add one line: app\.conf\.exclusive_store = "redis://'):
            choose(conf, None)
        return
    url, origin = choose(conf, None)
    assert (url.removesuffix("?master_name=main"), origin) == (line.store, line.origin)
    assert open_store(url).capabilities.line


TLS = {"ssl_cert_reqs": ssl.CERT_REQUIRED, "ssl_ca_certs": "/etc/our ca.pem", "ssl_keyfile": None}
IN_A_URL = "ssl_cert_reqs=required&ssl_ca_certs=%2Fetc%2Four+ca.pem"


@pytest.mark.promise(
    "A store that is found in `broker_url` or `result_backend` has the TLS that `broker_use_ssl` or "
    "`redis_backend_use_ssl` says",
    name="TLS of Celery's settings",
    broke=(
        "red before: a plain connection to a TLS port, or a certificate that was refused though Celery "
        "does not check it"
    ),
)
@pytest.mark.parametrize(
    ("broker", "result_backend", "settings", "store"),
    [
        ("redis://mq/1", None, {"broker_use_ssl": TLS}, f"rediss://mq/1?{IN_A_URL}"),
        ("rediss://mq", None, {"broker_use_ssl": {"ssl_cert_reqs": None}}, "rediss://mq?ssl_cert_reqs=none"),
        (
            "rediss://mq?ssl_ca_certs=/own",
            None,
            {"broker_use_ssl": TLS},
            f"rediss://mq?{IN_A_URL}&ssl_ca_certs=/own",
        ),
        (
            "redis://mq",
            None,
            {"broker_use_ssl": {"ssl_min_version": ssl.TLSVersion.TLSv1_3, "ssl_validate_ocsp": False}},
            "rediss://mq?ssl_min_version=772",
        ),
        (
            "redis://mq",
            None,
            {"broker_use_ssl": {"ssl_validate_ocsp": True}},
            "rediss://mq?ssl_validate_ocsp=True",
        ),
        ("redis://mq", None, {"broker_use_ssl": True}, "redis://mq"),
        ("redis://mq", None, {"broker_use_ssl": {}}, "redis://mq"),
        ("redis://mq", "redis://results", {"redis_backend_use_ssl": TLS}, "redis://mq"),
        ("amqp://mq", "redis://results", {"broker_use_ssl": TLS}, "redis://results"),
        ("amqp://mq", "rediss://r", {"redis_backend_use_ssl": TLS}, f"rediss://r?{IN_A_URL}"),
        ("redis+socket:///mq", None, {"broker_use_ssl": TLS}, "redis+socket:///mq"),
    ],
)
def test_celery_s_settings_for_tls_count_for_the_store_that_is_found(
    broker: str, result_backend: str | None, settings: dict[str, Any], store: str
) -> None:
    assert choose(conf_of(broker, result_backend, **settings), None)[0] == store
    named = "redis://another"
    assert choose(conf_of(broker, result_backend, **settings), named)[0] == named


@pytest.mark.proves("which store")
@pytest.mark.parametrize(
    ("extra", "store"), sorted({(line.extra, line.store) for line in LINES if line.extra and line.store})
)
def test_a_missing_driver_names_the_extra_that_brings_it(extra: str, store: str) -> None:
    module = {"postgresql": "psycopg", "mysql": "pymysql", "mariadb": "pymysql"}.get(extra, extra)
    brings = "mysql" if extra == "mariadb" else extra  # they are one
    code = (
        f"import sys; sys.modules[{module!r}] = None\n"
        f"from celery_exclusive.stores.base import open_store; open_store({store!r})"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert re.search(
        rf"OptionError: exclusive_store: .*pip install 'celery-exclusive\[{brings}\]'", run.stderr
    )


@pytest.mark.proves("PostgreSQL, misuse")
def test_a_database_whose_extra_is_not_installed_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "celery_exclusive.stores.sql.postgres", raising=False)
    monkeypatch.setitem(sys.modules, "psycopg", None)
    needed = r"postgresql\+psycopg2 \(needs celery-exclusive\[postgresql\]\)"
    results = conf_of("amqp://mq", "db+postgresql+psycopg2://me:secret@db/app")
    with pytest.raises(OptionError, match=rf"broker amqp, result backend db\+{needed}"):
        choose(results, None)
    broker = "sqla+postgresql+psycopg2://me:secret@db/mq"
    assert choose(conf_of(broker, "redis://results/1"), None) == ("redis://results/1", "result backend")
    with pytest.raises(OptionError, match=rf"broker sqla\+{needed}"):
        choose(conf_of(broker, None), None)


@pytest.mark.parametrize(
    ("broker", "results", "setting"),
    [
        ("amqp://mq", "db+postgresql://me:secret@db/app", "database_engine_options"),
        ("sqla+mysql://me:secret@db/app", None, "broker_transport_options"),
    ],
)
def test_a_database_whose_tls_is_not_in_its_url_is_to_be_named(
    broker: str, results: str | None, setting: str
) -> None:
    conf = conf_of(broker, results, **{setting: {"connect_args": {"sslmode": "verify-full"}}})
    with pytest.raises(OptionError, match=f"sslmode in {setting}.*name it with these options in its URL"):
        choose(conf, None)
    assert choose(conf, "redis://named")[0] == "redis://named"
    plain = conf_of(broker, results, **{setting: {"connect_args": {"connect_timeout": 3}}})
    assert "db/app" in choose(plain, None)[0]


def test_a_memcached_is_passed_over_since_it_keeps_no_line() -> None:
    results = "cache+memcached://mc:11211/"
    assert choose(conf_of("redis://mq/0", results), None) == ("redis://mq/0", "broker")
    with pytest.raises(
        OptionError, match=r"result backend cache\+memcached \(keeps no line: name memcached://"
    ):
        choose(conf_of("amqp://mq", results), None)


def test_the_first_of_several_brokers_counts() -> None:
    assert choose(conf_of("redis://one/1;redis://two/1", None), None) == ("redis://one/1", "broker")
    conf = conf_of(None, None, broker_url=["amqp://one", "redis://two"])
    with pytest.raises(OptionError, match="broker amqp"):
        choose(conf, None)


def test_the_environment_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CELERY_RESULT_BACKEND", "redis://results/3")
    assert choose(conf_of("amqp://mq", None), None) == ("redis://results/3", "result backend")


def test_exclusive_store_goes_before_broker_and_result_backend() -> None:
    conf = conf_of("redis://mq/0", "redis://results/1")
    assert choose(conf, "redis://locks/2") == ("redis://locks/2", "exclusive_store")


def test_publisher_and_worker_with_two_folders_of_the_file_system_broker_find_one_store() -> None:
    folders = {"data_folder_in": "/a", "data_folder_out": "/b"}
    turned = {"data_folder_in": "/b", "data_folder_out": "/a"}
    stores = [
        choose(conf_of("filesystem://", None, broker_transport_options=o), None) for o in (folders, turned)
    ]
    assert stores == [("sqlite:////a/locks.db", "broker")] * 2
    here = str(Path("data_in/locks.db").absolute())
    assert choose(conf_of("filesystem://", None), None) == (f"sqlite:///{here}", "broker")


@pytest.mark.parametrize(
    ("url", "store"),
    [
        ("sqlite:///app.db", "sqlite:///app.db.locks"),
        ("sqlite+pysqlite:////srv/app.db?timeout=30", "sqlite:////srv/app.db.locks"),
        ("sqlite://", None),
        ("sqlite:///:memory:", None),
    ],
)
@pytest.mark.parametrize("origin", ["broker", "result backend"])
def test_beside_an_sqlite_file_means_in_a_file_of_their_own(url: str, store: str | None, origin: str) -> None:
    if origin == "broker":
        conf, name = conf_of(f"sqla+{url}", None), r"sqla\+sqlite"
    else:
        conf, name = conf_of("amqp://localhost", f"db+{url}"), r"db\+sqlite"
    if store:
        assert choose(conf, None) == (store, origin)
    else:
        with pytest.raises(OptionError, match=f"{origin} {name} in memory"):
            choose(conf, None)


@pytest.mark.proves("one store for all processes")
@pytest.mark.parametrize("results", ["db+sqlite:////srv/results.db", "db+sqlite+pysqlite:///results.db"])
def test_an_sqlite_file_is_no_store_for_a_broker_that_other_machines_reach(results: str) -> None:
    with pytest.raises(
        OptionError, match=r"result backend db\+sqlite.* \(serves one machine, and the broker"
    ):
        choose(conf_of("amqp://mq", results), None)


@pytest.mark.proves("one store for all processes")
@pytest.mark.parametrize(
    "broker",
    [
        "redis://mq/0",
        "redis://mq/0;redis://other/0",
        "sentinel://a;sentinel://b",
        "sqla+postgresql://db/mq",
        "sqla+sqlite:////srv/mq.db",
        "filesystem://",
        "memory://",
    ],
)
def test_a_process_that_only_publishes_finds_the_store_of_its_workers(
    broker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It shares the broker with them, maybe as its `broker_write_url`, and nothing else."""
    conf_of_worker = conf_of(
        broker, "redis://results/1", result_backend_transport_options={"master_name": "r"}
    )
    found = choose(conf_of_worker, None)
    assert found == choose(conf_of("amqp://unused", None, broker_write_url=broker), None)
    use_django(
        monkeypatch, {"BACKEND": DJANGO_REDIS, "LOCATION": "redis://c"}, "django.db.backends.postgresql"
    )
    for results in (None, "rpc://", "django-db", "db+postgresql://db/app", "db+sqlite:////srv/results.db"):
        assert choose(conf_of(broker, results), None) == found


@pytest.mark.parametrize(
    ("cache", "store"),
    [
        ({"LOCATION": "redis://one/1,redis://two/1"}, "redis://one/1"),
        ({"LOCATION": ["redis://one/1", "redis://two/1"]}, "redis://one/1"),
        ({"LOCATION": "unix:///run/r.sock?db=3"}, "redis+socket:///run/r.sock?db=3"),
        (
            {"LOCATION": "redis://one/1", "OPTIONS": {"username": "me", "password": "p&w"}},
            "redis://one/1?username=me&password=p%26w",
        ),
        (
            {
                "BACKEND": "django_redis.cache.RedisCache",
                "LOCATION": "rediss://one/1?ssl_cert_reqs=none",
                "OPTIONS": {"CLIENT_CLASS": "django_redis.client.DefaultClient", "PASSWORD": "pw"},
            },
            "rediss://one/1?ssl_cert_reqs=none&password=pw",
        ),
    ],
)
def test_the_server_of_djangos_cache_is_spoken_to_directly(
    cache: dict[str, Any], store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_django(monkeypatch, {"BACKEND": DJANGO_REDIS, **cache})
    assert choose(conf_of("amqp://mq", "rpc://"), None) == (store, "Django's default cache")
    open_store(store)


@pytest.mark.parametrize(
    ("cache", "name"),
    [
        ({"BACKEND": LOCAL_MEMORY}, "LocMemCache"),
        (
            {
                "BACKEND": "django_redis.cache.RedisCache",
                "LOCATION": "redis://sentinel/0",
                "OPTIONS": {"CLIENT_CLASS": "django_redis.client.SentinelClient"},
            },
            "RedisCache",
        ),
        ({}, "none"),
    ],
)
def test_the_error_lists_the_stores_that_were_looked_for(
    cache: dict[str, Any], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_django(monkeypatch, cache, "django.db.backends.sqlite3")
    with pytest.raises(OptionError) as error:
        choose(conf_of("amqp://me:secret@mq", "couchbase://:secret@results"), None)
    text = str(error.value)
    assert "(broker amqp, result backend couchbase, Django's default cache " + name in text
    assert "Django's default database sqlite3)" in text
    assert '"redis://localhost:6379/0"' in text
    assert '"sqlite:////var/lib/proj/locks.db"' in text
    assert "secret" not in text


def test_an_app_that_only_has_django_installed_is_not_asked_for_its_settings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("DJANGO_SETTINGS_MODULE", raising=False)
    monkeypatch.setitem(sys.modules, "django.conf", SimpleNamespace(settings=LazySettings()))
    with pytest.raises(OptionError, match=r"\(broker sqs, result backend rpc\)"):
        choose(conf_of("sqs://", "rpc://"), None)


SERVERS = (
    "django.db.backends.postgresql",
    "django.contrib.gis.db.backends.postgis",
    "django.db.backends.mysql",
)


@pytest.mark.promise(
    "Django's default database, and `django-db` results there, are found; one without its driver is passed "
    "over",
    name="which store, Django",
    broke="`django-db` not asked for",
)
@pytest.mark.parametrize("engine", SERVERS)
def test_djangos_default_database_is_found_on_a_server(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    use_django(monkeypatch, {"BACKEND": LOCAL_MEMORY}, engine)
    found = "django://default", "Django's default database"
    assert choose(conf_of("amqp://mq", "rpc://"), None) == found


@pytest.mark.proves("which store, Django")
def test_results_in_djangos_database_come_after_the_broker_and_before_the_cache(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cache = {"BACKEND": DJANGO_REDIS, "LOCATION": "redis://cache"}
    use_django(monkeypatch, cache, "django.db.backends.postgresql")
    assert choose(conf_of("redis://mq", "django-db"), None) == ("redis://mq", "broker")
    assert choose(conf_of("amqp://mq", "django-db"), None) == ("django://default", "result backend")
    assert choose(conf_of("amqp://mq", "rpc://"), None) == ("redis://cache", "Django's default cache")


@pytest.mark.proves("which store, Django")
def test_results_in_a_sqlite_file_of_django_keep_locks_beside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    use_django(monkeypatch, {}, "django.db.backends.sqlite3", NAME=Path("/srv/app.sqlite3"))
    expected = "sqlite:////srv/app.sqlite3.locks", "result backend"
    assert choose(conf_of("amqp://localhost", "django-db"), None) == expected
    use_django(monkeypatch, {}, "django.db.backends.sqlite3", NAME=":memory:")
    with pytest.raises(OptionError, match="result backend db\\+sqlite in memory"):
        choose(conf_of("amqp://localhost", "django-db"), None)


@pytest.mark.proves("which store, Django")
def test_a_database_without_its_driver_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    use_django(monkeypatch, {}, "django.db.backends.mysql")
    monkeypatch.delitem(sys.modules, "celery_exclusive.stores.sql.mysql", raising=False)
    monkeypatch.setitem(sys.modules, "pymysql", None)
    with pytest.raises(OptionError, match=r"default database db\+mysql \(needs celery-exclusive\[mysql\]\)"):
        choose(conf_of("amqp://mq", "rpc://"), None)


@pytest.mark.promise(
    "An unknown scheme is refused with the one that was meant first, then the names to choose from; "
    "`postgres://` is `postgresql://`",
    name="unknown scheme",
    broke="drivers listed, too; not known",
)
@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("reddis://locks", "'reddis': did you mean 'redis'?"),
        ("sqlite3:////locks.db", "'sqlite3': did you mean 'sqlite'?"),
        ("mysql+pymsql://db/locks", "'mysql+pymsql': did you mean 'mysql+pymysql'?"),
        ("orakel://db", "'orakel'."),
        ("redis.example", "a string that is no URL."),
    ],
)
def test_a_scheme_that_is_not_known_is_refused_with_the_one_that_was_meant(url: str, words: str) -> None:
    names = (
        "django django-cache mariadb memcached memory mysql postgresql redis redis+cluster rediss sentinel "
        "sqlite valkey valkeys"
    )
    with pytest.raises(OptionError) as refused:
        open_store(choose(conf_of("redis://mq", None), url)[0])
    known = ", ".join(f"{name}://" for name in names.split())
    assert str(refused.value) == f"exclusive_store: no store for {words} There are {known}"


SENTINELS = "sentinel://a:1;sentinel://b:2/3"
OF_BROKER = {"master_name": "of-broker", "sentinel_kwargs": {"password": "a&b"}}
KWARGS = "sentinel_kwargs=%7B%22password%22%3A+%22a%26b%22%7D"


@pytest.mark.proves("sentinel settings")
@pytest.mark.parametrize(
    ("broker", "results", "named", "url"),
    [
        ("amqp://mq", SENTINELS, None, f"{SENTINELS}?master_name=of-results"),
        (SENTINELS.split(";"), "rpc://", None, f"{SENTINELS}?master_name=of-broker&{KWARGS}"),
        ("redis://mq", None, SENTINELS, f"{SENTINELS}?master_name=of-results&{KWARGS}"),
        ("redis://mq", None, f"{SENTINELS}?master_name=own", f"{SENTINELS}?master_name=own&{KWARGS}"),
    ],
)
def test_the_name_of_a_primary_is_found_in_the_transport_options_unless_the_url_has_one(
    broker: Any, results: str | None, named: str | None, url: str
) -> None:
    conf = conf_of(
        broker,
        results,
        broker_transport_options=OF_BROKER,
        result_backend_transport_options={"master_name": "of-results", "min_other_sentinels": 0},
    )
    assert choose(conf, named)[0] == url
    open_store(url)


@pytest.mark.proves("sentinel settings")
def test_how_many_sentinels_one_must_see_is_found_in_the_transport_options() -> None:
    conf = conf_of(SENTINELS, None, broker_transport_options={"master_name": "m", "min_other_sentinels": 1})
    assert choose(conf, None)[0] == f"{SENTINELS}?master_name=m&min_other_sentinels=1"


@pytest.mark.proves("sentinel settings")
def test_sentinels_without_the_name_of_their_primary_are_refused_with_the_fix() -> None:
    with pytest.raises(
        OptionError, match=r'set app\.conf\.broker_transport_options = \{"master_name": "mymaster"'
    ):
        open_store(choose(conf_of("redis://mq", None), "sentinel://a;sentinel://b")[0])


@pytest.mark.proves("sentinel with TLS")
@pytest.mark.parametrize(
    ("broker", "results", "settings"),
    [
        (SENTINELS.split(";"), None, {"broker_use_ssl": TLS}),
        ("amqp://mq", SENTINELS, {"redis_backend_use_ssl": TLS}),
    ],
)
def test_servers_behind_sentinel_have_the_tls_of_celerys_settings(
    broker: Any, results: str | None, settings: dict[str, Any]
) -> None:
    url, _ = choose(conf_of(broker, results, broker_transport_options=OF_BROKER, **settings), None)
    servers = address.parse(sentinel.parse(f"{url}&master_name=m").servers)
    assert servers.is_tls
    assert servers.options["ssl_ca_certs"] == "/etc/our ca.pem"


@pytest.mark.parametrize("given", [{"password": b"bytes"}, {"encoder": object()}])
def test_options_of_sentinels_that_no_url_can_have_are_refused(given: dict[str, Any]) -> None:
    conf = conf_of(SENTINELS, None, broker_transport_options={"master_name": "m", "sentinel_kwargs": given})
    with pytest.raises(OptionError, match=r"sentinel_kwargs is a dictionary of options of connections, with"):
        choose(conf, None)


@pytest.mark.promise(
    "A driver that cannot be imported, missing or too old, is an OptionError with the URL's kind",
    broke="the raw error, as it comes",
)
@pytest.mark.parametrize("where", ["no_such_driver:Store", "json:Store"])
def test_a_driver_that_cannot_be_imported_is_named(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(base._factories, "redis", where)
    assert not base.has_driver("redis://locks")
    with pytest.raises(OptionError, match="exclusive_store: the store of redis:// cannot be imported: "):
        open_store("redis://locks")
