"""The probe of the private names of other packages: what it says, and what it switches off."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from types import CodeType
from typing import Any

import pytest
from celery import Celery

from celery_exclusive import OptionError, install
from celery_exclusive.seams import probe
from celery_exclusive.seams.seam import Seam
from celery_exclusive.seams.table import SEAMS
from tests.renaming import attribute, remove, renamed

PAGE = Path(__file__).parents[3] / "docs/evidence/private-names.md"
PROMISES = [seam for seam in SEAMS if not seam.faster]
FASTER = [seam for seam in SEAMS if seam.faster]


def named(seam: Seam) -> str:
    return f"{seam.module}.{seam.name}"


def listed() -> str:
    """The names as private-names.md lists them: a row per purpose."""
    rows: dict[str, list[str]] = {}
    for seam in SEAMS:
        purpose = seam.needed_to or f"be faster to {seam.faster}"
        rows.setdefault(purpose, []).append(f"`{named(seam)}`")
    return "".join(f"| {purpose} | {', '.join(names)} |\n" for purpose, names in rows.items())


def test_page_of_private_names_lists_each_name_and_what_needs_it() -> None:
    assert f"|---|---|\n{listed()}\n" in PAGE.read_text(), listed()


def users(seam: Seam) -> list[Seam]:
    """Return the names of the table whose code uses this one."""
    name, others = attribute(seam), [other for other in SEAMS if other.module == seam.module]
    return [
        other
        for other in others
        if name in other.uses.split() or (name in other.may_use.split() and name in code_of(other).co_names)
    ]


def code_of(seam: Seam) -> CodeType:
    """Return the code of a function of the table, in the versions that are installed."""
    function: Any = vars(getattr(sys.modules[seam.module], seam.name.partition(".")[0]))[attribute(seam)]
    code: CodeType = function.__code__
    return code


@pytest.fixture(autouse=True)
def loaded() -> None:
    """All packages are in use."""
    for seam in SEAMS:
        with suppress(ImportError):
            import_module(seam.module)


def test_the_installed_packages_have_every_private_name() -> None:
    assert probe.refusals() == []
    assert probe.warnings() == []


def test_every_private_name_is_listed_once() -> None:
    assert len({named(seam) for seam in SEAMS}) == len(SEAMS)


@pytest.mark.promise(
    "A worker does not start, and `install` raises, if the installed Celery, kombu or billiard lacks a "
    "private name that a promise needs, or has changed it; the error names the package, the name and the "
    "purpose",
    name="missing name that a promise needs",
    broke="no refusal; the parameters of a function not compared; packages asked that are not in use",
)
@pytest.mark.parametrize("seam", PROMISES, ids=named)
def test_a_missing_name_that_a_promise_needs_is_refused_with_its_package_and_purpose(
    seam: Seam, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed = users(seam)
    remove(seam, monkeypatch)
    (sentence,) = probe.refusals()
    version = probe.version_of(seam.package)
    assert sentence.startswith(
        f"{seam.package} {version} has no {seam.name}. celery-exclusive needs it to {seam.needed_to}: "
    )
    assert sentence.endswith(f"(it has it since {seam.since}), or a newer celery-exclusive")
    assert all(
        f" has changed {user.name}" in text for text, user in zip(probe.warnings(), changed, strict=True)
    )


@pytest.mark.promise(
    "Without a private name that only makes things faster all of that is switched off, with a warning, as by "
    "`exclusive_fast = False`; lines and unique calls go on without it",
    name="missing name for speed",
    broke="the part stays switched on: a call raises",
)
@pytest.mark.parametrize("seam", FASTER, ids=named)
def test_a_missing_name_that_is_for_speed_switches_all_such_parts_off_with_a_warning(
    seam: Seam, make_app: Callable[..., Celery], monkeypatch: pytest.MonkeyPatch
) -> None:
    services: Any = install(make_app())._celery_exclusive
    changed = users(seam)
    remove(seam, monkeypatch)
    assert probe.refusals() == []
    sentence, *others = probe.warnings()
    assert all(f" has changed {user.name}" in text for text, user in zip(others, changed, strict=True))
    assert sentence.startswith(f"{seam.package} {probe.version_of(seam.package)} has no {seam.name}, ")
    assert seam.faster in sentence
    assert sentence.endswith(". exclusive_fast is off: slower, not less safe")
    assert not services.is_fast


@pytest.mark.proves("missing name that a promise needs")
@pytest.mark.parametrize("seam", [seam for seam in SEAMS if seam.parameters], ids=named)
def test_a_name_with_other_parameters_has_changed(seam: Seam, monkeypatch: pytest.MonkeyPatch) -> None:
    owner: Any = getattr(sys.modules[seam.module], seam.name.partition(".")[0])
    monkeypatch.setattr(owner, attribute(seam), lambda self, other: None)
    (sentence,) = probe.warnings() if seam.faster else probe.refusals()
    assert sentence.startswith(f"{seam.package} {probe.version_of(seam.package)} has changed {seam.name}")


@pytest.mark.proves("missing name that a promise needs")
def test_a_parameter_between_the_others_is_a_change(monkeypatch: pytest.MonkeyPatch) -> None:
    (seam,) = (seam for seam in SEAMS if attribute(seam) == "_publish")
    producer, parameters = sys.modules[seam.module].Producer, seam.parameters.split()
    signature = ", ".join(["self", *parameters, "timeout=None"])
    monkeypatch.setattr(producer, "_publish", eval(f"lambda {signature}: None"))
    assert probe.refusals() == []
    signature = ", ".join(["self", *parameters[:7], "topic", *parameters[7:]])
    monkeypatch.setattr(producer, "_publish", eval(f"lambda {signature}: None"))
    assert "has changed Producer._publish" in probe.refusals()[0]


def test_a_function_that_wraps_one_and_takes_any_parameters_has_not_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seam = next(seam for seam in SEAMS if attribute(seam) == "_create_client")
    channel = sys.modules[seam.module].Channel
    monkeypatch.setattr(channel, "_create_client", lambda self, *args, **options: None)
    assert probe.warnings() == []


@pytest.mark.proves("missing name for speed")
def test_a_function_that_does_its_work_in_another_way_has_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    channel = sys.modules["kombu.transport.redis"].Channel
    monkeypatch.setattr(channel, "_put", lambda self, queue, message, **options: self.stream(queue, message))
    (sentence,) = probe.warnings()
    assert " has changed Channel._put, which helps it to acquire a unique key" in sentence


@pytest.mark.proves("missing name for speed")
@pytest.mark.parametrize(
    ("name", "old", "new"),
    [("_put", "pop", "trim"), ("_put", "lpush", "push"), ("publish", "_publish", "_deliver")],
)
def test_a_function_that_uses_other_names_has_changed_and_is_no_longer_replaced(
    name: str, old: str, new: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seam = next(seam for seam in SEAMS if attribute(seam) == name and seam.uses)
    if old in seam.may_use.split() and old not in code_of(seam).co_names:
        pytest.skip(f"this kombu uses no {old} there")
    function: Any = vars(getattr(sys.modules[seam.module], seam.name.partition(".")[0]))[name]
    monkeypatch.setattr(function, "__code__", renamed(function.__code__, old, new))
    (sentence,) = probe.warnings()
    assert f" has changed {seam.name}, which helps it to acquire a unique key" in sentence


@pytest.mark.proves("missing name that a promise needs")
def test_a_package_that_is_not_in_use_is_not_asked_for_its_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "pymysql.connections", raising=False)
    seam = next(seam for seam in SEAMS if seam.module == "pymysql.connections")
    assert probe.refusals([seam]) == []
    assert probe.report([seam])[0].startswith("0 of 0 ")


@pytest.mark.proves("missing name for speed")
def test_an_app_uses_what_only_makes_things_faster_unless_its_setting_says_no(
    make_app: Callable[..., Celery],
) -> None:
    fast, slow = install(make_app()), install(make_app(exclusive_fast=False))
    assert fast._celery_exclusive.is_fast  # type: ignore[attr-defined]
    assert not slow._celery_exclusive.is_fast  # type: ignore[attr-defined]


@pytest.mark.proves("missing name that a promise needs")
@pytest.mark.parametrize("name", ["Celery._task_from_fun", "Producer._publish", "extract_exec_options"])
def test_install_refuses_a_celery_without_a_name_that_publishers_need(
    make_app: Callable[..., Celery], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    remove(next(seam for seam in SEAMS if seam.name == name), monkeypatch)
    with pytest.raises(OptionError, match=rf"has no {name}\. celery-exclusive needs it to "):
        install(make_app())


@pytest.mark.promise(
    "`celery report` counts the private names that are as expected, and shows the missing ones",
    name="report of private names",
)
def test_a_report_of_the_app_counts_the_private_names_and_shows_what_is_missing(
    make_app: Callable[..., Celery], monkeypatch: pytest.MonkeyPatch
) -> None:
    app = install(make_app())
    number = len(SEAMS)
    assert f": {number} of {number} private names are as expected in Python " in app.bugreport()
    remove(next(seam for seam in SEAMS if attribute(seam) == "_dirty"), monkeypatch)
    said = app.bugreport()
    assert f": {number - 1} of {number} private names are as expected in Python " in said
    assert "has no Resource._dirty, which helps it to acquire a unique key in the call" in said
