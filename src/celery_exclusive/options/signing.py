"""Signs our header of a message and the stored messages, and verifies them when they return."""

from __future__ import annotations

import hmac
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

SIGNATURE: Final = "sig"
"""The field of a header that holds its signature."""
_MARK: Final = b"signed "
"""The start of a signed stored message; an unsigned one starts with the brace of its JSON."""
_HEX: Final = 64

_NAMELESS = str(None)
"""The name of a task whose message names none in its headers."""


class Signer:
    """Signs with the first secret and accepts the signatures of all; without a secret it accepts everything.

    None among the secrets accepts messages without a signature, while not all processes have a secret yet; as
    the first one, it signs nothing yet. An invalid signature is never accepted.
    """

    def __init__(self, secrets: Sequence[str | None], namespace: str) -> None:
        self._secrets = tuple(secret.encode() for secret in secrets if secret is not None)
        self._accepts_unsigned = None in secrets or not secrets
        self._namespace = namespace
        self._signs = bool(secrets) and secrets[0] is not None
        self.is_on = bool(self._secrets)
        """Whether there is a secret."""
        self.fingerprints = [secret and _fingerprint(secret) for secret in secrets] or [None]
        """What identifies the secrets without them, in their order. None: messages without a signature."""
        self.has_warned_unsigned = False
        """Whether this process has logged a warning of a header without a valid signature."""

    def sign_header(self, fields: Mapping[str, Any], task_id: str, task_name: str) -> dict[str, Any]:
        """Return the fields of a header of a message of this task, with their signature."""
        if not self._signs:
            return dict(fields)
        return {**fields, SIGNATURE: self._sign("header", task_id, task_name, _text_of(fields))}

    def accepts_header(self, fields: Mapping[str, Any], task_id: str, task_name: str) -> bool:
        """Whether the fields were signed for a message of this task. Never raises."""
        if not self.is_on or (SIGNATURE not in fields and self._accepts_unsigned):
            return True
        unsigned = {name: value for name, value in fields.items() if name != SIGNATURE}
        try:  # a copy from the store is signed for the task in its headers, where task_protocol=1 has none
            return any(
                self._accepts(fields.get(SIGNATURE), "header", task_id, name, _text_of(unsigned))
                for name in (task_name, _NAMELESS)
            )
        except (TypeError, ValueError, RecursionError):  # no JSON: none of ours
            return False

    def sign_parked(self, content: bytes, key: str, id: str) -> bytes:
        if not self._signs:
            return content
        return b"%b%b %b" % (_MARK, self._sign("parked", key, id, content).encode(), content)

    def open_parked(self, kept: bytes, key: str, id: str) -> bytes | None:
        """Return the message within a parked one. None: no valid signature for this key and id.

        LookupError: the message is signed, but this process has no secret.
        """
        if not kept.startswith(_MARK):
            return kept if self._accepts_unsigned else None
        if not self.is_on:
            raise LookupError("it is signed, but this process has no exclusive_secret: set it")
        signature, content = kept[len(_MARK) :][:_HEX], without_signature(kept)
        is_ours = self._accepts(signature.decode(errors="replace"), "parked", key, id, content)
        return content if is_ours else None

    def _sign(self, *parts: str | bytes) -> str:
        return hmac.digest(self._secrets[0], self._text(parts), "sha256").hex()

    def _accepts(self, signature: object, *parts: str | bytes) -> bool:
        if not isinstance(signature, str):
            return False
        given, text = _encoded(signature), self._text(parts)
        signed = (hmac.digest(secret, text, "sha256").hex().encode() for secret in self._secrets)
        return any(hmac.compare_digest(given, own) for own in signed)

    def _text(self, parts: Sequence[str | bytes]) -> bytes:
        """Return all parts, each after its length: different lists of parts make different strings."""
        encoded = map(_encoded, (self._namespace, *parts))
        return b"".join(b"%d:%b," % (len(part), part) for part in encoded)


def without_signature(kept: bytes) -> bytes:
    """Return the message within a parked one, and verify nothing."""
    return kept[len(_MARK) + _HEX + 1 :] if kept.startswith(_MARK) else kept


def _fingerprint(secret: str) -> str:
    return hmac.digest(secret.encode(), b"fingerprint", "sha256")[:4].hex()


def _text_of(fields: Mapping[str, Any]) -> str:
    """Return the fields of a header as they arrive: lists for tuples, strings as keys."""
    return json.dumps(json.loads(json.dumps(fields)), sort_keys=True)


def _encoded(part: str | bytes) -> bytes:
    return part if isinstance(part, bytes) else part.encode("utf-8", "surrogatepass")
