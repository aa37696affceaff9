"""The pool of child processes, and the pipe through which a child reports its results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from billiard.process import current_process


def listen_to_children(pool: Any, state: str, receive: Callable[..., object]) -> None:
    """Let the event loop of the main process call a function with what children write under this state."""
    pool._pool._result_handler.state_handlers[state] = receive


def number_of_child() -> int:
    """Return the number that the pool has given to this child, from 0; the next child may get it again."""
    process: Any = current_process()
    number: int = process.index
    return number


def write_to_parent(data: bytes) -> None:
    """Write into the pipe of this child's results: a pickle of a state, and of a tuple of arguments."""
    process: Any = current_process()
    process.outq.send_payload(data)
