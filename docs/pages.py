"""The pages of the site that show a file from outside of this folder, such as the README."""

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
