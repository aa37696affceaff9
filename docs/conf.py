"""Sphinx makes the site of these pages and of the docstrings: `make docs`. It fetches nothing."""

from __future__ import annotations

import os
import re
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx

sys.path.insert(0, str(Path(__file__).parent))
from line import bundle
from pages import DOCS, INCLUDE, LINK, linked_to_site, pages

project = "celery-exclusive"
pyproject = (DOCS.parent / "pyproject.toml").read_text()
(release,) = re.findall(r'^version = "(.+)"$', pyproject, re.MULTILINE)  # the installed one may be older
version = release
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
copybutton_prompt_text, copybutton_prompt_is_regexp = r"\$ |>>> |\.\.\. ", True  # a copied command has none
html_theme = "furo"
html_title = f"{project} {release}"
html_copy_source = html_show_copyright = smartquotes = False
myst_heading_anchors = 6
exclude_patterns = ["verification.md", "evidence/**", "decisions/**"]  # read in the repository
default_role = "code"  # of docstrings
autodoc_inherit_docstrings = False
python_maximum_signature_line_length = 100
nitpicky = True
nitpick_ignore_regex = [
    ("py:class", r"(?!celery_exclusive\.).*"),  # of other packages, and the names of their types
    ("py:class", r"celery_exclusive\.(core|stores|web)\..*"),
]


def setup(app: Sphinx) -> None:
    app.connect("source-read", include_and_link)
    app.connect("doctree-read", name_headings)
    app.connect("build-finished", write_llms_txt)
    app.connect("autodoc-process-docstring", mark_code, priority=400)  # before napoleon
    app.connect("autodoc-process-signature", tidy_signature)
    app.connect("build-finished", write_the_line)


def include_and_link(app: Sphinx, name: str, source: list[str]) -> None:
    """Include files of the repository, and let each link to such a file lead to its page."""
    folder, page_of = (DOCS / name).parent, pages()

    def linked(text: str, place: Path) -> str:
        def link(found: re.Match[str]) -> str:
            file = (place / found[1]).resolve()
            return f"]({os.path.relpath(page_of.get(file, file), folder)}" if file.is_file() else found[0]

        return LINK.sub(link, text)

    def included(found: re.Match[str]) -> str:
        file = (folder / found[1]).resolve()
        app.env.note_dependency(str(file))
        return linked(file.read_text(), file.parent)

    source[0] = INCLUDE.sub(included, linked(source[0], folder))


def write_the_line(app: Sphinx, failed: Exception | None) -> None:
    """Write the files of the page `explanation/browser`."""
    if not failed:
        bundle.write(Path(app.outdir, "_static/line"))


def name_headings(_app: Sphinx, page: nodes.document) -> None:
    """Let the anchors of headings in the repository's view lead to the same headings of the site."""
    for section in page.findall(nodes.section):
        if (slug := section.get("slug")) and slug not in section["ids"]:
            section["ids"].append(slug)


def write_llms_txt(app: Sphinx, _error: Exception | None) -> None:
    """Put llms.txt into the root of the site, with links to its pages."""
    (app.outdir / "llms.txt").write_text(linked_to_site((DOCS.parent / "llms.txt").read_text(), ""))


def mark_code(_app: Sphinx, _what: str, _name: str, _object: Any, _options: Any, lines: list[str]) -> None:
    """Mark the lines behind `Example:`, and those that are indented behind a paragraph, as code."""
    marked: list[str] = []
    paragraph = ""
    for before, line in pairwise(["", *lines]):
        is_indented = line.startswith("    ")
        if line == "Example:":
            marked += [".. code-block:: python", ""]
        elif is_indented and not before and paragraph and not paragraph.startswith(" "):
            marked += [".. code-block:: python", "", line]
        else:
            marked.append(line)
        paragraph = line or paragraph
    lines[:] = marked


def tidy_signature(*given: Any) -> tuple[str | None, str | None]:
    """Show no parentheses after a class that only the library makes: its page says `autoclass:: Name()`."""
    *_, signature, returned = given
    if signature == "()" and given[1] != "function":
        return None, returned
    return signature and signature.replace("<default>", "..."), returned
