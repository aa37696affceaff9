"""The documents that feedparser is tested with: thousands of feeds, well-formed, ill-formed and strange."""

from __future__ import annotations

import fcntl
import re
import subprocess
import sys
import tarfile
from pathlib import Path
from tempfile import TemporaryDirectory

PINNED = Path(__file__).parents[2] / "requirements" / "demo.txt"
SECONDS = 90
#: Only a source distribution has the tests. What pip needs to look into one, it gets from the same index.
DOWNLOAD = ["-m", "pip", "download", "--quiet", "--no-deps", "--no-binary=feedparser", "--require-hashes"]


class NoCorpus(Exception):
    """The documents cannot be had here; the text says why."""


def documents(cache: Path) -> dict[str, bytes]:
    """Return every document by its path below `tests/` of feedparser's source distribution."""
    with tarfile.open(_source_distribution(cache)) as archive:
        paths = {member: member.name.partition("/tests/")[2] for member in archive if member.isfile()}
        found = {path: archive.extractfile(member) for member, path in paths.items() if path}
        return {path: file.read() for path, file in found.items() if file and not path.endswith(".py")}


def _source_distribution(cache: Path) -> Path:
    """Get it once for all who share the cache, in the version and with a hash that we pin."""
    pinned = re.search(r"^feedparser==(\S+)(?: \\\n +--hash=\S+)+", PINNED.read_text(), re.MULTILINE)
    assert pinned, f"{PINNED} does not pin feedparser"
    archive = cache / f"feedparser-{pinned[1]}.tar.gz"
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not archive.exists():
            with TemporaryDirectory(dir=cache) as folder:
                _download(pinned[0], Path(folder))
                (Path(folder) / archive.name).replace(archive)
    return archive


def _download(requirement: str, folder: Path) -> None:
    wanted = folder / "wanted.txt"
    wanted.write_text(requirement)
    command = [sys.executable, *DOWNLOAD, "--retries=1", f"--requirement={wanted}", f"--dest={folder}"]
    try:
        subprocess.run(command, capture_output=True, text=True, check=True, timeout=SECONDS)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        said = str(error.stderr or "").strip().splitlines() or [str(error)]
        raise NoCorpus(
            f"pip cannot get feedparser's source distribution, which has the feeds: {said[-1]}"
        ) from error
