"""Where an app is configured, and when: settings are found, and options given to the tasks of others."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from celery import Celery

from celery_exclusive import Exclusive, OptionError, install
from celery_exclusive.services import Services
from tests.worker.versions import leave_out_before

Write = Callable[[dict[str, Any]], None]
Configure = Callable[[Celery], None]
Spelled = Callable[[str], str]
SetUp = Callable[[Celery, Configure], Services]
SETTINGS = {"broker_url": "memory://", "exclusive_store": "memory://", "exclusive_ttl": 7}


@pytest.fixture
def app() -> Iterator[Celery]:
    app = Celery("configured", set_as_current=False)
    yield app
    app.close()


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Writes `celeryconfig.py`, and takes care that no other test sees it."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("SHOP_CONFIG", "celeryconfig")

    def write(values: dict[str, Any]) -> None:
        lines = [f"{name} = {value!r}" for name, value in values.items()]
        text = "\n".join([*lines, "class Config:", *(f"    {line}" for line in lines)])
        (tmp_path / "celeryconfig.py").write_text(text)

    yield write
    sys.modules.pop("celeryconfig", None)


def by_name(app: Celery) -> None:
    app.config_from_object("celeryconfig")


def by_class(app: Celery) -> None:
    app.config_from_object("celeryconfig:Config")


def by_variable(app: Celery) -> None:
    app.config_from_envvar("SHOP_CONFIG")


def with_namespace(app: Celery) -> None:
    app.config_from_object("celeryconfig", namespace="CELERY")


def in_django(name: str) -> str:
    return f"CELERY_{name.upper()}"


every_source = pytest.mark.parametrize(
    ("configure", "spelled"),
    [
        (by_name, str.lower),
        (by_name, str.upper),
        (by_class, str.lower),
        (by_variable, str.lower),
        (by_variable, str.upper),
        (with_namespace, in_django),
    ],
)


def installed_first(app: Celery, configure: Configure) -> Services:
    install(app)
    configure(app)
    return app._celery_exclusive


def installed_last(app: Celery, configure: Configure) -> Services:
    configure(app)
    assert app.conf.broker_url == "memory://"  # which loads it
    install(app)
    return app._celery_exclusive


either_order = pytest.mark.parametrize("set_up", [installed_first, installed_last])


def load(url: str) -> str:
    """A task of somebody else, who does not know of us."""
    return url


# Settings


@pytest.mark.promise(
    "Settings are found in upper- and lower-case modules, classes, `config_from_envvar`, namespaces and "
    "later updates, before and after `install`",
    name="where settings are",
    broke="no upper-case read",
)
@every_source
@either_order
def test_settings_are_found_wherever_they_are_and_whenever_install_is_called(
    app: Celery, write: Write, configure: Configure, spelled: Spelled, set_up: SetUp
):
    write({spelled(name): value for name, value in SETTINGS.items()})
    services = set_up(app, configure)
    assert services.settings.exclusive_ttl == 7
    assert services.store.url == "memory://"


@pytest.mark.proves("where settings are")
@every_source
@either_order
def test_a_later_update_wins(
    app: Celery, write: Write, configure: Configure, spelled: Spelled, set_up: SetUp
):
    if configure is with_namespace:
        leave_out_before("5.7", "an update that wins over what came with a namespace")
    write({spelled(name): value for name, value in SETTINGS.items()})
    services = set_up(app, configure)
    assert app.conf.broker_url == "memory://"
    app.conf.update(exclusive_ttl=8)
    assert services.settings.exclusive_ttl == 8


@pytest.mark.proves("misspelt settings")
@pytest.mark.parametrize("name", ["exclusiv_ttl", "exlusive_ttl", "exclusive_tll"])
@every_source
def test_a_setting_that_is_misspelt_anywhere_is_refused_where_a_task_is_called(
    app: Celery, write: Write, configure: Configure, spelled: Spelled, name: str
):
    write({**{spelled(name): value for name, value in SETTINGS.items()}, spelled(name): 5})
    installed_first(app, configure)
    task = app.task(exclusive=Exclusive(), shared=False)(load)
    with pytest.raises(
        OptionError, match=rf"setting {spelled(name)} is unknown.* did you mean '{spelled('exclusive_')}"
    ):
        task.delay("https://a")


@pytest.mark.proves("misspelt settings")
@pytest.mark.parametrize(
    "name", ["exclude", "inclusive_ttl", "task_exclusion", "exclusion_ttl", "exclusive", "celery_exclusive"]
)
@every_source
def test_a_setting_of_others_that_looks_a_little_like_ours_is_left_alone(
    app: Celery, write: Write, configure: Configure, spelled: Spelled, name: str
):
    write({**{spelled(name): value for name, value in SETTINGS.items()}, spelled(name): 5})
    assert installed_first(app, configure).settings.exclusive_ttl == 7


# task_annotations


class OfLoad:
    """An annotation that Celery makes of the name of its class."""

    def annotate(self, task: Any) -> dict[str, Any] | None:
        return {"exclusive": Exclusive("url")} if task.name == "others.load" else None


@pytest.mark.promise(
    "Annotations work in every form, before and after `install`; changed, switched off, for all; wrong "
    "ones are refused by name",
    name="annotations",
    broke="no adoption at registration, at install, at finalize; each check off",
)
@pytest.mark.parametrize(
    "annotations",
    [
        {"others.load": {"exclusive": Exclusive("url")}},
        [{"others.send": {"rate_limit": "1/s"}}, {"others.load": [("exclusive", Exclusive("url"))]}],
        OfLoad(),
        [OfLoad(), {"others.send": {"exclusive": Exclusive()}}],
        f"{__name__}:{OfLoad.__name__}",
        {"*": {"exclusive": Exclusive("url")}},
    ],
    ids=["dict", "list", "class", "class in a list", "name of a class", "all tasks"],
)
@either_order
def test_an_annotation_gives_a_task_of_a_library_an_option(app: Celery, set_up: SetUp, annotations: Any):
    set_up(app, lambda app: app.conf.update(SETTINGS, task_annotations=annotations))
    task = app.task(name="others.load", shared=False)(load)
    assert task.lock_state("https://a").key.startswith("x:others.load:")
    assert task.exclusive == Exclusive("url")


@pytest.mark.proves("annotations")
@pytest.mark.parametrize("is_final", [True, False])
def test_an_annotation_reaches_a_task_that_was_declared_before_install(app: Celery, is_final: bool):
    app.conf.update(SETTINGS, task_annotations={"others.load": {"exclusive": Exclusive("url")}})
    task = app.task(name="others.load", shared=False)(load)
    if is_final:
        app.finalize()
    install(app).finalize()
    assert task.lock_state("https://a").key.startswith("x:others.load:")


@pytest.mark.proves("annotations")
def test_an_annotation_can_change_and_switch_off_the_option_of_a_task(app: Celery):
    annotations = {"others.load": {"exclusive": Exclusive()}, "others.send": {"exclusive": None}}
    install(app).conf.update(SETTINGS, task_annotations=annotations)
    changed, free = (
        app.task(name=name, exclusive=Exclusive("url"), shared=False)(load)
        for name in ("others.load", "others.send")
    )
    assert changed.lock_state("https://a").key == "x:others.load"
    assert not hasattr(free, "lock_state")


@pytest.mark.proves("annotations")
def test_an_option_for_all_tasks_leaves_tasks_of_celery_alone_unless_one_is_named(app: Celery):
    annotations = {"*": {"exclusive": Exclusive()}, "celery.backend_cleanup": {"expires": 60}}
    install(app).conf.update(SETTINGS, task_annotations=annotations)
    app.task(name="others.load", shared=False)(load)
    locked = {name for name, task in app.tasks.items() if getattr(task, "exclusive", None)}
    assert locked == {"others.load", "celery.backend_cleanup"}


@pytest.mark.proves("annotations")
@pytest.mark.parametrize(
    ("attributes", "said"),
    [
        (
            {"exclusive": True},
            r"task others\.load: exclusive=True is not an option; write exclusive=Exclusive",
        ),
        ({"exclusive": Exclusive("ulr")}, r"'others\.load'.*no parameter 'ulr'.*did you mean 'url'\?"),
        (
            {"exlusive": Exclusive("url")},
            r"'others\.load' has option 'exlusive=.*did you mean 'exclusive='\?",
        ),
        (Exclusive("url"), r"'others\.load' .*write \{'others\.load': \{'exclusive': Exclusive\('url'\)\}\}"),
    ],
    ids=["no option", "unknown parameter", "misspelt", "no attributes"],
)
@either_order
def test_a_wrong_annotation_is_refused_with_the_name_of_its_task(
    app: Celery, set_up: SetUp, attributes: Any, said: str
):
    set_up(app, lambda app: app.conf.update(SETTINGS, task_annotations={"others.load": attributes}))
    app.task(name="others.load", shared=False)(load)
    with pytest.raises(OptionError, match=said):
        app.finalize()


@pytest.mark.proves("annotations")
def test_an_option_for_all_tasks_that_does_not_fit_one_names_it(app: Celery):
    install(app).conf.update(SETTINGS, task_annotations={"*": {"exclusive": Exclusive("user_id")}})
    app.task(name="others.load", shared=False)(load)
    with pytest.raises(OptionError, match=r"'others\.load'.*no parameter 'user_id'"):
        app.finalize()


@pytest.mark.proves("annotations")
def test_an_annotation_of_an_unknown_task_is_reported(app: Celery):
    annotations = {"others.laod": {"exclusive": Exclusive()}, "others.gone": {"rate_limit": "1/s"}}
    install(app).conf.update(SETTINGS, task_annotations=annotations)
    app.task(name="others.load", shared=False)(load)
    (told,) = app._celery_exclusive.installer.unknown_tasks()
    assert told.endswith("task 'others.laod' does nothing, no such task here: did you mean 'others.load'?")
