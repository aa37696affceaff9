"""What `unique=` may say, where a task is declared and in a call."""

from __future__ import annotations

import pickle
import sys
from inspect import signature
from typing import Any

import pytest
from celery import Celery, chain
from kombu.utils.json import dumps, loads

from celery_exclusive import DuplicateTask, Exclusive, OptionError, Unique
from celery_exclusive.publishing.call_options import pop_call_options


def test_a_unique_without_arguments_is_for_identical_calls_until_they_have_finished() -> None:
    option = Unique()
    assert (option.by, option.names, option.key) == (None, ("*",), None)
    assert (option.until, option.held_until, option.period) == ("finished", "finished", None)
    assert (option.on_conflict, option.ttl, option.queued_ttl) == ("skip", None, None)


@pytest.mark.parametrize(
    ("option", "text"),
    [
        (Unique(), "Unique()"),
        (Unique("a", until="started"), "Unique('a', until='started')"),
        (Unique(("a", "b"), period=60), "Unique(('a', 'b'), period=60)"),
        (Unique(key="feed:{a}", on_conflict="raise"), "Unique(key='feed:{a}', on_conflict='raise')"),
        (Unique(ttl=9, queued_ttl=99), "Unique(ttl=9, queued_ttl=99)"),
    ],
)
def test_the_repr_of_an_option_is_the_code_that_makes_it(option: Unique, text: str) -> None:
    assert repr(option) == text
    assert pickle.loads(pickle.dumps(option)) == option
    assert option.replace() == option


@pytest.mark.proves("bounds of times and counts")
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"until": "strated"}, ["'strated'", "'finished'", "did you mean 'started'?"]),
        ({"untli": "started"}, ["'untli'", "did you mean 'until'?"]),
        ({"on_conflict": "wait"}, ["'wait'", "'skip' (nothing is published)", "'raise' (DuplicateTask)"]),
        ({"limit": 4}, ["limit= is about runs", "exclusive=Exclusive(...)"]),
        ({"timeout": 60}, ["queued_ttl= for the key of a lost message"]),
        ({"graceful": True}, ["graceful= is on_conflict= here"]),
        ({"unlock_before_run": True}, ["is until='started' here"]),
        ({"period": 0}, ["period=0", "number of seconds from 0.1"]),
        ({"period": sys.maxsize}, ["period=9223372036854775807", "seconds from 0.1 to 157766400"]),
        ({"ttl": 1e300}, ["ttl=1e+300", "from 0.1 to 157766400", "exclusive_ttl"]),
        ({"queued_ttl": 157_766_401}, ["queued_ttl=157766401", "to 157766400", "exclusive_queued_ttl"]),
        ({"period": 60, "until": "started"}, ["period=60", "Leave out until="]),
        ({"period": 60, "ttl": 9}, ["period=60", "ttl="]),
        ({"ttl": 0}, ["ttl=0", "exclusive_ttl"]),
        ({"queued_ttl": "9"}, ["queued_ttl='9'", "exclusive_queued_ttl"]),
        ({"by": ()}, ["by=()", "key='...'"]),
        ({"by": "a", "key": "b"}, ["by= and key="]),
        ({"on_store_error": "alow"}, ["'raise' (StoreUnavailable)", "did you mean 'allow'?"]),
        ({"skip_result": {1}}, ["skip_result="]),
    ],
)
def test_a_wrong_option_is_refused_where_it_is_written(options: dict[str, Any], said: list[str]) -> None:
    with pytest.raises(OptionError) as caught:
        Unique(**options)
    assert all(words in str(caught.value) for words in ["Unique()", *said])


def test_a_parameter_that_the_task_has_not_is_refused_when_it_is_declared(make_task: Any) -> None:
    with pytest.raises(OptionError, match=r"unique=Unique\('ulr'\).*did you mean 'url'\?"):
        make_task("ulr")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"lock": Unique()}, r"'lock=Unique\(...\)': did you mean 'unique='"),
        ({"exclusive": Unique()}, r"'exclusive=Unique\(...\)': did you mean 'unique='"),
        ({"unique": True}, r"unique=True is not an option; write unique=Unique\(...\)"),
    ],
)
def test_another_name_or_another_kind_is_refused(app: Celery, options: dict[str, Any], said: str) -> None:
    def work() -> None: ...

    app.task(name="feeds.work", shared=False, **options)(work)
    with pytest.raises(OptionError, match=said):
        app.finalize()


def test_a_call_switches_it_off(make_task: Any, sent: Any) -> None:
    task = make_task()
    task.delay("a")
    for call in (
        lambda: task.apply_async(("a",), unique=None),
        lambda: task.s("a").set(unique=None).delay(),
    ):
        result = call()
        assert (result.outcome, result.existing_id, result.key) == ("published", None, None)
    assert [header.get("switched_off", ()) for header in sent()] == [(), ("unique",), ("unique",)]
    with pytest.raises(OptionError, match=r"unique=1 is not an option of a call"):
        task.apply_async(("a",), unique=1)


def test_a_call_gives_other_values(app: Celery, make_task: Any, sent: Any) -> None:
    task = make_task()
    one = task.apply_async(("a", 1), unique=Unique("url", until="started", ttl=9))
    two = task.s("a", 2).set(unique=Unique(key="feed:{url}", on_conflict="raise")).delay()
    assert [header.get("unique") for header in sent()] == [(one.key, "started"), ("u=feed:a", "finished")]
    assert [header.get("values") for header in sent()] == [
        {"unique": {"until": "started", "ttl": 9}},
        {"unique": {"on_conflict": "raise"}},
    ]
    with pytest.raises(DuplicateTask):
        task.apply_async(("a", 3), unique=Unique(key="feed:{url}", on_conflict="raise"))
    assert two.key == "u=feed:a"
    assert task.apply(("a",), unique=Unique("url", skip_result="busy")).get() == "busy"


@pytest.mark.proves("unique per call")
def test_values_travel_in_a_chain_unless_a_function_makes_the_key(make_task: Any, published: Any) -> None:
    task = make_task()
    given = Unique(key="feed:{url}", skip_result=[None])
    chain(task.si("a"), task.si("b").set(unique=given)).apply_async()
    assert len(published) == 1
    signature = loads(dumps(task.si("b").set(unique=given)))
    assert signature["options"]["unique"] == given
    with pytest.raises(OptionError, match="cannot be written into a message: use a template"):
        dumps(task.si("b").set(unique=Unique(key=str)))


def test_a_call_of_a_task_without_options_cannot_give_one(app: Celery) -> None:
    app.task(name="plain", shared=False)(chain)
    for name in ("plain", "unknown"):
        with pytest.raises(OptionError, match=f"task {name}: unique=Unique.* declare an option at the task"):
            app.send_task(name, unique=Unique())


@pytest.mark.promise(
    "A misspelt option of a call is refused, also if it is to be switched off, and no option that Celery "
    "knows is",
    name="misspelt call option",
    broke="red before it was looked for",
)
def test_an_option_of_a_call_under_another_name_is_refused(make_task: Any) -> None:
    task = make_task()
    with pytest.raises(OptionError, match=r"uniqe=Unique.* is no option of a call: did you mean 'unique'\?"):
        task.apply_async(("a",), uniqe=Unique())
    with pytest.raises(OptionError, match=r"exclusiv=None is no .* did you mean 'exclusive'\?"):
        task.apply_async(("a",), exclusiv=None)
    with pytest.raises(OptionError, match=r"queue=Unique.* is no option of a call"):
        task.apply_async(("a",), queue=Unique())


@pytest.mark.proves("misspelt call option")
def test_no_option_of_a_call_that_celery_knows_is_taken_for_ours(make_task: Any) -> None:
    task = make_task()
    known = {*signature(Celery.send_task).parameters, *signature(task.app.amqp.as_task_v2).parameters}
    known |= {"queue", "exchange", "routing_key", "priority", "immediate", "mandatory", "delivery_mode"}
    known |= {"declare", "compression", "serializer", "retry", "retry_policy"}
    assert pop_call_options(task.name, task, dict.fromkeys(known)).unique == task.unique


@pytest.mark.parametrize(
    ("declared", "given"),
    [
        (Unique("url", until="started", ttl=5), Unique("url")),
        (Unique("url", period=60), Unique("url", ttl=5)),
        (Unique("url", until="started"), Unique("url", period=60)),
        (Exclusive("url", on_conflict="skip", limit=3), Exclusive("url")),
        (Exclusive("url", max_waiting=3), Exclusive("url", on_conflict="reschedule", give_up_after=9)),
    ],
)
def test_an_option_of_a_call_replaces_the_declared_one(app: Celery, declared: Any, given: Any) -> None:
    def load(url: str) -> None: ...

    app.task(name="feeds.load", shared=False, **{declared.attribute: declared})(load)
    app.finalize()
    find = getattr(app._celery_exclusive, declared.attribute)  # type: ignore[attr-defined]
    values = loads(dumps({declared.attribute: given.values}))
    assert find(app.tasks["feeds.load"], values) == given
    assert find(app.tasks["feeds.load"], {}) == declared
