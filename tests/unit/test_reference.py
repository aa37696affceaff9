"""The reference pages have each option, setting and error of the library, with its default, and no other."""

from __future__ import annotations

import re
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import Any

import pytest

import celery_exclusive
from celery_exclusive import Debounce, Exclusive, Unique, errors
from celery_exclusive.options.option import NOT_GIVEN, Option
from celery_exclusive.options.settings import Settings

REFERENCE = Path(__file__).parents[2] / "docs/reference"
DEFAULT = 2
"""The column of the default, after the name and the type."""


def table(page: str, head: str, section: str = "") -> dict[str, list[str]]:
    """The cells of each row of the first table with this head, by the name in the first cell."""
    text = (REFERENCE / page).read_text().partition(section)[2] if section else (REFERENCE / page).read_text()
    found = re.search(rf"^\| {head} \|.*\n\|[-|]+\n((?:\|.*\n)+)", text, re.MULTILINE)
    assert found
    rows = [row.strip("| \n").split(" | ") for row in found[1].splitlines()]
    return {row[0].strip("`"): row for row in rows}


def shown(field: Field[Any]) -> str:
    """The begin of the cell of a default."""
    if field.default is MISSING:
        return "required"
    return "" if field.default is NOT_GIVEN else f"`{field.default!r}`".replace("'", '"')


def wrong_defaults(rows: dict[str, list[str]], given: list[Field[Any]]) -> list[str]:
    return [field.name for field in given if not rows[field.name][DEFAULT].startswith(shown(field))]


@pytest.mark.promise(
    "The page of options has each parameter of `Exclusive`, `Unique` and `Debounce` with its default, and no "
    "other",
    broke="`max_waiting` left out; another default of `limit`",
)
@pytest.mark.parametrize("option", [Exclusive, Unique, Debounce])
def test_the_page_of_options_has_each_parameter_and_no_other(option: type[Option]) -> None:
    rows = table("options.md", "parameter", f"\n## {option.__name__}\n")
    given = [field for field in fields(option) if field.name not in option.elsewhere]
    assert set(rows) == {field.name for field in given}
    assert not wrong_defaults(rows, given)


@pytest.mark.promise(
    "The page of settings has each `exclusive_*` setting with its default, and no other",
    broke="`exclusive_fast` left out; a setting that does not exist; another default of `exclusive_ttl`",
)
def test_the_page_of_settings_has_each_setting_and_no_other() -> None:
    rows = table("settings.md", "setting")
    assert set(rows) == {field.name for field in fields(Settings)}
    assert not wrong_defaults(rows, list(fields(Settings)))


@pytest.mark.promise(
    "The page of errors has each public error and no other, the ones of `celery_exclusive` first",
    broke="`NoLease` left out; an error that is not public; the errors in another order",
)
def test_the_page_of_errors_has_each_public_error_and_no_other() -> None:
    names = list(table("errors.md", "error"))
    in_package = {name for name in errors.__all__ if name in celery_exclusive.__all__}
    assert set(names) == set(errors.__all__)
    assert set(names[:10]) == in_package
