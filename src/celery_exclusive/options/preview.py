"""The arguments of a call, as log lines show them: shortened, and without what looks like a secret."""

from __future__ import annotations

import inspect
import re
import reprlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from celery_exclusive.options.canonical import AS_THEY_ARE, scalar, type_name
from celery_exclusive.options.keys import argument, bind, named
from celery_exclusive.options.option import Option

_SECRET: Final = re.compile(
    r"passw|passphrase|passcode|pwd|secret|token|credential|cookie|signature|csrf|authori[sz]ation"
    r"|[a-z0-9][-_]?keys?(?![a-z])|(?<![a-z])(api|o?auth|jwt|pass|session|sessionid)(?![a-z])",
    re.IGNORECASE,
)
"""The names that Django and Sentry hide, but as words: no "author" or "keyword". A "key" alone is
shown, since it often is the name of what is locked."""
HIDDEN: Final = "**"


def looks_secret(name: object) -> bool:
    """Whether the value of this parameter, or key of a dict, is not for log lines."""
    return bool(_SECRET.search(str(name)))


class _Short(reprlib.Repr):
    def repr_dict(self, x: dict[Any, Any], level: int) -> str:
        return super().repr_dict({key: _Hidden() if looks_secret(key) else x[key] for key in x}, level)

    def repr_instance(self, x: Any, level: int) -> str:
        if type(x) in AS_THEY_ARE:
            return super().repr_instance(x, level)
        return HIDDEN if isinstance(x, _Hidden) else _shown(x)


class _Hidden:
    """Stands for a value that is not shown."""


_short = _Short()
_short.maxstring = _short.maxlong = 60
_short.maxlevel = 2


def preview(
    run: Callable[..., object],
    option: Option | None,
    args: Sequence[object] | None,
    kwargs: Mapping[str, object] | None,
    limit: int = 80,
) -> str:
    """Return a short text of the arguments that make the key, or of all, for logs, or "". Never raises."""
    try:
        bound = bind(run, args, kwargs)
        names = named(option) if option else None
        shown = bound.arguments if names is None else dict.fromkeys(names)
        text = ", ".join(
            f"{name}={HIDDEN if looks_secret(name) else _shown(argument(bound, name))}" for name in shown
        )
    except Exception:  # noqa: BLE001 - a log line is not worth a task
        return ""
    return shortened(text, limit)


def given_preview(request: Mapping[str, object], limit: int = 80) -> str:
    """Return the caller's text for logs (`argsrepr`, `kwargsrepr`), or "": Celery itself writes a retry's."""
    texts = [str(request.get(name) or "") for name in ("argsrepr", "kwargsrepr")]
    is_retry = bool(request.get("retries"))
    return "" if is_retry else shortened(" ".join(text for text in texts if len(text) > len("()")), limit)


def written_preview(run: Callable[..., object] | None, texts: Sequence[str]) -> str:
    """Return what Celery has written of arguments that cannot be read back, "**" if a secret may be in it."""
    text = " ".join(texts).strip()
    names = inspect.signature(run).parameters if run else ()
    return HIDDEN if any(map(looks_secret, (text, *names))) else shortened(text)


def shortened(text: str, limit: int = 80) -> str:
    return text if len(text) <= limit else text[: max(limit - 1, 0)] + "…"


def _shown(value: object) -> str:
    if type(value) in AS_THEY_ARE:
        return _short.repr(value)
    tag, text = scalar(value) or (b"", f"<{type_name(value)}>")
    return _short.repr(text) if tag == b"s" else text
