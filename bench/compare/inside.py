"""A process of one system, in its environment: `python -m bench.compare.inside SYSTEM work|call PLACE`.

`work` is a worker. `call` reads a call from each line of its standard input, and answers with a line.
"""

from __future__ import annotations

import json
import sys
from importlib import import_module
from typing import Any

from bench.compare.place import Place


def main(system: str, role: str, place: str) -> None:
    module = import_module(f"bench.compare.systems.{system}")
    if role == "work":
        module.work(Place.from_json(place))
        return
    for line in sys.stdin:
        print(json.dumps(call(module, Place.from_json(place), *json.loads(line))), flush=True)


def call(module: Any, place: Place, what: str, *arguments: Any) -> str:
    """Call `send` or `chord` of the system, and return what came of it."""
    try:
        return str(getattr(module, what)(place, *arguments))
    except Exception as error:  # noqa: BLE001 - how a system refuses a call is a verdict
        return f"refused: {type(error).__name__}"


if __name__ == "__main__":
    main(*sys.argv[1:])
