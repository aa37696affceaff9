"""The errors: one family, and words that survive the way to another process."""

from __future__ import annotations

import pickle
import re
from collections.abc import Iterator
from email.message import Message
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest
from celery import Celery

from celery_exclusive import Exclusive, errors
from celery_exclusive.errors import (
    ExclusiveError,
    LeaseLost,
    NoLease,
    OptionError,
    StoreUnavailable,
    did_you_mean,
    docs_page,
)

SOURCE = Path(errors.__file__).parent
DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("kind", [OptionError, LeaseLost, StoreUnavailable])
def test_every_error_is_an_exclusive_error(kind: type[Exception]):
    assert issubclass(kind, ExclusiveError)


def test_an_option_error_is_a_value_error():
    assert issubclass(OptionError, ValueError)


@pytest.mark.parametrize("kind", [ExclusiveError, OptionError, LeaseLost, NoLease, StoreUnavailable])
def test_an_error_says_the_same_in_another_process(kind: type[Exception]):
    error = pickle.loads(pickle.dumps(kind("task 'a.b': the store is down")))
    assert type(error) is kind
    assert error.args == ("task 'a.b': the store is down",)


@pytest.mark.proves("missing lease")
def test_a_lease_that_is_missing_is_the_same_error_in_a_result(app: Celery):
    @app.task(name="bare", shared=False, exclusive=Exclusive())
    def bare() -> None: ...

    with pytest.raises(NoLease) as missing:
        bare.lease  # noqa: B018
    backend: Any = app.backend
    for serializer in ("json", "pickle"):
        told = backend.exception_to_python(backend.prepare_exception(missing.value, serializer))
        assert isinstance(told, ExclusiveError)
        assert isinstance(told, AttributeError)
        assert str(told) == str(missing.value)


@pytest.mark.parametrize(
    ("word", "end"), [("skp", ": did you mean 'skip'?"), ("watt", ": did you mean 'wait'?"), ("quit", ".")]
)
def test_a_word_is_suggested_only_when_it_resembles(word: str, end: str):
    assert did_you_mean(word, ["wait", "skip"]) == end


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[Message]:
    """The metadata of the installed package."""
    metadata = Message()
    monkeypatch.setattr(errors, "metadata", lambda _: metadata)
    docs_page.cache_clear()
    yield metadata
    docs_page.cache_clear()


@pytest.mark.promise(
    "Errors and `locks doctor` name a page of the documentation by its URL if the package knows its site, "
    "else by its path in the repository. Each of these pages exists",
    name="pages in messages",
    broke="the path always, as before; a page that does not exist: each red",
)
def test_a_page_is_named_by_its_url_if_the_package_knows_the_site(installed: Message):
    assert docs_page("how-to/deploy") == "docs/how-to/deploy.md"
    docs_page.cache_clear()
    installed["Project-URL"] = "Changelog, https://site.example/project/changelog.html"
    installed["Project-URL"] = "Documentation, https://site.example/docs/"
    assert docs_page("how-to/deploy") == "https://site.example/docs/how-to/deploy.html"


@pytest.mark.proves("pages in messages")
def test_a_frozen_app_names_pages_by_their_paths(installed: Message, monkeypatch: pytest.MonkeyPatch):
    def not_found(name: str) -> Message:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(errors, "metadata", not_found)
    assert docs_page("how-to/deploy") == "docs/how-to/deploy.md"


@pytest.mark.proves("pages in messages")
def test_each_page_that_a_message_names_exists():
    texts = [file.read_text() for file in SOURCE.rglob("*.py")]
    named = {name for text in texts for name in re.findall(r"docs_page\(.([\w/-]+).\)", text) if "/" in name}
    assert len(named) >= 4
    assert [name for name in sorted(named) if not (DOCS / f"{name}.md").exists()] == []
