"""`python tools/docs/tutorial.py` runs the commands of docs/tutorial.md and writes what they really print.

A ``console`` block is a shell session: lines after ``$ `` or ``> `` are typed into one shell in an empty folder, in
order, and everything else in the block is what came out. Needs the `paceline` of the shell's PATH; takes minutes, so no
test runs it.
"""

import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "tutorial.md"
TERMINAL = {"TERM": "dumb", "COLUMNS": "96", "NO_COLOR": "1"}
_END = "the-end-of-a-command"


class Shell:
    """One shell in a folder of its own; variables and background jobs live from command to command."""

    def __init__(self, folder: str) -> None:
        self._process = subprocess.Popen(
            ["bash", "--norc"],
            cwd=folder,
            env=os.environ | TERMINAL,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, command: str) -> Iterator[str]:
        """The lines that `command` prints, errors included."""
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(f"{command}\necho {_END}\n")
        self._process.stdin.flush()
        for line in self._process.stdout:
            if line.rstrip("\n").endswith(_END):
                return
            yield line.rstrip()

    def close(self) -> None:
        """End the shell."""
        self._process.communicate("exit\n")


def played(page: str, shell: Shell) -> str:
    """`page` with the output of every command as `shell` prints it now."""
    out: list[str] = []
    inside, command = False, []
    for line in [*page.splitlines(), ""]:
        if command and not line.startswith("> "):
            out += shell.run("\n".join(command))
            command = []
        if line.startswith("```"):
            inside = line == "```console"
        if not inside or line.startswith(("$ ", "> ", "```")):
            out.append(line)
        if inside and line.startswith(("$ ", "> ")):
            command.append(line[2:])
    return "\n".join(out).rstrip("\n") + "\n"


def main() -> None:
    """Play the page and write it back."""
    with tempfile.TemporaryDirectory() as folder:
        shell = Shell(folder)
        PAGE.write_text(played(PAGE.read_text(), shell))
        shell.close()


if __name__ == "__main__":
    main()
