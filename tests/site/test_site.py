"""The site that `make docs` builds, and the packages that `make dist` builds."""

from __future__ import annotations

import re
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from email import message_from_bytes
from html.parser import HTMLParser
from importlib import import_module
from pathlib import Path
from urllib.parse import unquote, urlsplit

import nox
import pytest

from tests.browser import Browser
from tests.conftest import or_leave_out
from tests.servers import wait_until
from tests.site.conftest import URL

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src/celery_exclusive"
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("site")]


class Page(HTMLParser):
    """The anchors, the links and the files of a page."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.ids, self.links, self.files = set[str](), set[str](), set[str]()
        self.feed(file.read_text())

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        values = {name: value for name, value in attributes if value is not None}
        self.ids.add(values.get("id", ""))
        if tag == "a":
            self.links.add(values.get("href", ""))
        else:
            self.files |= {values[name] for name in ("href", "src") if name in values}


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    """All pages of the site."""
    return {file: Page(file) for file in site.rglob("*.html")}


@pytest.fixture(scope="module")
def reader() -> Iterator[Browser]:
    """One browser for many pages."""
    with or_leave_out(Browser) as browser:
        yield browser


def leads_somewhere(pages: dict[Path, Page], page: Path, link: str) -> bool:
    path, _, anchor = unquote(link).partition("#")
    file = (page.parent / path).resolve() if path else page
    return file.is_file() and (not anchor or file not in pages or anchor in pages[file].ids)


@pytest.mark.promise(
    "`make docs` builds the site without a warning: each page of `docs/` is in its contents, each link leads "
    "to a page and an anchor, and no page loads a file from elsewhere",
    broke="a page in no list of contents; a link to a heading that is not there; a script of another host",
    figure="by hand: on Python 3.10, 3.11 and 3.13, and without any network (`unshare -rn make docs`)",
)
def test_each_link_of_the_site_leads_somewhere_and_no_page_loads_a_file_from_elsewhere(
    pages: dict[Path, Page],
) -> None:
    of_the_site = {
        (page, one) for page, found in pages.items() for one in found.links if not urlsplit(one).scheme
    }
    assert not [link for link in of_the_site if not leads_somewhere(pages, *link)]
    loaded = {(page, file.partition("?")[0]) for page, found in pages.items() for file in found.files}
    assert not [file for file in loaded if not leads_somewhere(pages, *file)]


@pytest.mark.promise(
    "Each page of the site names the version of pyproject.toml",
    broke="the version that is installed",
)
def test_each_page_of_the_site_names_the_version_of_the_project(site: Path) -> None:
    version = nox.project.load_toml(ROOT / "pyproject.toml")["project"]["version"]
    heads = [page.read_text().partition("</head>")[0] for page in site.rglob("*.html")]
    assert len(heads) > 40
    assert not [head for head in heads if f"celery-exclusive {version}</title>" not in head]


@pytest.mark.promise(
    "The site has llms.txt in its root, and each link of it leads to a page",
    broke="links to the files of the repository; a page that is not there",
)
def test_each_link_of_llms_txt_leads_to_a_page_of_the_site(site: Path, pages: dict[Path, Page]) -> None:
    links = re.findall(r"\]\((\S+?)\)", (site / "llms.txt").read_text())
    assert len(links) > 20
    assert not [link for link in links if not leads_somewhere(pages, site / "index.html", link)]


def public() -> dict[int, str]:
    """All objects in the `__all__` of a module, by their identity."""
    found = {}
    for file in PACKAGE.rglob("*.py"):
        if re.search(r"^__all__ = ", file.read_text(), re.MULTILINE):
            name = ".".join(file.relative_to(PACKAGE.parent).with_suffix("").parts)
            module = import_module(name.removesuffix(".__init__"))
            found |= {id(getattr(module, one)): f"{module.__name__}.{one}" for one in module.__all__}
    return found


def described(site: Path) -> dict[int, str]:
    """All objects of modules that the site describes, by their identity: its inventory has their names."""
    inventory = zlib.decompress((site / "objects.inv").read_bytes().split(b"\n", 4)[4]).decode()
    found = {}
    for name in re.findall(r"^(\S+) py:(?:class|data|exception|function) ", inventory, re.MULTILINE):
        module, _, attribute = name.rpartition(".")
        found[id(getattr(import_module(module), attribute))] = name
    return found


@pytest.mark.promise(
    "The API of the site has each name in an `__all__`, and no other name of a module",
    broke="`lock` left out; a function of `errors` that is not in `__all__`",
)
def test_the_api_of_the_site_has_each_public_name_and_no_other(site: Path) -> None:
    on_the_site, names = described(site), public()
    assert len(names) > 30
    assert not [name for one, name in names.items() if one not in on_the_site]
    assert not [name for one, name in on_the_site.items() if one not in names]


@pytest.mark.promise(
    "The search of the site needs no server: a real browser finds a page (Chromium 150 without a window)",
    broke="the search index removed",
)
def test_a_search_in_the_site_finds_a_page_without_a_server(site: Path, browser: Browser) -> None:
    browser.open(f"file://{site}/tutorial/first-task.html")
    browser.type("input[name=q]", "DuplicateTask\n")
    assert any("celery_exclusive" in found for found in browser.texts("#search-results li a"))


@pytest.mark.promise(
    "The search finds the page for the words of a reader: cron, overlap, multi tenant, idempotent, progress, "
    "celery-once, retention",
    broke="a page that does not have the word, or has it in no heading",
)
@pytest.mark.parametrize(
    ("words", "page"),
    [
        ("cron", "how-to/periodic"),
        ("overlap", "how-to/periodic"),
        ("multi tenant", "how-to/fair"),
        ("idempotent", "how-to/fence"),
        ("progress", "how-to/status"),
        ("celery-once", "how-to/migrate"),
        ("retention", "how-to/security"),
    ],
)
def test_a_search_for_the_words_of_a_reader_finds_the_page_early(
    site: Path, reader: Browser, words: str, page: str
) -> None:
    reader.open(f"file://{site}/search.html?q={words.replace(' ', '+')}")
    wait_until(lambda: reader.text("#search-results h2") == "Search Results", "the end of the search", 60)
    script = (
        "return [...document.querySelectorAll('#search-results li > a')].map(a => a.getAttribute('href'))"
    )
    assert any(href.startswith(f"{page}.html") for href in reader.run(script)[:3])


@pytest.mark.promise(
    "On a package index each link of the README leads to a page and an anchor of the site, whose URL is in "
    "pyproject.toml alone",
    broke="links that stay relative; the site at another path",
)
def test_each_link_of_the_readme_of_a_package_leads_to_the_site(
    packages: Path, site: Path, pages: dict[Path, Page]
) -> None:
    (wheel,) = packages.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (metadata,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        readme = message_from_bytes(archive.read(metadata)).get_payload()
    links = re.findall(r"\]\(([^)\s]+)\)", str(readme))
    assert len(links) > 20
    assert not [link for link in links if not link.startswith(f"{URL}/")]
    paths = [link.removeprefix(f"{URL}/") for link in links]
    assert not [path for path in paths if not leads_somewhere(pages, site / "index.html", path)]


@pytest.mark.promise(
    "The sdist has the files of the repository, such as docs, tests, examples, pins and the changelog, and "
    "no others. The wheel has the package alone. `make dist` checks both with `twine check --strict`",
    broke="the docs, or the files of the forge, left out; the Lua files left out of the wheel",
)
def test_the_sdist_has_the_repository_and_the_wheel_has_the_package_alone(packages: Path) -> None:
    clone = packages.parent
    kept = {file.relative_to(clone) for file in clone.rglob("*") if file.is_file()}
    expected = {str(file) for file in kept if file.parts[0] != "dist" and "__pycache__" not in file.parts}
    (sdist,), (wheel,) = packages.glob("*.tar.gz"), packages.glob("*.whl")
    with tarfile.open(sdist) as archive:
        files = {one.name.partition("/")[2] for one in archive.getmembers() if one.isfile()}
    assert files - {"PKG-INFO", "pyproject.toml.orig"} == expected
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if not name.endswith("/")}
    package = {name.removeprefix("src/") for name in expected if name.startswith("src/")}
    assert {name for name in names if ".dist-info/" not in name} == package
