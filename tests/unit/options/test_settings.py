"""Where settings are found, what they may be, and how a misspelt one is reported."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from celery import Celery
from celery.app.utils import bugreport

from celery_exclusive.errors import OptionError
from celery_exclusive.options.amounts import LONGEST
from celery_exclusive.options.settings import Settings, tombstone_ttl

Configure = Callable[[Celery, dict[str, Any]], None]


@pytest.fixture
def app(monkeypatch: pytest.MonkeyPatch) -> Iterator[Celery]:
    for name in ("CELERY_BROKER_URL", "CELERY_BROKER_READ_URL", "CELERY_CONFIG_MODULE"):
        monkeypatch.delenv(name, raising=False)
    app = Celery("settings", set_as_current=False)
    yield app
    app.close()


def by_update(app: Celery, values: dict[str, Any]) -> None:
    app.conf.update(values)


def by_update_after_load(app: Celery, values: dict[str, Any]) -> None:
    assert app.conf.get("broker_url") is None
    app.conf.update(values)


def by_object(app: Celery, values: dict[str, Any]) -> None:
    app.config_from_object(SimpleNamespace(**values))


def by_module(app: Celery, values: dict[str, Any]) -> None:
    module = ModuleType("exclusive_config_for_test")
    vars(module).update(values)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, module.__name__, module)
        app.config_from_object(module.__name__)
        assert app.conf.get("broker_url") is None  # load it


def in_capitals(app: Celery, values: dict[str, Any]) -> None:
    by_module(app, {name.upper(): value for name, value in values.items()})


def in_django(app: Celery, values: dict[str, Any]) -> None:
    from django.conf import LazySettings

    settings = LazySettings()
    settings.configure(
        SECRET_KEY="none", **{f"CELERY_{name}".upper(): value for name, value in values.items()}
    )
    app.config_from_object(settings, namespace="CELERY")


def with_lower_namespace(app: Celery, values: dict[str, Any]) -> None:
    names = {f"tasks_{name}": value for name, value in values.items()}
    app.config_from_object(SimpleNamespace(**names), namespace="tasks")


every_way = pytest.mark.parametrize(
    "configure",
    [by_update, by_update_after_load, by_object, by_module, in_capitals, in_django, with_lower_namespace],
)


def test_without_configuration_every_setting_has_its_default(app: Celery):
    assert Settings.from_conf(app.conf) == Settings(
        exclusive_store=None,
        exclusive_prefix="cx",
        exclusive_ttl=30,
        exclusive_offer=5,
        exclusive_reap_period=1,
        exclusive_tombstone_ttl=None,
        exclusive_store_wait=60,
        exclusive_on_store_error="raise",
        exclusive_max_waiting=None,
        exclusive_preview=True,
    )


@every_way
def test_a_setting_is_found_wherever_celery_keeps_it(app: Celery, configure: Configure):
    configure(app, {"exclusive_ttl": 5, "exclusive_store": "redis://locks/1", "exclusive_preview": False})
    settings = Settings.from_conf(app.conf)
    assert settings == Settings(exclusive_ttl=5, exclusive_store="redis://locks/1", exclusive_preview=False)


@pytest.mark.proves("bad keys and settings")
@every_way
def test_a_misspelt_setting_is_refused_with_the_one_that_was_meant(app: Celery, configure: Configure):
    configure(app, {"exclusive_tll": 5})
    with pytest.raises(OptionError) as caught:
        Settings.from_conf(app.conf)
    message = str(caught.value).lower()
    assert "exclusive_tll is unknown" in message
    assert "exclusive_ttl'?" in message


def test_in_django_the_suggestion_is_spelled_as_django_wants_it(app: Celery):
    in_django(app, {"exclusive_tll": 5})
    with pytest.raises(OptionError, match=r"CELERY_EXCLUSIVE_TLL .* did you mean 'CELERY_EXCLUSIVE_TTL'\?"):
        Settings.from_conf(app.conf)


def test_a_django_name_without_the_namespace_is_refused_since_it_would_do_nothing(app: Celery):
    by_object(app, {"CELERY_EXCLUSIVE_TTL": 5})
    with pytest.raises(OptionError, match=r"CELERY_EXCLUSIVE_TTL .* did you mean 'EXCLUSIVE_TTL'\?"):
        Settings.from_conf(app.conf)


def test_a_django_name_in_mixed_case_is_refused_since_it_would_do_nothing(app: Celery):
    app.config_from_object(SimpleNamespace(CELERY_Exclusive_TTL=5), namespace="CELERY")
    with pytest.raises(OptionError, match=r"CELERY_Exclusive_TTL .* did you mean 'CELERY_EXCLUSIVE_TTL'\?"):
        Settings.from_conf(app.conf)


def test_with_a_namespace_other_capitals_belong_to_others(app: Celery):
    app.config_from_object(SimpleNamespace(EXCLUSIVE_OFFERS=True, EXCLUSIVE_TTL="x"), namespace="CELERY")
    assert Settings.from_conf(app.conf) == Settings()


def test_a_default_never_overrides_what_the_user_sets_later(app: Celery):
    assert Settings.from_conf(app.conf).exclusive_ttl == 30
    app.conf.exclusive_ttl = 7
    assert Settings.from_conf(app.conf).exclusive_ttl == 7


@pytest.mark.proves("bounds of times and counts")
@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("exclusive_prefix", None, "a short string without spaces and braces"),
        ("exclusive_prefix", "", "a short string without spaces and braces"),
        ("exclusive_prefix", "{a}", "a short string without spaces and braces"),
        ("exclusive_ttl", "30", "a number of seconds from 0.1 to 157766400, or a timedelta"),
        ("exclusive_ttl", 0.01, "a number of seconds from 0.1 to 157766400, or a timedelta"),
        ("exclusive_ttl", None, "a number of seconds from 0.1 to 157766400, or a timedelta"),
        ("exclusive_ttl", sys.maxsize, "a number of seconds from 0.1 to 157766400, or a timedelta"),
        ("exclusive_queued_ttl", 157_766_401, "a number of seconds from 0.1 to 157766400, or a timedelta"),
        ("exclusive_offer", 0, "a number of seconds from 0.001 to 1314720, or a timedelta"),
        ("exclusive_offer", float("inf"), "a number of seconds from 0.001 to 1314720, or a timedelta"),
        ("exclusive_offer", 1e-7, "a number of seconds from 0.001 to 1314720, or a timedelta"),
        ("exclusive_offer", 1_314_721, "a number of seconds from 0.001 to 1314720, or a timedelta"),
        ("exclusive_reap_period", -1, "a number of seconds from 0.001 to 157766400, or a timedelta"),
        ("exclusive_reap_period", True, "a number of seconds from 0.001 to 157766400, or a timedelta"),
        ("exclusive_reap_period", 1e300, "a number of seconds from 0.001 to 157766400, or a timedelta"),
        ("exclusive_tombstone_ttl", "600", "a number of seconds from 0.001 to 157766400, or a timedelta"),
        ("exclusive_tombstone_ttl", 10**400, "a number of seconds from 0.001 to 157766400, or a timedelta"),
        ("exclusive_store_wait", float("nan"), "a number of seconds from 0.001 to 157766400, or a timedelta"),
        ("exclusive_store_wait", 1e9, "a number of seconds from 0.001 to 157766400, or a timedelta"),
        ("exclusive_on_store_error", "ignore", "'raise' or 'allow'"),
        ("exclusive_max_waiting", 0, "a whole number from 1 to 1000000000, or None"),
        ("exclusive_max_waiting", "9", "a whole number from 1 to 1000000000, or None"),
        ("exclusive_max_waiting", sys.maxsize, "a whole number from 1 to 1000000000, or None"),
        ("exclusive_preview", 1, "True or False"),
        ("exclusive_unproven_broker", "yes", "True or False"),
        ("exclusive_fast", None, "True or False"),
        ("exclusive_broker_id", 7, "a string"),
    ],
)
def test_a_mistyped_setting_is_refused_with_its_name_its_value_and_what_is_expected(
    app: Celery, name: str, value: object, expected: str
):
    app.conf[name] = value
    with pytest.raises(OptionError) as caught:
        Settings.from_conf(app.conf)
    shown = repr(value) if len(repr(value)) <= 80 else f"{repr(value)[:79]}…"
    assert str(caught.value) == f"setting {name} is {shown}, expected {expected}."


@pytest.mark.parametrize("value", [3, "localhost"])
def test_a_mistyped_store_is_refused_without_its_value(app: Celery, value: object):
    app.conf.exclusive_store = value
    expected = "expected a URL with its scheme, such as 'redis://localhost/1', or None"
    with pytest.raises(
        OptionError, match=f"exclusive_store is a {type(value).__name__} that is not shown, {expected}"
    ):
        Settings.from_conf(app.conf)


@every_way
@pytest.mark.parametrize("secret", ["s" * 16, ["s" * 16, "t" * 16], ("s" * 16, None), (None, "s" * 16)])
def test_a_secret_may_be_a_text_or_several_of_which_the_first_signs(
    app: Celery, configure: Configure, secret: Any
):
    configure(app, {"exclusive_secret": secret})
    settings = Settings.from_conf(app.conf)
    assert settings.secrets == ((secret,) if isinstance(secret, str) else tuple(secret))
    assert "s" * 16 not in repr(settings)


@pytest.mark.promise(
    "A secret is shown nowhere, and refused if it is short",
    name="secret stays secret",
    broke="the value in the error; in the `repr`",
)
@pytest.mark.parametrize(
    "secret",
    ["sesame", "", b"sesame that is bytes", 1234567890123456, [], (), [None], [None, None],
     ["s" * 16, None, "t" * 16],
     ["s" * 16, "sesame"], ["s" * 16, 7], {"sesame": "s" * 16}, True],
)  # fmt: skip
def test_a_secret_that_is_too_short_or_no_text_is_refused_without_showing_it(app: Celery, secret: Any):
    app.conf.exclusive_secret = secret
    with pytest.raises(OptionError, match="setting exclusive_secret must be a string of 16") as caught:
        Settings.from_conf(app.conf)
    assert "sesame" not in str(caught.value)
    assert "ssss" not in str(caught.value)
    assert "1234567890123456" not in str(caught.value)
    assert caught.value.__context__ is None


@pytest.mark.proves("secret stays secret")
@pytest.mark.parametrize("configure", [by_update, by_object, by_module, in_capitals, with_lower_namespace])
@pytest.mark.parametrize("secret", ["sesame, open the door", ["sesame, open the door"]], ids=["one", "some"])
def test_celery_masks_the_secret_wherever_it_shows_its_configuration(
    app: Celery, configure: Configure, secret: Any
):
    configure(app, {"exclusive_secret": secret})
    for shown in (app.conf.table(censored=True), app.conf.humanize(), bugreport(app)):
        assert "sesame" not in str(shown)


# How long a finished id is remembered


@pytest.mark.promise(
    "A finished task is remembered for longer than the visibility timeout of the broker, also on PGMQ, and "
    "on other brokers for two hours, since each copy of an offer comes as late as its queue is long",
    broke="the timeout of PGMQ unknown: 600 s of 1,800; 600 s on RabbitMQ: in a queue of 20 minutes a "
    "copy of a task that had ended came after them, and ran",
)
@pytest.mark.parametrize(
    ("url", "seconds"),
    [
        ("redis://localhost", 7800),
        ("rediss://localhost", 7800),
        ("redis+socket:///tmp/redis.sock", 7800),
        ("sentinel://a:26379;sentinel://b:26379", 7800),
        ("amqp://a;redis://b", 7800),
        (["amqp://a", "redis://b"], 7800),
        ("valkey://localhost", 7800),
        ("sqs://", 4200),
        ("pgmq://localhost/mq", 4200),
        ("amqp://localhost", 7800),
        ("sqla+sqlite:///mq.db", 7800),
        ("memory://", 7800),
        (None, 7800),
    ],
)
def test_tombstones_outlive_two_visibility_timeouts_of_the_broker(app: Celery, url: Any, seconds: float):
    app.conf.broker_url = url
    assert tombstone_ttl(app.conf) == seconds


def test_tombstones_follow_the_visibility_timeout_that_is_set(app: Celery):
    app.conf.update(broker_url="redis://", broker_transport_options={"visibility_timeout": 10})
    assert tombstone_ttl(app.conf) == 620


@pytest.mark.proves("timedelta")
def test_a_setting_may_be_a_timedelta(app: Celery):
    app.conf.update(exclusive_ttl=timedelta(minutes=1), exclusive_tombstone_ttl=timedelta(hours=1))
    assert Settings.from_conf(app.conf).exclusive_ttl == 60
    assert tombstone_ttl(app.conf) == 3600


def test_tombstones_follow_their_own_setting_first(app: Celery):
    app.conf.update(broker_url="redis://", exclusive_tombstone_ttl=9)
    assert tombstone_ttl(app.conf) == 9


@pytest.mark.proves("computed times")
def test_a_tombstone_lasts_no_longer_than_a_store_can_keep_it_however_long_the_visibility_timeout(
    app: Celery,
):
    for timeout in (10**9, 10**400, 1.7e308):
        app.conf.update(broker_url="redis://", broker_transport_options={"visibility_timeout": timeout})
        assert tombstone_ttl(app.conf) == LONGEST


def test_the_broker_of_the_environment_counts(app: Celery, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CELERY_BROKER_URL", "redis://elsewhere")
    assert tombstone_ttl(app.conf) == 7800


def test_a_visibility_timeout_that_is_no_number_is_refused(app: Celery):
    app.conf.update(broker_url="redis://", broker_transport_options={"visibility_timeout": "1h"})
    with pytest.raises(
        OptionError, match=r"broker_transport_options has visibility_timeout '1h'.*correct it"
    ):
        tombstone_ttl(app.conf)
