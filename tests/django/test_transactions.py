"""lock() in a transaction of Django: it is held until the commit if that is asked for, and else it warns."""

from __future__ import annotations

import os
import subprocess
import sys
import unittest
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from django.db import OperationalError, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.utils import Error, IntegrityError
from django.http import HttpResponse
from django.test import Client, TestCase
from django.urls import path

from celery_exclusive import ExclusiveError, LockHeld, OptionError, install
from celery_exclusive import lock as lock_
from celery_exclusive.local import transactions
from tests.django.databases import configured, postgresql, sqlite
from tests.postgres import PostgresDatabase
from tests.worker.journal import eventually

Lock = Callable[..., lock_]
Database = dict[str, Any]

pytestmark = pytest.mark.filterwarnings("ignore:Accessing the database during app initialization")


@pytest.fixture
def app() -> Iterator[Celery]:
    app = install(Celery("locks", broker="memory://", set_as_current=False))
    app.conf.update(exclusive_store="memory://transactions")
    yield app
    store = app._celery_exclusive.store  # type: ignore[attr-defined]
    assert [key for key in store.scan() if store.inspect(key).holders] == []
    store.close()
    app.close()


@pytest.fixture
def lock(app: Celery) -> Lock:
    return lambda text="account:1", **options: lock_(text, app=app, **options)


@pytest.fixture(autouse=True)
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    transactions._reported.clear()
    caplog.set_level("INFO", "celery_exclusive")
    return caplog


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    """The project has this database, under two aliases."""
    if request.param == "sqlite":
        alias = sqlite(tmp_path / "app.db")
    else:
        alias = postgresql(request.getfixturevalue("postgres_url"))
    with configured({"default": alias, "other": alias}):
        execute("CREATE TABLE account (credit integer)")
        yield alias


@pytest.fixture
def postgres(postgres_url: str) -> Iterator[Database]:
    """The project has a PostgreSQL."""
    with configured({"default": postgresql(postgres_url)}):
        yield connections["default"].settings_dict


def execute(statement: str, alias: str = "default") -> list[Any]:
    with connections[alias].cursor() as cursor:
        cursor.execute(statement)
        return list(cursor.fetchall()) if cursor.description else []


def in_thread(function: Callable[[], Any]) -> Any:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function).result(60)


# Requests -----------------------------------------------------------------------------------------------


class Site:
    """A project under ATOMIC_REQUESTS, with one view, and its locks in its own database."""

    def __init__(self, view: Callable[..., Any]) -> None:
        self.urlpatterns = [path("", lambda request: HttpResponse(str(view())))]

    def ask(self) -> str:
        """Return what the view answers to a request."""
        try:
            return str(Client(raise_request_exception=False).get("/").content.decode())
        finally:
            connections.close_all()


@pytest.fixture
def start_site(app: Celery, postgres_url: str) -> Iterator[Callable[[Callable[..., Any]], Site]]:
    """Starts a site with this view."""
    with ExitStack() as stack:

        def start(view: Callable[..., Any]) -> Site:
            site = Site(view)
            database = {**postgresql(postgres_url), "ATOMIC_REQUESTS": True}
            stack.enter_context(
                configured({"default": database}, ROOT_URLCONF=site, ALLOWED_HOSTS=["testserver"])
            )
            app.conf.exclusive_store = postgres_url
            execute("CREATE TABLE account (credit integer, visits integer)")
            execute("INSERT INTO account VALUES (1, 0)")
            return site

        yield start


@pytest.mark.promise(
    "Two requests under `ATOMIC_REQUESTS` spend one credit once, and lose no count, with "
    "`until_commit=True`; without it, twice (the control)",
    name="until_commit, two requests",
    broke="red before: no such option",
)
@pytest.mark.parametrize(("until_commit", "spent"), [(True, 1), (None, 2)])
def test_two_requests_spend_one_credit_once_if_the_lock_is_held_until_their_commit(
    start_site: Callable[..., Site],
    lock: Lock,
    log: pytest.LogCaptureFixture,
    until_commit: bool | None,
    spent: int,
) -> None:
    second: list[Future[str]] = []
    seen: list[int] = []

    def view() -> int:
        with lock(until_commit=until_commit):
            ((credit,),) = execute("SELECT credit FROM account")
            seen.append(credit)
            execute("UPDATE account SET credit = 0")
        if not second:
            second.append(pool.submit(site.ask))
            eventually(lambda: len(seen) == 2 or "waits for lock" in log.text, "the second request")
        return int(credit)

    site = start_site(view)
    with ThreadPoolExecutor(1) as pool:
        first = site.ask()
        assert [first, second[0].result(60)] == ["1", str(spent - 1)]
    assert ("released before the transaction of database 'default'" in log.text) == (until_commit is None)


@pytest.mark.proves("until_commit, two requests")
def test_visits_that_are_counted_under_a_lock_until_the_commit_are_all_counted(
    start_site: Callable[..., Site], lock: Lock
) -> None:
    def view() -> str:
        with lock(until_commit=True):
            ((visits,),) = execute("SELECT visits FROM account")
            execute(f"UPDATE account SET visits = {visits + 1}")
        return "counted"

    site = start_site(view)
    with ThreadPoolExecutor(4) as pool:
        assert {visit.result(60) for visit in [pool.submit(site.ask) for _ in range(40)]} == {"counted"}
    assert execute("SELECT visits FROM account") == [(40,)]


@pytest.mark.proves("until_commit")
def test_a_view_that_raises_releases_the_lock_after_its_rollback(
    start_site: Callable[..., Site], lock: Lock, log: pytest.LogCaptureFixture
) -> None:
    def view() -> None:
        with lock(until_commit=True):
            execute("UPDATE account SET credit = 0")
            raise KeyError

    assert "Server Error (500)" in start_site(view).ask()
    assert not lock().locked()
    assert execute("SELECT credit FROM account") == [(1,)]


# Ends of a transaction ----------------------------------------------------------------------------------


@pytest.mark.promise(
    "With `until_commit=True` a lock is held until the commit, rollback or close of all open transactions, "
    "also after an exception in a view, a failed or interrupted commit, and when the server ends the "
    "connection. A savepoint is no end. It is renewed until then",
    name="until_commit",
    broke="no own `commit`, `rollback`, `close` or `set_autocommit`; released with the first of two aliases",
)
@pytest.mark.parametrize("is_undone", [False, True], ids=["commit", "rollback"])
def test_a_lock_until_commit_is_held_until_the_commit_or_rollback(
    database: Database, lock: Lock, is_undone: bool
) -> None:
    with transaction.atomic():
        with lock(until_commit=True):
            execute("INSERT INTO account VALUES (1)")
        assert not in_thread(lock(wait=0).acquire)
        transaction.set_rollback(is_undone)
    with lock(wait=0):
        assert len(execute("SELECT * FROM account")) == (not is_undone)


@pytest.mark.proves("until_commit")
def test_a_lock_until_commit_is_released_after_an_exception_in_the_transaction(
    database: Database, lock: Lock
) -> None:
    with suppress(KeyError), transaction.atomic():
        with lock(until_commit=True):
            pass
        assert lock().locked()
        raise KeyError
    assert not lock().locked()


@pytest.mark.proves("until_commit")
@pytest.mark.parametrize("is_undone", [False, True], ids=["released", "rolled back"])
def test_a_savepoint_does_not_end_a_lock_until_commit(
    database: Database, lock: Lock, is_undone: bool
) -> None:
    with transaction.atomic():
        with transaction.atomic():
            with lock(until_commit=True):
                execute("INSERT INTO account VALUES (1)")
            transaction.set_rollback(is_undone)
        assert lock().locked()
    assert not lock().locked()


@pytest.mark.proves("until_commit")
def test_a_commit_that_fails_and_is_rolled_back_releases_a_lock_until_commit(
    postgres: Database, lock: Lock
) -> None:
    execute("CREATE TABLE once (n integer UNIQUE DEFERRABLE INITIALLY DEFERRED)")
    with pytest.raises(IntegrityError), transaction.atomic():  # noqa: PT012 - its end raises
        with lock(until_commit=True):
            execute("INSERT INTO once VALUES (1), (1)")
        assert lock().locked()
    assert not lock().locked()


@pytest.mark.proves("until_commit")
def test_a_connection_that_is_closed_in_its_transaction_releases_a_lock_until_commit(
    database: Database, lock: Lock
) -> None:
    with suppress(Error), transaction.atomic():
        with lock(until_commit=True):
            execute("INSERT INTO account VALUES (1)")
        connections["default"].close()
        assert not lock().locked()
        with lock(until_commit=True):  # there is no transaction any more
            pass
        assert not lock().locked()
    assert execute("SELECT * FROM account") == []


@pytest.mark.proves("until_commit")
def test_a_connection_that_the_server_ends_releases_a_lock_until_commit(
    postgres: Database, postgres_database: PostgresDatabase, lock: Lock
) -> None:
    with pytest.raises(OperationalError), transaction.atomic():  # noqa: PT012 - its end raises
        with lock(until_commit=True):
            ((pid,),) = execute("SELECT pg_backend_pid()")
        postgres_database.ask(f"SELECT pg_terminate_backend({pid}, 60000)")
        assert lock().locked()
    assert not lock().locked()


@pytest.mark.proves("until_commit")
def test_a_commit_that_is_interrupted_when_it_is_done_releases_a_lock_until_commit(
    postgres: Database, lock: Lock, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Interruption(BaseException): ...

    def commit(connection: Any) -> None:
        real_commit(connection)
        raise Interruption

    real_commit = BaseDatabaseWrapper._commit
    monkeypatch.setattr(BaseDatabaseWrapper, "_commit", commit)
    with pytest.raises(Interruption), transaction.atomic(), lock(until_commit=True):
        pass
    assert not lock().locked()


@pytest.mark.proves("until_commit", "reentrant")
@pytest.mark.parametrize("until_commit", [None, False])
def test_an_inner_lock_until_commit_lets_the_outer_one_be_held_until_the_commit(
    database: Database, lock: Lock, log: pytest.LogCaptureFixture, until_commit: bool | None
) -> None:
    inner = lock(until_commit=True, reentrant=True)
    with transaction.atomic():
        with lock(until_commit=until_commit), inner, inner:
            execute("INSERT INTO account VALUES (1)")
        assert lock().locked()
        with inner:
            pass
        assert lock().locked()
    assert not lock().locked()
    with lock(until_commit=until_commit), transaction.atomic(), inner:
        pass
    assert not lock().locked()
    assert "released before" not in log.text


@pytest.mark.proves("until_commit")
def test_a_lock_until_commit_waits_for_the_transactions_of_all_aliases(
    database: Database, lock: Lock
) -> None:
    with transaction.atomic():
        with transaction.atomic(using="other"), lock(until_commit=True):
            pass
        assert lock().locked()
    assert not lock().locked()
    with transaction.atomic(using="other"):
        with lock(until_commit=True):
            pass
        with transaction.atomic():
            pass
        assert lock().locked()
    assert not lock().locked()


@pytest.mark.proves("until_commit")
@pytest.mark.parametrize("end", [transaction.commit, transaction.rollback])
def test_a_transaction_that_is_ended_by_hand_releases_a_lock_until_commit(
    database: Database, lock: Lock, end: Callable[[], None]
) -> None:
    transaction.set_autocommit(False)
    with transaction.atomic(), lock(until_commit=True):
        pass
    assert lock().locked()
    end()
    assert not lock().locked()
    transaction.set_autocommit(True)


@pytest.mark.proves("until_commit")
def test_each_transaction_of_a_connection_releases_all_its_locks(database: Database, lock: Lock) -> None:
    for _ in range(3):
        with transaction.atomic():
            guards = [lock(text, until_commit=True) for text in "abc"]
            for guard in guards:
                assert guard.acquire()
                guard.release()
            assert all(guard.locked() for guard in guards)
        assert not any(guard.locked() for guard in guards)


@pytest.mark.proves("until_commit")
def test_a_function_that_runs_on_commit_finds_the_lock_free(database: Database, lock: Lock) -> None:
    seen: list[bool] = []
    with transaction.atomic():
        transaction.on_commit(lambda: seen.append(lock().locked()))
        with lock(until_commit=True):
            pass
    assert seen == [False]


# While it is held ---------------------------------------------------------------------------------------


@pytest.mark.proves("until_commit")
def test_a_lock_until_commit_is_renewed_until_the_commit(
    database: Database, lock: Lock, log: pytest.LogCaptureFixture
) -> None:
    with transaction.atomic():
        with lock(ttl=2, until_commit=True):
            pass
        assert not in_thread(lock(wait=5).acquire)
    assert not lock().locked()
    assert "lost its lease" not in log.text


@pytest.mark.promise(
    "With `until_commit=True` a lock is released at once without a transaction, or by another thread; a "
    "forked child releases nothing; its own transaction does not wait for it; it is refused where Django "
    "has no databases",
    name="until_commit without a transaction",
    broke="waits for itself; a closed connection taken for an open transaction",
)
def test_a_lock_until_commit_without_a_transaction_is_released_at_once(
    database: Database, lock: Lock
) -> None:
    with lock(until_commit=True), transaction.atomic():
        pass
    assert not lock().locked()


@pytest.mark.proves("until_commit without a transaction")
def test_a_lock_until_commit_that_another_thread_releases_is_released_at_once(
    database: Database, lock: Lock
) -> None:
    with transaction.atomic():
        guard = lock(until_commit=True)
        guard.acquire()
        in_thread(guard.release)
        assert not lock().locked()


@pytest.mark.proves("until_commit without a transaction")
@pytest.mark.parametrize("is_block", [True, False], ids=["block", "acquire"])
def test_a_lock_that_its_own_transaction_holds_is_refused_instead_of_waited_for(
    database: Database, lock: Lock, is_block: bool
) -> None:
    guard = lock(until_commit=True)
    with transaction.atomic():
        if is_block:
            with guard:
                pass
        else:
            guard.acquire()
            guard.release()
        for again in guard, lock(until_commit=True), lock():
            with pytest.raises(ExclusiveError, match="by the very code that waits for it"):
                again.acquire()
        with pytest.raises(LockHeld), lock(wait=0):
            pass
        with lock(reentrant=True, until_commit=True) as inner:  # it is released at the commit, too
            pass
        inner.check()
        with pytest.raises(ExclusiveError, match="does not hold the lock"):
            guard.release()
    with guard:
        pass


@pytest.mark.proves("until_commit without a transaction")
def test_a_forked_child_that_closes_the_connections_releases_nothing(database: Database, lock: Lock) -> None:
    with transaction.atomic():
        with lock(until_commit=True):
            pass
        child = os.fork()
        if not child:
            connections["default"].connection = None  # as Celery does in a child
            connections["default"].close()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert lock().locked()
    assert not lock().locked()


# The warning --------------------------------------------------------------------------------------------


def warnings_of(log: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in log.records if record.levelname == "WARNING"]


@pytest.mark.promise(
    "A `lock()` that ends in `atomic()` is reported once for each place, also through a recipe; not in the "
    "transaction around a `TestCase`, nor with `until_commit=False`",
    name="lock in a transaction",
    broke="reported each time; a test's transaction counted",
)
def test_a_lock_that_ends_in_a_transaction_is_reported_once_for_each_place(
    database: Database, lock: Lock, log: pytest.LogCaptureFixture
) -> None:
    for number in range(3):
        with transaction.atomic(using="other"), lock(f"account:{number}"):
            pass
    (warning,) = warnings_of(log)
    assert "lock x=account:0 was released before the transaction of database 'other' is committed" in warning
    assert f"({__file__}:" in warning
    with transaction.atomic():
        guard = lock()
        guard.acquire()
        guard.release()
    assert len(warnings_of(log)) == 2


@pytest.mark.proves("lock in a transaction")
def test_nothing_is_reported_without_a_transaction_or_if_it_is_told_when_to_release(
    database: Database, lock: Lock, log: pytest.LogCaptureFixture
) -> None:
    with lock(), transaction.atomic():
        execute("INSERT INTO account VALUES (1)")
    with lock():
        execute("INSERT INTO account VALUES (1)")
    with lock(), transaction.atomic(), lock(reentrant=True):  # whose end releases nothing
        execute("INSERT INTO account VALUES (1)")
    with transaction.atomic():
        with lock(until_commit=False):
            pass
        assert not lock().locked()
        with lock("another", until_commit=True):
            pass
        with pytest.raises(LockHeld), lock("another", wait=0):
            pass
    assert warnings_of(log) == []


@pytest.mark.proves("lock in a transaction")
def test_the_transaction_around_a_test_does_not_count_but_those_within_it_do(
    database: Database, lock: Lock, log: pytest.LogCaptureFixture
) -> None:
    class Tests(TestCase):
        databases = {"default", "other"}  # noqa: RUF012 - as Django has it

        def test(self) -> None:
            with lock(until_commit=True):
                pass
            with lock():
                pass
            assert warnings_of(log) == []
            with transaction.atomic():
                with lock(until_commit=True):  # which no test commits
                    pass
                assert not lock().locked()
                with lock():
                    pass
            assert len(warnings_of(log)) == 1

    result = unittest.TestResult()
    unittest.TestSuite([Tests("test")]).run(result)
    assert (result.testsRun, result.errors, result.failures) == (1, [], [])


# Without Django -----------------------------------------------------------------------------------------

ALONE = """
import sys
from celery import Celery
from celery_exclusive import ExclusiveError, install, lock
app = install(Celery("locks", broker="memory://"))
app.conf.exclusive_store = "memory://"
with lock("account:1"):
    pass
assert "django.db" not in sys.modules
try:
    lock("account:1", until_commit=True).acquire()
except ExclusiveError as error:
    print(error)
assert not lock("account:1").locked()
import django.db
with lock("account:1"):
    pass
try:
    lock("account:1", until_commit=True).acquire()
except ExclusiveError as error:
    print(error)
"""


@pytest.mark.proves("until_commit without a transaction")
def test_a_process_without_a_django_project_is_refused_a_lock_until_commit() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"}
    said = subprocess.run(
        [sys.executable, "-c", ALONE], env=environment, capture_output=True, text=True, check=True
    ).stdout
    assert said.count("lock('account:1'): until_commit=True waits for transactions of Django, and this") == 2


@pytest.mark.proves("until_commit without a transaction")
def test_a_value_of_until_commit_that_is_no_bool_is_refused_at_once() -> None:
    with pytest.raises(OptionError, match="until_commit='yes' must be True, False or None"):
        lock_("account:1", until_commit="yes")  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="xact= is until_commit= here"):
        lock_("account:1", xact=True)  # type: ignore[arg-type]
