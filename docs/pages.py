"""The pages of the site that show a file from outside of this folder, and links from such a file to pages."""

from __future__ import annotations

import re
from pathlib import Path

DOCS = Path(__file__).parent
INCLUDE = re.compile(r"^```\{include\} (\S+)\n```$", re.MULTILINE)
LINK = re.compile(r"\]\((?!\w+:|#)([^)#\s]+)")
"""A relative link with its path, which the first group has."""


def pages() -> dict[Path, Path]:
    """Return the page of each file that a page includes."""
    found = ((page, INCLUDE.findall(page.read_text())) for page in DOCS.rglob("*.md"))
    return {(page.parent / file).resolve(): page for page, files in found for file in files}


def linked_to_site(text: str, site: str) -> str:
    """Return the text of a file in the repository's root with links to the pages of the site at this URL.

    Raises:
        ValueError: a link leads to a file that is on no page.
    """
    page_of = pages()

    def link(found: re.Match[str]) -> str:
        file = (DOCS.parent / found[1]).resolve()
        page = page_of.get(file, file)
        if page.suffix == ".svg":  # Sphinx puts the pictures of all pages into one folder
            return f"]({site}_images/{page.name}"
        if page.suffix != ".md" or not page.is_relative_to(DOCS):
            raise ValueError(f"a link leads to {found[1]}, which is on no page of the site")
        return f"]({site}{page.relative_to(DOCS).with_suffix('.html').as_posix()}"

    return LINK.sub(link, text)
