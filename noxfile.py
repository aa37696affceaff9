"""The tests on each version that we support: `make matrix`. docs/project/support.md says which were run.

make matrix ARGS='--list'                                            # all sessions
make matrix ARGS='-s django'                                         # Django 4.2 to today's
make matrix ARGS='-t redis-py-7'                                     # the Redis store with redis-py 7
make matrix ARGS='-t upstream'                                       # what upstream/ has: main branches
make matrix ARGS='-p 3.12 -t celery-5.4'                             # one of them
make matrix ARGS='-p 3.12 -t celery-5.4 -- tests/worker/test_line.py -k order'

A Python that is not on this machine is skipped; none is downloaded. pyenv's and uv's are found too.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import nox

from tests.servers import redis_program

PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
DJANGOS = (("3.11", "4.2"), ("3.12", "5.2"), ("3.13", "6.1"))
CELERIES = ("5.4", "5.5", "5.6", "5.7")
REDIS_CLIENTS = ("6.4", "7", "8")
"""With the newest Celery, which takes no older ones. Celery 5.4 runs with redis-py 5."""
UPSTREAM = ("upstream/kombu", "upstream/celery")
# An older Celery needs older ones of these. All else is what requirements/dev.txt pins.
FREE = {"billiard", "celery", "kombu", "redis"}
# Those of an old Celery are not ours: `make test` is where a warning is an error.
WARNINGS = ("-W", "default")
DJANGO_TESTS = ("-n", "auto", "--dist", "loadgroup", "tests/django", "tests/store/test_django.py")
REDIS_TESTS = ("-n", "auto", "-k", "redis", "tests/store")
TESTS = ("-n", "auto", "--dist", "loadgroup", "tests/worker", "tests/compat", "tests/unit", "tests/cli")

nox.needs_version = ">=2026.10"
nox.options.download_python = "never"
nox.options.error_on_missing_interpreters = False
nox.options.default_venv_backend = "venv"  # whose pip is configured as everywhere on this machine
nox.options.reuse_venv = "yes"

_pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions")
os.environ["PYENV_VERSION"] = ":".join(folder.name for folder in sorted(_pyenv.glob("3.*")))


@nox.session(python=PYTHONS)
@nox.parametrize("celery", [nox.param(one, id=f"celery-{one}", tags=[f"celery-{one}"]) for one in CELERIES])
def matrix(session: nox.Session, celery: str) -> None:
    """Run tests/worker, tests/compat, tests/unit and tests/cli, or what is given behind `--`."""
    _install(session, f"celery=={celery}.*\nkombu=={celery}.*\n" + _pins(FREE))
    session.run("celery", "report")
    session.run("pytest", *WARNINGS, *(session.posargs or TESTS))


@nox.session
@nox.parametrize(
    ("python", "django"),
    [nox.param(*pair, id=f"django-{pair[1]}", tags=[f"django-{pair[1]}"]) for pair in DJANGOS],
)
def django(session: nox.Session, django: str) -> None:
    """Run tests/django and the tests of Django's store, or what is given behind `--`."""
    _install(session, f"django=={django}.*\n" + _pins({"django"}))
    session.run("pytest", *WARNINGS, *(session.posargs or DJANGO_TESTS))


@nox.session(name="redis-py")
@nox.parametrize(
    "client", [nox.param(one, id=f"redis-py-{one}", tags=[f"redis-py-{one}"]) for one in REDIS_CLIENTS]
)
def redis_py(session: nox.Session, client: str) -> None:
    """Run the tests of the Redis store, or what is given behind `--`."""
    _install(session, f"redis=={client}.*\n" + _pins({"redis"}))
    session.run("pytest", *WARNINGS, *(session.posargs or REDIS_TESTS))


@nox.session(tags=["upstream"], default=False)
def upstream(session: nox.Session) -> None:
    """Run what `matrix` runs, on the Celery and the kombu of the folder upstream/."""
    _install(session, _pins(FREE), *UPSTREAM)
    session.run("celery", "report")
    session.run("pytest", *WARNINGS, *(session.posargs or TESTS))


def _install(session: nox.Session, pins: str, *more: str) -> None:
    session.env["PYENV_VERSION"] = None
    constraints = Path(session.create_tmp(), "constraints.txt")
    constraints.write_text(pins)
    groups = nox.project.dependency_groups(nox.project.load_toml("pyproject.toml"), "test")
    session.install("--constraint", str(constraints), *groups, *more)
    session.install("--no-deps", "--no-build-isolation", "--editable", ".")
    session.env["PATH"] = os.pathsep.join(
        [*session.bin_paths, str(Path(redis_program()).parent), os.environ["PATH"]]
    )


def _pins(free: set[str]) -> str:
    pins = re.findall(r"^(([\w-]+)==.*) \\$", Path("requirements/dev.txt").read_text(), re.MULTILINE)
    return "".join(f"{pin}\n" for pin, name in pins if name not in free)
