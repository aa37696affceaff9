"""The last release of this package, as its wheel, beside the code of this tree.

The last release is the newest tag `v*` before the present commit. If there is none, as in a shallow clone or
before the first release, this tree itself stands in for it: the test ids say so, and a test that is left out.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import zipfile
from io import BytesIO
from pathlib import Path
from typing import IO, Any

from tests.worker.lab import REPOSITORY, Lab, Worker

SHOP = "tests.worker.shop_release"
SOURCE = ("pyproject.toml", "README.md", "LICENSE", "src")
"""What a wheel is built of."""


def last_tag(repository: Path = REPOSITORY) -> str | None:
    """Return the newest tag of a release before the present commit."""
    if not (repository / ".git").exists():  # an sdist, perhaps inside another project's repository
        return None
    found = _git(repository, "describe", "--tags", "--abbrev=0", "--match", "v[0-9]*", "HEAD~1")
    return found.stdout.decode().strip() or None


def unpack(tag: str | None, folder: Path) -> Path:
    """Build the wheel of a tag, or of this tree, and return the folder of its content, metadata included."""
    source, wheels, content = folder / "source", folder / "wheels", folder / "content"
    packed = _git(REPOSITORY, "archive", tag, *SOURCE).stdout if tag else _pack(REPOSITORY)
    with tarfile.open(fileobj=BytesIO(packed)) as archive:
        archive.extractall(source, filter="data")
    wheels.mkdir()
    subprocess.run(["uv-build", "build-wheel", wheels], cwd=source, check=True, capture_output=True)
    (wheel,) = wheels.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive_of_wheel:
        archive_of_wheel.extractall(content)
    return content


def _git(repository: Path, *words: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["git", "-C", repository, *words], check=False, capture_output=True)


def _pack(tree: Path) -> bytes:
    with BytesIO() as packed:
        with tarfile.open(fileobj=packed, mode="w") as archive:
            for name in SOURCE:
                archive.add(tree / name, name)
        return packed.getvalue()


class Release(Lab):
    """A lab whose workers and whose publisher run the package of a folder.

    Its own app is this tree's: `publish` and `state` ask the publisher, a process with the folder's package.
    """

    def __init__(self, url: str, folder: Path, conf: dict[str, Any], package: Path) -> None:
        super().__init__(url, folder, conf, SHOP)
        self.package = package
        self._publisher: subprocess.Popen[str] | None = None

    @property
    def environment(self) -> dict[str, str]:
        return {**super().environment, "PYTHONPATH": os.pathsep.join([str(self.package), str(REPOSITORY)])}

    def start(self, name: str, slots: int = 4) -> Worker:
        """Start a worker of this release."""
        return self.start_worker(name, slots, is_fresh=True)

    def __exit__(self, *details: object) -> None:
        if self._publisher:
            self._publisher.communicate(timeout=60)
        super().__exit__(*details)

    def publish(self, name: str, *args: Any, **options: Any) -> dict[str, Any]:
        """Publish a task, and return its id, outcome, and the id of the task that it duplicates."""
        return dict(self._ask("publish", name, args, options))

    def state(self, name: str, *args: Any) -> dict[str, Any]:
        """Return what this release sees of a lock."""
        return dict(self._ask("state", name, args, {}))

    def _ask(self, *question: Any) -> Any:
        if self._publisher is None:
            self._publisher = subprocess.Popen(
                [sys.executable, "-c", f"from {SHOP} import main; main()"],
                env=self.environment, cwd=self.folder, text=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            )  # fmt: skip
        questions, answers = _pipes(self._publisher)
        questions.write(json.dumps(question) + "\n")
        questions.flush()
        return json.loads(answers.readline())


def _pipes(process: subprocess.Popen[str]) -> tuple[IO[str], IO[str]]:
    assert process.stdin
    assert process.stdout
    return process.stdin, process.stdout
