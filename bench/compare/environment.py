"""An environment of its own for each system, made by uv from the pins in requirements/."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from bench.compare.system import System


def make(system: System, folder: Path) -> Path:
    """Make the environment below `folder` if it is not there, and return its Python."""
    venv = folder / system.name
    python, stamp = venv / "bin/python", venv / "pins"
    pins = system.requirements.read_text()
    if stamp.exists() and stamp.read_text() == pins:
        return python
    uv = shutil.which("uv", path=str(Path(sys.executable).parent)) or "uv"
    shutil.rmtree(venv, ignore_errors=True)
    subprocess.run([uv, "venv", "--quiet", "--python", sys.executable, venv], check=True)
    install = ["pip", "install", "--quiet", "--no-deps", "--python", python, "-r", system.requirements]
    subprocess.run([uv, *install], check=True)
    stamp.write_text(pins)
    return python
