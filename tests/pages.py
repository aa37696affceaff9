"""The pages of the project, and the pieces of Python in them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
PAGES = [README, *sorted((ROOT / "docs").rglob("*.md"))]
PARAMETERS = "doc_id, feed_url, order_id, org_id, project_id, team_id, tenant_id, user_id"
"""The parameters of the task that an option within a sentence or a table is declared for."""
OPTION = r"(?:exclusive|unique)=(?:Exclusive|Unique|Debounce)\((?!\.\.\.)[^`]*\)"


class Example(NamedTuple):
    """A piece of Python in a page, with the line on which it begins."""

    page: Path
    line: int
    code: str

    @property
    def place(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def feeds(self) -> Example:
        """The first block of its page, which is the module `feeds` of the others."""
        return next(first for first in BLOCKS if first.page == self.page)


def examples(pattern: str, flags: int = 0) -> Iterator[Example]:
    for page in PAGES:
        text = page.read_text()
        for found in re.finditer(pattern, text, flags):
            yield Example(page, text.count("\n", 0, found.start(1)) + 1, found[1])


BLOCKS = list(examples(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL))
SHORT = [
    short
    if short.code.startswith("with")
    else short._replace(code=f"@app.task({short.code})\ndef example({PARAMETERS}): ...")
    for short in examples(rf"`({OPTION}(?:, {OPTION})?|with lock\(.*?\): \.\.\.)`")
]
"""The options and locks within a sentence or a table."""
