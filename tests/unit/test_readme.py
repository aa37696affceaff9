"""README and docs: the examples run as they stand, and the links lead somewhere."""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Callable, Coroutine
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest
from celery import Celery, Task, _state
from django.conf import LazySettings

import celery_exclusive
import celery_exclusive.contrib.django.checks  # before `run` replaces the settings of Django
from celery_exclusive import ExclusiveError
from tests.pages import BLOCKS, PAGES, PARAMETERS, README, ROOT, SHORT, Example
from tests.worker.lab import disconnect

pytestmark = pytest.mark.promise(
    "The examples of README and docs run, also within sentences and tables, and import what they use of the "
    "library; each relative link leads somewhere",
    broke="another word in an example; an import left out; a link to a heading that is not there",
)

T = TypeVar("T")
INDEX = ROOT / "docs/index.md"
FOLDERS = "tutorial", "how-to", "explanation", "reference"
LINKED = [*PAGES, *(ROOT / name for name in ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "llms.txt"))]
MISTAKES = re.findall(
    r"^\| `(@app\.task\(.*?\))` \| `(.*?)` \|",
    (ROOT / "docs/project/assistants.md").read_text(),
    re.MULTILINE,
)


class Web:
    """The part of FastAPI that the pages use: the endpoints of an app, by their functions' names."""

    def __init__(self) -> None:
        self.endpoints: dict[str, Callable[..., Coroutine[Any, Any, Any]]] = {}

    def post(self, _path: str) -> Callable[[T], T]:
        def note(endpoint: Any) -> Any:
            self.endpoints[endpoint.__name__] = endpoint
            return endpoint

        return note

    get = put = post


class Refused(Exception): ...


@pytest.fixture
def run(
    redis_url: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, no_receivers: None
) -> Callable[..., None]:
    """Execute code, and the tests that it defines, with our public names and with an app of its own.

    If the code imports from `feeds`, that module is the first example of the page.
    """
    monkeypatch.setenv("DJANGO_SETTINGS_MODULE", "")  # which a page sets
    monkeypatch.setenv("LOCKS_SECRET", "0123456789abcdef")
    settings = LazySettings()
    settings.configure(CELERY_BROKER_URL=redis_url)
    monkeypatch.setitem(sys.modules, "django.conf", SimpleNamespace(settings=settings))
    queue_once = type("QueueOnce", (Task,), {"abstract": True, "once": {}})
    once = SimpleNamespace(QueueOnce=queue_once, AlreadyQueued=ExclusiveError)  # which we do not install
    monkeypatch.setitem(sys.modules, "celery_once", once)
    monkeypatch.setitem(sys.modules, "fastapi", SimpleNamespace(FastAPI=Web, HTTPException=Refused))

    def run(code: str, feeds: str = "") -> None:
        names: dict[str, Any] = {name: getattr(celery_exclusive, name) for name in celery_exclusive.__all__}
        names["app"] = app = celery_exclusive.install(Celery("readme", broker=redis_url, backend=redis_url))
        names["__name__"] = __name__  # of which Flask asks for its folder
        names |= {"save": lambda *_, **__: None, "rebuild": lambda: None, "page": 1}
        finalizers: set[Any] = vars(_state)["_on_app_finalizers"]
        before, current, default = set(finalizers), _state.get_current_app(), _state.default_app
        try:
            if "from feeds import" in code:
                exec(feeds.replace("redis://localhost", redis_url), names)
                monkeypatch.setitem(sys.modules, "feeds", SimpleNamespace(**names))
            exec(code.replace("redis://localhost", redis_url), names)
            names["app"].finalize()
            for test in [value for name, value in names.items() if name.startswith("test_")]:
                test(**{name: request.getfixturevalue(name) for name in inspect.signature(test).parameters})
        finally:
            for used in {app, names["app"]}:
                disconnect(used)
                used.close()
            finalizers &= before
            _state.set_default_app(default)
            current.set_current()

    return run


def test_the_site_has_at_most_20000_words_besides_the_api() -> None:
    names = pages_in(*FOLDERS, "project")
    texts = [README.read_text(), *((INDEX.parent / f"{name}.md").read_text() for name in names)]
    words = [word for text in texts for word in text.split() if re.search(r"\w", word)]
    assert 10_000 < len(words) <= 20_000


def test_there_are_examples() -> None:
    assert len(BLOCKS) >= 15
    assert len(SHORT) >= 20


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.place)
def test_an_example_runs(block: Example, run: Callable[..., None]) -> None:
    run(block.code, feeds=block.feeds.code)


@pytest.mark.parametrize("page", sorted({block.page for block in BLOCKS}), ids=lambda page: page.stem)
def test_the_examples_of_a_page_import_the_names_of_the_library_that_they_use(page: Path) -> None:
    known: set[str] = set()
    for block in BLOCKS:
        if block.page == page:
            nodes = [*ast.walk(ast.parse(block.code))]
            imports = [node for node in nodes if isinstance(node, ast.ImportFrom)]
            known |= {alias.name for node in imports for alias in node.names}
            used = {node.id for node in nodes if isinstance(node, ast.Name)}
            assert not used.intersection(celery_exclusive.__all__) - known, block.place


@pytest.mark.parametrize("example", SHORT, ids=lambda example: example.place)
def test_an_example_within_a_sentence_or_a_table_runs(example: Example, run: Callable[..., None]) -> None:
    run(example.code)


@pytest.mark.promise(
    "Each mistake in the table of [the page for coding assistants](project/assistants.md) is refused with "
    "the words of its row when the task is declared, and the code beside it is accepted",
    broke="right code in the column of wrong code; other words in a row",
)
@pytest.mark.parametrize(("wrong", "words"), MISTAKES)
def test_a_mistake_of_the_page_for_assistants_is_refused(
    run: Callable[..., None], wrong: str, words: str
) -> None:
    with pytest.raises(celery_exclusive.OptionError, match=re.escape(words)):
        run(f"{wrong}\ndef example({PARAMETERS}): ...")


def test_the_page_for_assistants_has_mistakes() -> None:
    assert len(MISTAKES) > 10


@pytest.mark.promise(
    "`llms.txt` has a title, a summary and lists of links, with each tutorial, how-to, explanation and "
    "reference",
    name="llms.txt",
    broke="a how-to left out; a line without a link",
)
def test_llms_txt_has_a_title_a_summary_and_lists_of_links() -> None:
    title, summary, *rest = (ROOT / "llms.txt").read_text().split("\n\n")
    assert re.fullmatch(r"# .+", title)
    assert all(line.startswith("> ") for line in summary.splitlines())
    _, *sections = "\n\n".join(rest).split("\n## ")
    lines = [line for section in sections for line in section.splitlines()[1:] if line]
    assert len(lines) > 20
    assert not [line for line in lines if not re.fullmatch(r"- \[.+?\]\(\S+?\): .+", line)]


@pytest.mark.proves("llms.txt")
def test_llms_txt_names_each_page_of_a_user() -> None:
    named = re.findall(r"\]\(docs/(\S+)\.md\)", (ROOT / "llms.txt").read_text())
    assert {*pages_in(*FOLDERS)} <= {*named}


@pytest.mark.promise(
    "The endpoints of the page about FastAPI publish, look and lock (by hand with FastAPI 0.165 and its "
    "plain dependencies)",
    broke="the lock left out of an endpoint",
)
def test_the_endpoints_of_the_async_page_publish_look_and_lock(run: Callable[..., None]) -> None:
    run(block_of("fastapi.md", "FastAPI") + ENDPOINTS)


ENDPOINTS = """
def test_endpoints():
    async def call(name, *arguments):
        return await web.endpoints[name](*arguments)

    async def requests():
        assert [(await call("start_import", 7))["outcome"] for _ in range(2)] == ["published", "skipped"]
        assert await call("show", 7) == {"is_running": False, "is_queued": True, "waiting": 0}
        assert (await call("rename", 7, "new"))["title"] == "new"
        guard = lock("feed:7")
        await guard.aacquire()
        assert (await call("show", 7))["is_running"]
        try:
            await call("rename", 7, "new")
        except HTTPException as refused:
            assert refused.args[0] == 409
        else:
            raise AssertionError("two at once")
        await guard.arelease()

    asyncio.run(requests())
"""


@pytest.mark.promise(
    "The app factory of the page about [Flask](how-to/fastapi.md#flask) publishes, looks and locks (by hand "
    "with Flask 3.1 and a prefork worker, whose bodies have the app context)",
    broke="the lock left out of a view",
)
def test_the_views_of_the_flask_page_publish_look_and_lock(run: Callable[..., None]) -> None:
    run(block_of("fastapi.md", "Flask") + VIEWS)


VIEWS = """
def test_views():
    client = web.test_client()
    assert client.post("/feeds/7/import").status_code == 202
    assert client.get("/feeds/7").json == {"is_running": False, "waiting": 0}
    guard = lock("feed:7")
    guard.acquire()
    assert client.get("/feeds/7").json["is_running"]
    assert client.put("/feeds/7").status_code == 409
    guard.release()
    assert client.put("/feeds/7").json == {"renamed": 7}
"""


@pytest.mark.promise(
    "A row that compares the fence refuses the write of an [earlier holder](how-to/fence.md)",
    broke="the condition left out of the UPDATE",
)
def test_a_fenced_row_refuses_the_write_of_an_earlier_holder(
    run: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run(block_of("fence.md", "sqlite3") + WRITES)


WRITES = """
def test_writes():
    with sqlite3.connect("feeds.sqlite3") as database:
        database.execute("CREATE TABLE feeds (id INT, title TEXT, fence BIGINT NOT NULL DEFAULT 0)")
        database.execute("INSERT INTO feeds (id) VALUES (7)")
    for title in ("first", "second"):
        assert rename.apply((7, title)).successful()
    with sqlite3.connect("feeds.sqlite3") as database:
        ((title, fence),) = database.execute("SELECT title, fence FROM feeds").fetchall()
        assert title == "second"
        database.execute("UPDATE feeds SET fence = ?", (fence + 3_600_000_000,))  # by a holder of later
    assert isinstance(rename.apply((7, "late")).result, RuntimeError)
    with sqlite3.connect("feeds.sqlite3") as database:
        assert database.execute("SELECT title FROM feeds").fetchall() == [("second",)]
"""


def pages_in(*folders: str) -> list[str]:
    """The pages of these folders in the contents of the site."""
    return re.findall(rf"^(?:{'|'.join(folders)})/\S+$", INDEX.read_text(), re.MULTILINE)


def block_of(page: str, word: str) -> str:
    """Return the one example of a page that has this word."""
    (code,) = (block.code for block in BLOCKS if block.page.name == page and word in block.code)
    return code


def prose(page: Path) -> str:
    """The text of a page without its blocks of code."""
    return re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub makes of the headings of a page."""
    found: set[str] = set()
    for heading in re.findall(r"^#+ +(.+?) *$", prose(page), re.MULTILINE):
        text = re.sub(r"\[(.*?)\]\(.*?\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")
        numbered = (f"{slug}-{number}" for number in count(1))
        found.add(slug if slug not in found else next(name for name in numbered if name not in found))
    return found


def leads_somewhere(page: Path, target: str) -> bool:
    path, _, anchor = target.partition("#")
    file = (page.parent / path).resolve() if path else page
    return file.is_relative_to(ROOT) and file.exists() and (not anchor or anchor in anchors(file))


@pytest.mark.parametrize("page", LINKED, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_relative_link_of_a_page_leads_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`]*`", "", prose(page)))
    targets = [target for target in targets if not re.match(r"\w+:", target)]
    assert not [target for target in targets if not leads_somewhere(page, target)]
