"""Connections of redis-py."""

from __future__ import annotations

from operator import attrgetter
from typing import Final

socket_of: Final = attrgetter("_sock")
"""Return the socket of an open connection."""
error_of: Final = attrgetter("_parser.parse_error")
"""Return the function that makes the exception of an error that the server has replied."""
