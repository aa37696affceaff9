"""The arguments of a call, as log lines show them."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Mapping, Sequence

from celery_exclusive.options.canonical import AS_THEY_ARE, scalar, type_name
from celery_exclusive.options.keys import argument, bind, named
from celery_exclusive.options.option import Option

_short = reprlib.Repr()
_short.maxstring = _short.maxlong = 60
_short.maxlevel = 2


def preview(
    run: Callable[..., object],
    option: Option | None,
    args: Sequence[object] | None,
    kwargs: Mapping[str, object] | None,
    limit: int = 80,
) -> str:
    """Return a short text of the arguments for logs, "feed_url='https://…'", or "". Never raises.

    It has the arguments that make the key of the option; without one, all of them.
    """
    try:
        bound = bind(run, args, kwargs)
        names = named(option) if option else None
        shown = bound.arguments if names is None else dict.fromkeys(names)
        text = ", ".join(f"{name}={_shown(argument(bound, name))}" for name in shown)
    except Exception:  # noqa: BLE001 - a log line is not worth a task
        return ""
    return shortened(text, limit)


def given_preview(request: Mapping[str, object], limit: int = 80) -> str:
    """Return the caller's text for logs (`argsrepr`, `kwargsrepr`) instead of the arguments, or "".

    A retry has no such text: Celery writes the arguments themselves into its message.
    """
    texts = [str(request.get(name) or "") for name in ("argsrepr", "kwargsrepr")]
    is_retry = bool(request.get("retries"))
    return "" if is_retry else shortened(" ".join(text for text in texts if len(text) > len("()")), limit)


def shortened(text: str, limit: int = 80) -> str:
    """Return the text with at most `limit` characters."""
    return text if len(text) <= limit else text[: max(limit - 1, 0)] + "…"


def _shown(value: object) -> str:
    if type(value) in AS_THEY_ARE:
        return _short.repr(value)
    tag, text = scalar(value) or (b"", f"<{type_name(value)}>")
    return _short.repr(text) if tag == b"s" else text
