"""The parts of a key's tasks, as `per=` names them, and their weights."""

from __future__ import annotations

import pickle
from copy import deepcopy
from types import SimpleNamespace
from typing import Any

import pytest

from celery_exclusive import Exclusive, OptionError
from celery_exclusive.core.records import SECOND
from celery_exclusive.core.room import NO_LIMIT, Share
from celery_exclusive.options.keys import check, share_of

pytestmark = pytest.mark.promise(
    "`per=` takes the name of a parameter, a template, a function, or an `Exclusive` with a limit, rates and "
    "a weight, and a wrong one is refused where it is declared, with the fix",
)
MINUTE = 60 * SECOND


def body(tenant_id: object, plan: object = 1) -> None: ...


def declared(**options: Any) -> Exclusive:
    return Exclusive(**{"key": "api", "limit": 25, **options})


def share(option: Exclusive, *args: object) -> Share:
    check("t", body, option)
    return share_of("t", body, option, args, {})


def plan_of(tenant_id: str, plan: object) -> Any:
    return plan


@pytest.mark.parametrize(
    ("per", "expected"),
    [
        (None, Share()),
        ("tenant_id", Share(1, "acme")),
        ("{tenant_id}/{plan}", Share(1, "acme/3")),
        (lambda tenant_id, _: tenant_id.upper(), Share(1, "ACME")),
        (Exclusive("tenant_id"), Share(1, "acme")),
        (Exclusive(("tenant_id", "plan")), Share(1, "acme:3")),
        (Exclusive("tenant_id", weight="plan"), Share(1, "acme", 3)),
        (Exclusive("tenant_id", weight=plan_of), Share(1, "acme", 3)),
        (Exclusive(key="{tenant_id}", weight=7), Share(1, "acme", 7)),
    ],
)
def test_a_call_belongs_to_the_part_that_its_arguments_name(per: Any, expected: Share) -> None:
    assert share(declared(per=per), "acme", 3) == expected


@pytest.mark.parametrize(
    ("given", "limit", "rates"),
    [
        ({}, NO_LIMIT, ()),
        ({"weight": 3}, NO_LIMIT, ()),
        ({"limit": 1}, 1, ()),
        ({"limit": 4}, 4, ()),
        ({"limit": None}, NO_LIMIT, ()),
        ({"limit": lambda: 7}, 7, ()),
        ({"limit": lambda: None}, NO_LIMIT, ()),
        ({"rate": "60/m"}, NO_LIMIT, ((60, MINUTE),)),
        ({"limit": 4, "rate": ["5/s", "60/m"]}, 4, ((5, SECOND), (60, MINUTE))),
    ],
)
def test_a_part_has_a_limit_and_rates_if_they_are_given(given: Any, limit: int, rates: Any) -> None:
    share_of_part = share(declared(per=Exclusive("tenant_id", **given)), "acme")
    assert (share_of_part.limit, share_of_part.rates) == (limit, rates)


@pytest.mark.parametrize("given", [{}, {"limit": 1}])
def test_a_copy_of_an_option_knows_whether_its_limit_was_given(given: Any) -> None:
    option = Exclusive("tenant_id", **given)
    expected = share(declared(per=option), "acme").limit
    for per in (option.replace(weight=1), deepcopy(option), pickle.loads(pickle.dumps(option))):
        assert share(declared(per=per), "acme").limit == expected
    assert repr(option) == ("Exclusive('tenant_id', limit=1)" if given else "Exclusive('tenant_id')")


@pytest.mark.parametrize(
    "option",
    [
        {"limit": None, "per": Exclusive("tenant_id", limit=4)},
        {"limit": None, "per": Exclusive("tenant_id", rate="60/m")},
        {"limit": 1, "cost": 3, "per": Exclusive("tenant_id", rate="60/m")},
        {"keep_on_retry": True, "per": Exclusive("tenant_id", limit=4)},
    ],
)
def test_terms_of_a_part_alone_make_tasks_wait(option: dict[str, Any]) -> None:
    assert share(declared(**option), "acme").part == "acme"


def test_an_attribute_names_a_part_and_a_long_text_is_cut() -> None:
    assert share(declared(per="{tenant_id.pk}"), SimpleNamespace(pk=17)).part == "17"
    long, other = (share(declared(per="tenant_id"), "x" * 999 + end).part for end in "ab")
    assert len(long) == 200
    assert long != other


@pytest.mark.parametrize(
    ("option", "problem"),
    [
        ({"per": "tenant"}, "there is no parameter 'tenant' .*did you mean 'tenant_id'"),
        ({"per": Exclusive("tenant_id", weight="plam")}, "there is no parameter 'plam'"),
        ({"per": "one part"}, "per='one part' is one part for all calls"),
        ({"per": "{tenant_id"}, "per='{tenant_id' is no template"),
        ({"per": "{tenant_id}{plan}"}, "per='{tenant_id}{plan}' has nothing between two values"),
        ({"per": "{tenant_id[pk]}"}, "per=.* use a function as per=, such as lambda tenant_id"),
        ({"per": 3}, "per=3 must be the name of a parameter, a template"),
        ({"per": ""}, "per='' must be the name"),
        ({"per": Exclusive()}, "must name parameters or have a key="),
        ({"per": Exclusive("*")}, "must name parameters or have a key="),
        ({"per": Exclusive("tenant_id", ttl=4)}, "may have limit=, rate= and weight=, and nothing else"),
        ({"per": Exclusive("tenant_id", limit=4, cost=lambda t, p: 1)}, "weight=, and nothing else"),
        ({"per": Exclusive("tenant_id", per="plan")}, "weight=, and nothing else"),
        ({"per": Exclusive("tenant_id", rate="5/s"), "keep_on_retry": True}, "rate= has no keep_on_retry"),
        ({"per": Exclusive("tenant_id", limit=4), "limit": 1, "cost": 2}, "cost=2 does nothing with limit=1"),
        ({"per": Exclusive("tenant_id", limit=None), "limit": None}, "per= does nothing with limit=None"),
        ({"per": Exclusive("tenant_id", weight=3), "limit": None}, "per= does nothing with limit=None"),
        ({"per": "tenant_id", "on_conflict": "skip"}, "on_conflict='skip' keeps none"),
        ({"per": "tenant_id", "on_conflict": "latest"}, "on_conflict='latest' keeps none"),
        ({"per": "tenant_id", "order": "any"}, "order='any' keeps none"),
        ({"per": "tenant_id", "give_up_after": 5}, "per= has no give_up_after="),
        ({"per": "tenant_id", "limit": None}, "per= does nothing with limit=None"),
        ({"per": lambda a: a}, "per= is called with the arguments of the task"),
        ({"weight": 3}, r"write per=Exclusive\('tenant_id', weight=...\)"),
        ({"weight": 0}, "weight=0 must be a whole number from 1 to 100"),
        ({"weight": 101}, "weight=101 must be a whole number from 1 to 100"),
        ({"tenant": "x"}, "is per= here"),
    ],
)
def test_a_wrong_part_is_refused_where_it_is_declared(option: dict[str, Any], problem: str) -> None:
    with pytest.raises(OptionError, match=problem):
        check("t", body, declared(**option))


def test_a_limit_of_a_part_that_cannot_be_meant_is_refused_as_one_of_a_key() -> None:
    for given in ({"limit": 0}, {"limit": "4"}, {"rate": "5"}, {"limit": lambda tenant_id: 4}):
        with pytest.raises(OptionError, match=next(iter(given))) as of_key:
            Exclusive("tenant_id", **given)
        with pytest.raises(OptionError) as of_part:
            declared(per=Exclusive("tenant_id", **given))
        assert str(of_part.value) == str(of_key.value)


@pytest.mark.parametrize(
    ("per", "args", "problem"),
    [
        (Exclusive("tenant_id", weight="plan"), ("a", 0), "weight= is 0 for this call"),
        (Exclusive("tenant_id", weight="plan"), ("a", "gold"), "weight= is 'gold' for this call"),
        (Exclusive("tenant_id", weight=plan_of), ("a", True), "weight= is True for this call"),
        ("tenant_id", ({},), "argument tenant_id .* use a function as per=, such as lambda tenant_id"),
        ("tenant_id", ([1, 2],), "argument tenant_id .* use a function as per="),
        ("{tenant_id.pk}", (1,), "without a readable .pk .*: correct per="),
        (Exclusive("tenant_id", limit=lambda: 0), ("a",), "limit= returned 0"),
        (lambda *_: None, ("a",), "per= returned a NoneType"),
        (lambda *_: 1 // 0, ("a",), "per= raised ZeroDivisionError"),
    ],
)
def test_a_call_whose_part_cannot_be_made_is_refused(per: Any, args: tuple[Any, ...], problem: str) -> None:
    with pytest.raises(OptionError, match=problem):
        share(declared(per=per), *args)


def test_a_call_may_name_other_parts_and_no_other_function() -> None:
    option = declared(per="tenant_id")
    assert option.replace(per="plan").values["per"] == "plan"
    assert repr(declared(per=Exclusive("tenant_id", weight=2))) == (
        "Exclusive(key='api', limit=25, per=Exclusive('tenant_id', weight=2))"
    )
