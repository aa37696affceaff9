"""What install() does to an app, and what it leaves alone."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
from celery import Celery, Task, current_app, shared_task
from celery.result import AsyncResult

import celery_exclusive
from celery_exclusive import Exclusive, ExclusiveError, OptionError, Unique, install
from celery_exclusive.services import Services

Declare = Callable[[Celery, Any], Any]


def by_function(app: Celery, option: Any) -> Any:
    @app.task(name="feeds.load", exclusive=option)
    def load(url: str, n: int = 0) -> str:
        return url

    app.finalize()
    return app.tasks["feeds.load"]


def by_shared_task(app: Celery, option: Any) -> Any:
    @shared_task(name="feeds.load", exclusive=option)
    def load(url: str, n: int = 0) -> str:
        return url

    app.finalize()
    return app.tasks["feeds.load"]


def by_class(app: Celery, option: Any) -> Any:
    class Load(Task):
        name = "feeds.load"
        exclusive = option

        def run(self, url: str, n: int = 0) -> str:
            return url

    return app.register_task(Load())


ways = pytest.mark.parametrize("declare", [by_function, by_shared_task, by_class])


@pytest.mark.proves("bad options")
@pytest.mark.parametrize("other", ["feeds", None, Celery])
def test_install_refuses_what_is_no_app(other: Any) -> None:
    name = type(other).__name__
    with pytest.raises(
        OptionError, match=rf"^install\(\) takes a Celery app, not {name}: write app = install"
    ):
        install(other)


def test_install_accepts_celerys_proxy_of_the_current_app(app: Celery) -> None:
    app.set_current()
    assert install(current_app) is current_app


def test_install_returns_the_app_and_can_be_repeated(app: Celery) -> None:
    services, cls = app._celery_exclusive, type(app)
    assert install(app) is app
    assert install(install(app)) is app
    assert isinstance(services, Services)
    assert app._celery_exclusive is services
    assert type(app) is cls


@ways
def test_a_message_of_a_task_with_options_tells_its_key(
    app: Celery, published: list[dict[str, Any]], declare: Declare
) -> None:
    task = declare(app, Exclusive("url"))
    result = task.delay("https://a")
    assert isinstance(result, AsyncResult)
    task.apply_async(kwargs={"url": "https://a", "n": 7})
    app.send_task("feeds.load", ["https://a"])
    task.delay("https://b")
    headers = [message["exclusive"] for message in published]
    assert published[0]["id"] == result.id
    keys = [header["exclusive"] for header in headers]
    assert keys[0] == keys[1] == keys[2] != keys[3]
    assert keys[0] == task.lock_state("https://a").key
    assert len({header["id"] for header in headers}) == 4


@pytest.mark.parametrize("installed", ["before", "after"])
@ways
def test_the_app_may_be_configured_before_or_after(
    make_app: Callable[..., Celery], published: list[dict[str, Any]], installed: str, declare: Declare
) -> None:
    class Config:
        exclusive_prefix = "mine"
        exclusive_ttl = 7

    app = make_app()
    if installed == "before":
        install(app)
    app.config_from_object(Config)
    app.conf.exclusive_store = "memory://"
    if installed == "after":
        install(app)
    declare(app, Exclusive()).delay("https://a")
    assert published[0]["exclusive"]["exclusive"] == "x:feeds.load"
    assert app._celery_exclusive.settings.exclusive_ttl == 7
    assert app._celery_exclusive.settings.exclusive_prefix == "mine"


def test_the_configuration_is_not_read_before_it_is_needed(make_app: Callable[..., Celery]) -> None:
    app = Celery("lazy", set_as_current=False)
    app.config_from_object("a_module_that_does_not_exist")
    by_name = install(app)
    assert not by_name.configured
    app.close()


def test_a_task_that_was_declared_before_install_gets_its_lock_too(
    make_app: Callable[..., Celery], published: list[dict[str, Any]]
) -> None:
    app = make_app()

    @app.task(name="feeds.early", exclusive=Exclusive())
    def early() -> None: ...

    install(app)
    early.delay()
    app.finalize()
    assert published[0]["exclusive"]["exclusive"] == "x:feeds.early"
    assert not early.lock_state().is_running


def test_a_task_that_was_declared_before_install_has_its_methods_before_the_app_is_finalised(
    make_app: Callable[..., Celery],
) -> None:
    app = make_app()

    @app.task(exclusive=Exclusive("url"))
    def work(url: str) -> None: ...

    install(app)
    assert not work.lock_state("a").is_running
    assert not app.finalized


def test_asking_for_a_lock_takes_the_arguments_of_a_call(make_app: Callable[..., Celery]) -> None:
    app = install(make_app())

    @app.task(name="feeds.one", exclusive=Exclusive("feed_url"))
    def one(feed_url: str) -> None: ...

    for verb in (one.lock_state, one.release_lock):
        with pytest.raises(TypeError, match=r"task feeds.one: \w+\(\) takes .* argument: 'feed_url'"):
            verb()


def test_a_base_class_installs_its_app(
    make_app: Callable[..., Celery], published: list[dict[str, Any]]
) -> None:
    app = make_app()

    @app.task(name="feeds.based", base=celery_exclusive.Task, exclusive=Exclusive())
    def based() -> None: ...

    based.delay()
    assert isinstance(app._celery_exclusive, Services)
    assert published[0]["exclusive"]["exclusive"] == "x:feeds.based"
    assert based.lock_state().key == "x:feeds.based"


def test_a_task_without_options_is_left_as_it_is(app: Celery, published: list[dict[str, Any]]) -> None:
    @app.task(name="feeds.plain")
    def plain() -> None: ...

    plain.delay()
    assert type(plain._get_current_object()).__mro__[1:] == app.Task.__mro__
    assert "exclusive" not in published[0]


def test_an_app_without_options_needs_no_locks(app: Celery) -> None:
    @app.task(name="feeds.plain")
    def plain() -> None: ...

    assert not app._celery_exclusive.is_needed
    by_function(app, Exclusive())
    assert app._celery_exclusive.is_needed


def test_an_app_beside_an_installed_one_is_left_as_it_is(
    app: Celery, make_app: Callable[..., Celery]
) -> None:
    other = make_app()
    assert other.send_task.__func__ is Celery.send_task
    assert not hasattr(other, "_celery_exclusive")


def test_a_task_keeps_the_base_classes_and_the_looks_that_it_had(app: Celery) -> None:
    class Base(app.Task):  # type: ignore[name-defined, misc]
        abstract = True
        unit = "pieces"

        def unit_of(self) -> str:
            return self.unit

    @app.task(name="feeds.kept", base=Base, bind=True, exclusive=Exclusive(), max_retries=9)
    def kept(self: Any, url: str) -> str:
        """Keeps."""
        return f"{url} {self.unit_of()}"

    assert isinstance(kept, Base)
    assert (kept.name, kept.__doc__, kept.max_retries) == ("feeds.kept", "Keeps.", 9)
    assert kept("https://a") == "https://a pieces"


def test_a_method_of_the_class_of_a_task_stands_before_ours_of_the_same_name(app: Celery) -> None:
    """The on_success of celery-singleton calls its own release_lock: else no run would free its lock."""

    class Locked(Task):
        abstract = True
        wrapped = "own"

        def release_lock(self, task_args: Any = None, task_kwargs: Any = None) -> Any:
            return task_args

    @app.task(name="feeds.locked", base=Locked, exclusive=Exclusive("url"))
    def locked(url: str) -> None: ...

    assert locked.release_lock(task_args=["https://a"]) == ["https://a"]
    assert locked.wrapped == "own"
    assert not locked.lock_state("https://a").is_running


def test_a_task_with_an_option_whose_base_is_a_task_without_one_has_our_methods(app: Celery) -> None:
    class Plain(Task):
        name = "feeds.plain"

        def run(self) -> None: ...

    class Locked(Plain):
        name = "feeds.locked"
        exclusive = Exclusive()

    plain, locked = app.register_task(Plain()), app.register_task(Locked())
    with pytest.raises(OptionError, match=r"feeds.plain has neither .* no lock_state"):
        plain.lock_state()
    assert locked.lock_state().key == "x:feeds.locked"
    assert not locked.release_lock()


def test_one_option_switches_a_call_off(app: Celery, published: list[dict[str, Any]]) -> None:
    by_function(app, Exclusive()).apply_async(("https://a",), exclusive=None)
    app.send_task("somewhere.else", exclusive=None)
    assert [message["exclusive"].get("exclusive") for message in published] == [None, None]


@pytest.mark.parametrize(
    "malformed",
    [
        {"v": 1},
        {"v": 1, "id": "a"},
        {"v": 1, "id": 7, "exclusive": "k"},
        {"v": 1, "id": "a", "exclusive": ["k"]},
        {"v": 1, "id": "a", "exclusive": "k", "promoted": 5},
        ["v", 1],
    ],
    ids=[
        "a version alone",
        "no key",
        "a number as id",
        "a list as key",
        "a number as epoch",
        "no dictionary",
    ],
)
def test_a_header_of_ours_takes_the_place_of_a_malformed_one(
    app: Celery, published: list[dict[str, Any]], malformed: Any
) -> None:
    task = by_function(app, Exclusive("url"))
    task.apply_async(("https://a",), headers={"exclusive": malformed, "tenant": 7})
    assert published[0]["exclusive"]["exclusive"] == task.lock_state("https://a").key
    assert published[0]["tenant"] == 7


@pytest.mark.parametrize("asked", [True, False, "skip"])
def test_a_call_brings_an_option_or_none(app: Celery, published: list[Any], asked: Any) -> None:
    task = by_function(app, Exclusive())
    with pytest.raises(OptionError, match=r"task feeds\.load: exclusive=.*, or switch it off"):
        task.apply_async(("https://a",), exclusive=asked)
    assert not published


@pytest.mark.promise(
    "A missing lease raises an `ExclusiveError` that is an `AttributeError`, too, in results as well",
    name="missing lease",
    broke="an `ExclusiveError` alone",
)
@ways
def test_a_direct_call_is_a_plain_call_without_a_lease(app: Celery, declare: Declare) -> None:
    task = declare(app, Exclusive())
    assert task("https://a") == "https://a"
    with pytest.raises(
        ExclusiveError, match=r"task feeds\.load holds no lease: only a worker or apply\(\) acquires one"
    ):
        _ = task.lease
    assert getattr(task, "lease", None) is None
    assert not hasattr(task, "lease")


@pytest.mark.parametrize("call", ["apply", "always eager"])
def test_an_eager_run_has_its_request_and_can_be_retried(make_app: Callable[..., Celery], call: str) -> None:
    app = install(make_app(task_always_eager=call == "always eager"))

    @app.task(bind=True, exclusive=Exclusive("url"), max_retries=2)
    def load(self: Any, url: str) -> list[Any]:
        if not self.request.retries:
            raise self.retry(countdown=0)
        return [self.request.id, self.request.is_eager, self.request.called_directly, self.request.retries]

    result = load.apply(("https://a",)) if call == "apply" else load.delay("https://a")
    assert result.get() == [result.id, True, False, 1]


@pytest.mark.proves("bad options")
@ways
@pytest.mark.parametrize(
    ("option", "said"),
    [
        (True, r"task feeds\.load: exclusive=True is not an option; write exclusive=Exclusive\("),
        (
            [Exclusive("url"), Exclusive(key="all")],
            r"with one key of several parameters: .* A second lock is a lock\(\) in the body",
        ),
        ("url", r"task feeds\.load: exclusive='url' is not an option; write exclusive=Exclusive\("),
        (Exclusive, r"task feeds\.load: exclusive=<class .* is not an option; write exclusive=Exclusive\("),
        (Exclusive("ulr"), r"'feeds\.load', exclusive=Exclusive\('ulr'\).*'ulr'.*did you mean 'url'\?"),
        (Exclusive(key="feed:{ulr}"), r"'feeds\.load'.*key='feed:\{ulr\}'.*did you mean 'url'\?"),
        (Exclusive(key="feed:{}"), r"'feeds\.load'.*key='feed:\{\}' has braces without a name"),
        (Exclusive(key=lambda: "k"), r"'feeds\.load'.*key= is called with the arguments of the task, .*url"),
    ],
    ids=[
        "True",
        "a list",
        "a text",
        "a class",
        "unknown in by",
        "unknown in key",
        "no name in key",
        "narrow function",
    ],
)
def test_a_wrong_option_is_refused_when_the_task_is_made(
    app: Celery, declare: Declare, option: Any, said: str
) -> None:
    with pytest.raises(OptionError, match=said):
        declare(app, option)


@ways
@pytest.mark.parametrize("option", [Exclusive(), Exclusive("url", on_conflict="skip")])
def test_a_task_of_an_app_without_install_is_refused(
    make_app: Callable[..., Celery], declare: Declare, option: Any
) -> None:
    with pytest.raises(
        OptionError, match=r"'feeds\.load' declares exclusive=.*celery_exclusive\.install\(app\)"
    ):
        declare(make_app(), option)


@pytest.mark.parametrize(
    ("conf", "said"),
    [
        ({"exclusive_tll": 3}, r"exclusive_tll is unknown.*did you mean 'exclusive_ttl'\?"),
        ({"exclusive_ttl": "3"}, r"exclusive_ttl is '3', expected a number"),
    ],
)
def test_wrong_settings_are_an_error_for_the_caller(
    make_app: Callable[..., Celery], published: list[Any], conf: dict[str, Any], said: str
) -> None:
    task = by_function(install(make_app(**conf)), Exclusive())
    with pytest.raises(OptionError, match=said):
        task.delay("https://a")
    assert not published


@pytest.mark.parametrize("argument", [object(), {"a": {1, 2}}, open], ids=["object", "set", "function"])
def test_an_argument_that_cannot_be_a_key_is_an_error_for_the_caller(
    app: Celery, published: list[Any], argument: Any
) -> None:
    task = by_function(app, Exclusive("url"))
    with pytest.raises(OptionError, match=r"task 'feeds\.load', exclusive=Exclusive\('url'\): argument url"):
        task.delay(argument)
    assert not published


def test_a_call_that_does_not_fit_the_task_fails_as_in_plain_celery(
    app: Celery, published: list[Any]
) -> None:
    task = by_function(app, Exclusive("url"))
    with pytest.raises(TypeError):
        task.delay()
    app.send_task("feeds.load", ["too", "many", "arguments"])  # the worker will say so
    assert "exclusive" not in published[0]


REDIS = {"result_backend": "redis://results/1", "broker_url": "redis://broker/0"}


@pytest.mark.parametrize(
    ("conf", "origin", "url"),
    [
        ({**REDIS, "exclusive_store": "redis://locks/2"}, "exclusive_store", "redis://locks:6379/2"),
        ({**REDIS, "exclusive_store": None}, "broker", "redis://broker:6379/0"),
        ({"broker_url": "redis://broker/0", "result_backend": "rpc://"}, "broker", "redis://broker:6379/0"),
        ({"broker_url": "redis://broker/0", "result_backend": None}, "broker", "redis://broker:6379/0"),
        (
            {**REDIS, "exclusive_store": None, "broker_url": "amqp://"},
            "result backend",
            "redis://results:6379/1",
        ),
    ],
    ids=["named", "not named", "rpc results", "no results", "amqp"],
)
def test_a_named_store_goes_before_the_broker_and_the_broker_before_the_result_backend(
    make_app: Callable[..., Celery], conf: dict[str, Any], origin: str, url: str
) -> None:
    app = install(make_app())
    app.conf.update({"exclusive_store": None, **conf})
    assert (app._celery_exclusive.origin, app._celery_exclusive.store.url) == (origin, url)


@pytest.mark.parametrize(
    ("name", "origin"),
    [
        ("CELERY_RESULT_BACKEND", "result backend"),
        ("CELERY_BROKER_URL", "broker"),
        ("CELERY_BROKER_WRITE_URL", "broker"),
    ],
)
def test_the_environment_beats_the_configuration_as_it_does_for_celery(
    make_app: Callable[..., Celery], monkeypatch: pytest.MonkeyPatch, name: str, origin: str
) -> None:
    monkeypatch.setenv(name, "redis://environment/3")
    app = install(make_app())
    broker = "amqp://configuration" if origin == "result backend" else "redis://configuration/0"
    app.conf.update(exclusive_store=None, broker_url=broker, result_backend="rpc://")
    assert (app._celery_exclusive.origin, app._celery_exclusive.store.url) == (
        origin,
        "redis://environment:6379/3",
    )


@pytest.mark.parametrize("backend", [None, "rpc://", "cache+memory://"])
def test_without_a_store_the_error_tells_the_line_to_add(
    make_app: Callable[..., Celery], backend: str | None
) -> None:
    app = install(make_app())
    app.conf.update(exclusive_store=None, broker_url="amqp://me:secret@host//", result_backend=backend)
    with pytest.raises(OptionError, match=r'add one line: app\.conf\.exclusive_store = "redis://') as error:
        _ = app._celery_exclusive.store
    assert "secret" not in str(error.value)

    @app.task(shared=False, unique=Unique())
    def load() -> None: ...

    with pytest.raises(OptionError, match="add one line") as error:
        load.delay()
    assert error.value.__context__ is None


def test_an_app_may_be_used_while_one_of_its_tasks_is_adopted(app: Celery):
    class Load:
        """Looks at the app while we look at the task, as a finalizer or another thread may."""

        __name__ = __qualname__ = "load"
        __annotations__: dict[str, Any] = {}
        was_seen = False

        def __call__(self, url: str) -> None: ...

        @property
        def __signature__(self) -> inspect.Signature:
            if not self.was_seen:
                self.was_seen = True
                assert app.tasks
            return inspect.signature(self.__call__)

    app.task(Load(), name="feeds.load", exclusive=Exclusive("url"))
    app.finalize()
    assert app.tasks["feeds.load"].lock_state("a").key.startswith("x:feeds.load:")


@pytest.mark.promise(
    "An app whose `send_task` was replaced before `install` is warned of",
    broke="red before: silence",
)
def test_an_app_whose_send_task_was_replaced_before_is_warned_of(make_app: Callable[..., Celery]) -> None:
    app = make_app()
    app.send_task = app.send_task  # type: ignore[method-assign]
    with pytest.warns(UserWarning, match=r"send_task of this app was replaced before install\(app\)"):
        install(app)
