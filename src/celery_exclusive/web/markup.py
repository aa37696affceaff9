"""HTML that escapes by construction: each value in a template is escaped, unless it is `Html` itself."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Final
from urllib.parse import urlencode

from celery_exclusive.display import printable

if TYPE_CHECKING:
    from typing_extensions import LiteralString


class Html(str):
    """A string that is HTML. Only this module makes it: of literal templates."""

    __slots__ = ()


EMPTY: Final = Html()


def fill(template: LiteralString, /, *values: object, **named: object) -> Html:
    """Return a template with these values, each escaped, without control characters.

    Example:
        fill('<a href="{}">{}</a>', url("key", key=key), key)
    """
    return Html(template.format(*map(_safe, values), **{name: _safe(value) for name, value in named.items()}))


def join(parts: Iterable[object], between: LiteralString = "") -> Html:
    """Return these parts, each escaped unless it is HTML."""
    return Html(between.join(map(_safe, parts)))


def url(page: str, /, **query: object) -> str:
    """Return the URL of a page, relative to all pages: they are in one folder, wherever it is mounted."""
    given = {name: value for name, value in query.items() if value not in ("", None)}
    return f"{page or './'}?{urlencode(given)}" if given else page or "./"


def link(page: str, text: object, /, **query: object) -> Html:
    """Return a link to a page."""
    return fill('<a href="{}">{}</a>', url(page, **query), text)


def button(page: str, text: object, /, **query: object) -> Html:
    """Return a link to the page of an action, which looks like a button."""
    return fill('<a class="button" href="{}">{}</a>', url(page, **query), text)


def table(
    caption: str, heads: Sequence[str], rows: Iterable[Sequence[object]], *, is_named: bool = False
) -> Html:
    """Return a table. A narrow screen shows each row as a card, with the heads as labels.

    The roles keep it a table for screen readers there. If a heading above it names it already, only they need
    the caption.
    """
    kind = "hidden" if is_named else "range"
    head = join(fill('<th scope="col" role="columnheader">{}</th>', text) for text in heads)
    body = join(_row(heads, row) for row in rows)
    return fill(
        '<table role="table"><caption class="{}">{}</caption><thead role="rowgroup"><tr role="row">{}</tr>'
        '</thead><tbody role="rowgroup">{}</tbody></table>',
        kind,
        caption,
        head,
        body,
    )


def facts(values: Mapping[str, object]) -> Html:
    """Return a list of names with their values, without the empty ones."""
    pairs = ((name, value) for name, value in values.items() if value not in ("", None))
    return fill(
        '<dl class="facts">{}</dl>', join(fill("<div><dt>{}</dt><dd>{}</dd></div>", *one) for one in pairs)
    )


def _row(heads: Sequence[str], cells: Sequence[object]) -> Html:
    """The first cell names the row."""
    pairs = list(zip(heads, cells, strict=True))
    first = fill('<th scope="row" role="rowheader" data-label="{}"><div>{}</div></th>', *pairs[0])
    others = join(fill('<td role="cell" data-label="{}"><div>{}</div></td>', *pair) for pair in pairs[1:])
    return fill('<tr role="row">{}{}</tr>', first, others)


def _safe(value: object) -> str:
    if isinstance(value, Html):
        return value
    return "" if value is None else escape(printable(str(value)))
