"""Names the right that a user of a Redis server lacks, and the command that grants it."""

from __future__ import annotations

import re

WORDS = ("NOPERM", "ACL failure in script", "executing the script can't")
"""The errors by which servers of several versions report a missing right."""
_LINE = "as the ACL line in docs/security.md does"


def to_grant(text: str, user: str) -> str:
    """Return the next step after an error with one of these words."""
    if command := re.search(r"run the '([^']+)' command", text):
        return f"grant its user this command, {_LINE}: ACL SETUSER {user} +{command[1]}"
    if re.search(r"\bkeys?\b", text):
        own = "~cx2:* (for the prefix cx)"
        return f"grant its user the keys of exclusive_prefix, {_LINE}: ACL SETUSER {user} {own}"
    return f"grant its user all rights on exclusive_prefix, {_LINE}; ACL LOG shows which one is missing"
