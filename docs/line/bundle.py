"""Write what the page `explanation/line` loads: its script, its style, and Python with the core.

A browser loads no module and fetches no file for a page that it has opened as a file. So Pyodide, its
WebAssembly, the standard library and our modules become one classic script.
"""

from __future__ import annotations

import gzip
import io
import json
import shutil
import sys
from base64 import b64encode
from pathlib import Path
from zipfile import ZipFile, ZipInfo

HERE = Path(__file__).parent
SOURCE = HERE.parents[1] / "src"
PYODIDE = Path(sys.prefix) / "pyodide"
"""The folder into which scripts/bootstrap unpacks Pyodide."""


def write(folder: Path) -> None:
    """Write the files into this folder. Without Pyodide the page says so."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("line.js", "line.css"):
        shutil.copy(HERE / name, folder)
    (folder / "python.js").write_text(python() if PYODIDE.exists() else "const PYTHON = null;\n")


def python() -> str:
    """Return the script that defines `loadPyodide`, and the files that it asks for in `PYTHON`."""
    lock = json.loads((PYODIDE / "pyodide-lock.json").read_text())
    files = {
        "pyodide.asm.wasm": gzip.compress((PYODIDE / "pyodide.asm.wasm").read_bytes(), mtime=0),
        "python_stdlib.zip": (PYODIDE / "python_stdlib.zip").read_bytes(),
        "modules.zip": modules(),
    }
    texts = {name: b64encode(content).decode() for name, content in files.items()}
    scripts = [(PYODIDE / name).read_text() for name in ("pyodide.asm.js", "pyodide.js")]
    lock = {"info": lock["info"], "packages": {}}
    return "\n".join([*scripts, f"const PYTHON = {json.dumps({'files': texts, 'lock': lock})};\n"])


def modules() -> bytes:
    """Return an archive of the core, and of the world in which the page lets it act."""
    core = sorted((SOURCE / "celery_exclusive/core").glob("*.py"))
    packed = io.BytesIO()
    with ZipFile(packed, "w") as archive:
        for file in core:
            archive.writestr(ZipInfo(file.relative_to(SOURCE).as_posix()), file.read_bytes())
        archive.writestr(ZipInfo("model.py"), (HERE / "model.py").read_bytes())
    return packed.getvalue()
