"""The templates, which escape each value, and what they call."""

from __future__ import annotations

from time import gmtime, strftime
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from celery_exclusive.display import duration, escaped, printable
from celery_exclusive.operate.answers import facts_of, worker_text

if TYPE_CHECKING:
    from celery_exclusive.services import Services
    from celery_exclusive.web.exchange import Page, Request

REFRESH: Final = 5
"""The seconds after which a page that refreshes itself is loaded again."""


def template(file: str, /, **values: object) -> str:
    return _environment.get_template(file).render(values)


def render(services: Services, request: Request, page: Page) -> str:
    again = {"seen": page.seen, **request.query}
    again.pop("live", None)
    return template(
        page.template,
        **page.values,
        page=page,
        request=request,
        query=request.query,
        access=request.access,
        store_url=services.store.url,
        prefix=services.settings.exclusive_prefix,
        now=strftime("%H:%M:%S UTC", gmtime()),
        refresh=REFRESH,
        again=url(request.page, **again),
        again_and_again=url(request.page, **again, live=1),
    )


def url(page: str, /, **query: object) -> str:
    """Return the URL of a page, relative to all pages: they are in one folder, wherever it is mounted."""
    given = {name: value for name, value in query.items() if value not in ("", None)}
    return f"{page or './'}?{urlencode(given)}" if given else page or "./"


def _shown(value: object) -> Any:
    """Return what is shown of a value: text without control characters, and nothing of None."""
    if isinstance(value, Markup):
        return value
    return "" if value is None else printable(str(value))


_environment = Environment(
    loader=PackageLoader("celery_exclusive.web"),
    autoescape=True,
    finalize=_shown,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_environment.globals.update(url=url, facts_of=facts_of, worker_text=worker_text)
_environment.filters.update(
    duration=lambda seconds: "-" if seconds is None else duration(seconds),
    escaped=escaped,
    number=lambda count: f"{count:,}",
)
