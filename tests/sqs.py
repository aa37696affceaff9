"""A server that speaks as Amazon SQS does, for tests: moto's."""

from __future__ import annotations

import importlib.util
import os
import sys
from typing import Any
from urllib.request import Request, urlopen

from tests.servers import NoServer, Server

LONGEST = 1024 * 1024
"""The most bytes of a message."""


class SqsServer(Server):
    """A moto server on a port of its own; its queues are in its memory."""

    start_seconds = 60.0

    def __init__(self) -> None:
        if not all(map(importlib.util.find_spec, ("moto", "flask", "pycurl"))):
            raise NoServer("no SQS server here: install moto[server] and kombu[sqs]")
        super().__init__("sqs")

    @property
    def url(self) -> str:
        return f"sqs://key:secret@127.0.0.1:{self.port}//"

    def client(self) -> Any:
        import boto3

        where = {"endpoint_url": f"http://127.0.0.1:{self.port}", "region_name": "us-east-1"}
        return boto3.client("sqs", **where, aws_access_key_id="key", aws_secret_access_key="secret")

    def refresh(self) -> None:
        """Be up and empty, whatever was done before."""
        self.resume()
        if not self.is_up:
            self.start()
        self._ask("/moto-api/reset", "POST")

    def create(self, queue: str, **attributes: str) -> None:
        self.client().create_queue(QueueName=queue, Attributes=attributes)

    def purge(self, queue: str) -> None:
        client = self.client()
        client.purge_queue(QueueUrl=client.get_queue_url(QueueName=queue)["QueueUrl"])

    def messages(self, queue: str) -> int:
        """Count those in the queue, and those delivered and neither acknowledged nor visible again."""
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        client = self.client()
        url = client.get_queue_url(QueueName=queue)["QueueUrl"]
        found = client.get_queue_attributes(QueueUrl=url, AttributeNames=names)["Attributes"]
        return sum(int(found[name]) for name in names)

    def _ask(self, path: str, method: str = "GET") -> bytes:
        url = f"http://127.0.0.1:{self.port}{path}"
        with urlopen(Request(url, method=method), timeout=5) as answer:
            return bytes(answer.read())

    def _start(self) -> bool:
        words = ["-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)]
        environment = {**os.environ, "MOTO_PORT": str(self.port)}
        return self._run([sys.executable, *words], env=environment)

    def _answers(self) -> bool:
        try:
            return b"moto" in self._ask("/moto-api/")
        except OSError:
            return False
