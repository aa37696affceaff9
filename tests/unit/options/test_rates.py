"""Rates, costs and limits as options: what is read, and what is refused with its fix."""

from __future__ import annotations

import json
from typing import Any

import pytest
from celery import Celery

from celery_exclusive import Exclusive, OptionError, install, lock
from celery_exclusive.core.records import SECOND
from celery_exclusive.options.amounts import MOST
from celery_exclusive.options.keys import share_of
from celery_exclusive.options.values import option_of_call
from celery_exclusive.publishing.call_options import pop_call_options


@pytest.mark.parametrize(
    ("rate", "read"),
    [
        ("500/m", ((500, 60 * SECOND),)),
        ("1/6s", ((1, 6 * SECOND),)),
        (("5/s", "10000/d"), ((5, SECOND), (10_000, 86_400 * SECOND))),
        (["5/s", "7/2h"], ((5, SECOND), (7, 7_200 * SECOND))),
        (None, ()),
    ],
)
def test_a_rate_is_read(rate: Any, read: object) -> None:
    assert Exclusive("key", rate=rate).rates == read


@pytest.mark.promise(
    "A rate, a cost or a limit that cannot be meant is refused at import with what to write",
)
@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"rate": "500"}, "rate='500' must be a number of starts"),
        ({"rate": "0/s"}, "must be a number of starts"),
        ({"rate": "1/32d"}, "of up to 31 days"),
        ({"rate": 5}, "rate=5 must be"),
        ({"rate": ()}, "rate=() must be"),
        ({"rate": ("1/s", "60/m", "1/h", "1/d")}, "up to 3 of them"),
        ({"rate": ("1/s", "2/1s")}, "with different times"),
        ({"rate": "5/s", "keep_on_retry": True}, "rate= has no keep_on_retry=True"),
        ({"cost": 2}, "cost=2 does nothing with limit=1"),
        ({"cost": 0, "rate": "1/s"}, "cost=0 must be a whole number from 1"),
        ({"cost": True, "rate": "1/s"}, "cost=True must be"),
        ({"rate_limit": "5/m"}, "rate_limit= is rate= here"),
        ({"limit": 0}, "limit=0 must be a whole number from 1 to 1000000000, or None"),
    ],
)
def test_a_rate_that_cannot_be_meant_is_refused(given: dict[str, Any], says: str) -> None:
    with pytest.raises(OptionError) as refused:
        Exclusive("key", **given)
    assert says in str(refused.value)


@pytest.mark.parametrize("given", [{"rate": "x"}, {"cost": 0}, {"limit": "x"}])
def test_a_lock_refuses_the_same(given: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match=next(iter(given))):
        lock("key", **given)


def body(key: str, units: int = 3) -> None: ...


def test_a_cost_is_a_number_an_argument_or_a_function() -> None:
    def cost(cost: Any) -> int:
        return share_of("t", body, Exclusive("key", limit=9, cost=cost), ("a",), {}).cost

    assert cost(2) == 2
    assert cost("units") == 3
    assert cost(lambda key, units: len(key) + units) == 4
    for wrong in ("key", lambda key, units: 0, lambda key, units: 1 / 0):
        with pytest.raises(OptionError, match="cost="):
            cost(wrong)


def test_a_cost_that_names_no_parameter_is_refused_when_the_task_is_declared() -> None:
    app = install(Celery("t", broker="memory://"))
    with pytest.raises(OptionError, match=r"there is no parameter 'unit' .* did you mean 'units'"):
        app.task(exclusive=Exclusive("key", limit=9, cost="unit"), shared=False, lazy=False)(body)


def test_a_limit_may_be_a_function_that_is_called_each_time() -> None:
    limits = iter([3, None, 0])
    option = Exclusive("key", limit=lambda: next(limits))
    assert [option.most, option.most] == [3, MOST]
    with pytest.raises(OptionError, match="limit= returned 0"):
        option.most  # noqa: B018 - it is computed


@pytest.mark.promise(
    "A number that a call gives in the place of a function of its task reaches the worker, also if it is the "
    "default, and another function is refused",
    broke="the value was left out as the default: the worker used the function",
)
def test_a_call_may_give_a_number_and_no_other_function() -> None:
    class task:  # noqa: N801 - the least of a task
        exclusive = Exclusive("key", limit=lambda: 7, cost=lambda key, units: 5)
        unique = None

    options: dict[str, Any] = {"exclusive": task.exclusive.replace(limit=1, cost=1)}
    values = pop_call_options("t", task, options).values
    read = option_of_call(task, Exclusive, json.loads(json.dumps(values)))
    assert read
    assert (read.limit, read.cost) == (1, 1)
    options = {"exclusive": task.exclusive.replace(limit=lambda: 9)}
    with pytest.raises(OptionError, match=r"limit=<function .* is a function, which no message carries"):
        pop_call_options("t", task, options)


def test_a_call_takes_the_functions_of_its_task_and_the_numbers_of_its_own() -> None:
    class task:  # noqa: N801 - the least of a task
        exclusive = Exclusive("key", limit=lambda: 7, cost=lambda key, units: 5, rate=("5/s", "9/m"))

    changed = task.exclusive.replace(order="any")
    read = option_of_call(task, Exclusive, json.loads(json.dumps({"exclusive": changed.values})))
    assert read == changed
    changed = task.exclusive.replace(cost=2, limit=None)
    read = option_of_call(task, Exclusive, json.loads(json.dumps({"exclusive": changed.values})))
    assert read
    assert (read.cost, read.limit, read.rates) == (2, None, task.exclusive.rates)
