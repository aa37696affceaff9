"""A whole message as a store keeps it while its task waits, to be republished unchanged."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import datetime, timedelta, timezone
from typing import Any

from kombu.compression import decompress
from kombu.utils.json import dumps, loads

from celery_exclusive.core.claim import LAST_CHANCE
from celery_exclusive.messages.header import HEADER, Header
from celery_exclusive.options.signing import SIGNATURE, Signer
from celery_exclusive.stores.base import Wake

VERSION = 1
_PROPERTIES = (
    *("correlation_id", "reply_to", "priority", "delivery_mode", "message_id", "type", "app_id"),
    "MessageGroupId",  # of SQS, whose deduplication id must be a new one
)
_NOT_KEPT = ("redelivered", "x-delivery-count")
"""Headers in which brokers record the history of one delivery."""

Content = tuple[bytes | str, str, str, dict[str, Any], Mapping[str, Any], str, str]
"""Body, content type and encoding, headers, properties, routing key and exchange of a message as it came."""


def queue_of(exchange: str | None, routing_key: str | None) -> str:
    """Return the name by which the core distinguishes the queues of messages."""
    return f"/{exchange or ''}/{routing_key or ''}"


def content_of(message: Any) -> Content:
    """Return the content of a delivered kombu message, with the body decompressed."""
    body, came = message.body, message.delivery_info
    return (
        body if isinstance(body, (bytes, str)) else bytes(body),
        message.content_type,
        message.content_encoding,
        message.headers,
        message.properties,
        came.get("routing_key") or "",
        came.get("exchange") or "",
    )


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """A whole message: body, headers, properties, exchange and routing key."""

    body: bytes = field(repr=False)
    content_type: str
    content_encoding: str
    headers: dict[str, Any]
    properties: dict[str, Any]
    exchange: str
    routing_key: str

    @classmethod
    def of(cls, content: Content, header: Header) -> StoredMessage:
        """Make the stored message of a delivery. All its copies have this header: one key and one id."""
        body, content_type, content_encoding, came, properties, routing_key, exchange = content
        headers = {name: value for name, value in came.items() if name not in _NOT_KEPT}
        return cls(
            body.encode() if isinstance(body, str) else bytes(body),
            content_type,
            content_encoding,
            {**headers, HEADER: header.write()},
            {name: value for name in _PROPERTIES if (value := properties.get(name)) is not None},
            exchange,
            routing_key,
        )

    @property
    def our_header(self) -> dict[str, Any]:
        header: dict[str, Any] = self.headers[HEADER]
        return header

    def dump(self) -> bytes:
        """Return the message as versioned JSON, for a store. `load` also reads what kombu pushes to Redis."""
        try:
            body, coding = self.body.decode(), "text"
        except UnicodeDecodeError:
            body, coding = b64encode(self.body).decode(), "base64"
        kept = {name: getattr(self, name) for name in _FIELDS}
        return dumps({"v": VERSION, **kept, "body": body, "coding": coding}).encode()

    @classmethod
    def load(cls, kept: bytes) -> StoredMessage:
        found = loads(kept)
        if "properties" in found and "v" not in found:
            return cls._pushed(found)
        version = found.pop("v")
        if version != VERSION:
            raise ValueError(
                f"a parked message has version {version}, but this release reads {VERSION}: upgrade it"
            )
        body = found.pop("body")
        body = body.encode() if found.pop("coding") == "text" else b64decode(body)
        return cls(body=body, **found)

    @classmethod
    def _pushed(cls, payload: dict[str, Any]) -> StoredMessage:
        """Read a message as kombu pushes it onto a list of Redis."""
        body, headers, properties = payload["body"], payload["headers"], payload["properties"]
        if properties.get("body_encoding") == "base64":
            body = b64decode(body)
        if compression := headers.get("compression"):
            body = decompress(body, compression)
        header = {name: value for name, value in headers[HEADER].items() if name != SIGNATURE}
        return cls(
            body.encode() if isinstance(body, str) else body,
            payload["content-type"],
            payload["content-encoding"],
            {**headers, HEADER: header},
            {name: value for name in _PROPERTIES if (value := properties.get(name)) is not None},
            properties["delivery_info"]["exchange"],
            properties["delivery_info"]["routing_key"],
        )

    def promoted(self, wake: Wake) -> StoredMessage:
        header = {**self.our_header, "promoted": wake.epoch, "offered": wake.key}
        # The line of last chances counts from zero, beside the line in which the message has its place.
        before = header.get("deaths" if wake.key == LAST_CHANCE else "deaths_before", 0)
        if (deaths := before + wake.deaths) > header.get("deaths", 0):
            header["deaths"] = deaths
        return self._with_header(header)

    def begun(self, **changes: Any) -> StoredMessage:
        """Return the copy that is kept while the body runs: its delivery counts as a redelivery."""
        return self._with_header({**self.our_header, "redelivered": True, **changes})

    def moved(self) -> StoredMessage:
        """Return the copy that waits for another key than before: the line there has counted no deaths."""
        deaths = self.our_header.get("deaths")
        return self._with_header({**self.our_header, "deaths_before": deaths}) if deaths else self

    def compressed(self) -> StoredMessage:
        return replace(self, headers={"compression": "zlib", **self.headers})

    def signed(self, signer: Signer) -> StoredMessage:
        """Return the copy to publish, with a signed header. In the store the header has no own signature."""
        task_id = self.headers.get("id") or self.properties.get("correlation_id")
        return self._with_header(
            signer.sign_header(self.our_header, str(task_id), str(self.headers.get("task")))
        )

    def delayed(self, seconds: float, **changes: Any) -> StoredMessage:
        """Return the copy that is delivered later; without a valid epoch it counts as redelivered."""
        eta = datetime.now(timezone.utc) + timedelta(seconds=seconds)
        message = self._with_header({**self.our_header, "promoted": "", **changes})
        headers = {**message.headers, "eta": eta.isoformat()}
        if isinstance(deaths := headers.get("x-death"), list):
            # RabbitMQ drops a message that seems to go round in a circle of expiries, as through its delays.
            headers["x-death"] = [
                it for it in deaths if isinstance(it, dict) and it.get("reason") != "expired"
            ]
        return replace(message, headers=headers)

    def _with_header(self, header: dict[str, Any]) -> StoredMessage:
        return replace(self, headers={**self.headers, HEADER: header})


_FIELDS = [each.name for each in fields(StoredMessage)]
