"""Templates of absolute keys: "repo:{project.pk}"."""

from __future__ import annotations

from functools import lru_cache
from string import Formatter


@lru_cache(maxsize=1024)
def parse_template(template: str) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Split "repo:{project.pk}" into pairs of text and the dotted name behind it, or raise ValueError."""
    fix = "put names of parameters into braces, as in 'repo:{project_id}' or 'repo:{project.pk}'"
    try:
        parsed = [
            (text, name, spec or conversion) for text, name, spec, conversion in Formatter().parse(template)
        ]
    except ValueError as error:
        raise ValueError(f"key={template!r} is no template ({error}): {fix}.") from error
    pairs = [(text, () if name is None else tuple(name.split(".")), extra) for text, name, extra in parsed]
    if any(extra or not all(step.isidentifier() for step in path) for _, path, extra in pairs):
        raise ValueError(f"key={template!r} has braces without a name, or with more than a name: {fix}.")
    return tuple((text, path) for text, path, _ in pairs)
