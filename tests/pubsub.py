"""A server that speaks as Google Pub/Sub does, for tests: Google's emulator."""

from __future__ import annotations

import importlib.util
import os
import shutil
from itertools import count

from tests.servers import NoServer, Server

PROGRAM = "cloud-pubsub-emulator"
OF_DEBIAN = "/usr/lib/google-cloud-sdk/platform/pubsub-emulator/bin"
"""Where Google's package for Debian has it, which is not on PATH."""


class PubSubServer(Server):
    """An emulator on a port of its own; its topics are in its memory. Clients find it by `environment`."""

    start_seconds = 60.0

    def __init__(self) -> None:
        if not all(map(importlib.util.find_spec, ("grpc", "google"))):
            raise NoServer("no client of Pub/Sub here: run scripts/bootstrap dev pubsub")
        places = os.pathsep.join([os.environ.get("PATH", os.defpath), OF_DEBIAN])
        program = shutil.which(PROGRAM, path=places)
        if not program or not shutil.which("java"):
            raise NoServer("no Pub/Sub emulator here: install google-cloud-cli-pubsub-emulator and a Java")
        self._program = program
        self._projects = count(1)
        super().__init__("pubsub")

    @property
    def environment(self) -> dict[str, str]:
        return {"PUBSUB_EMULATOR_HOST": f"127.0.0.1:{self.port}"}

    def new_url(self) -> str:
        """The URL of an empty project."""
        return f"gcpubsub://projects/lab-{next(self._projects)}"

    def _start(self) -> bool:
        return self._run([self._program, "--host=127.0.0.1", f"--port={self.port}"])

    def _answers(self) -> bool:
        return f"Server started, listening on {self.port}" in self.log()
