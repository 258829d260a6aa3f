"""Writes the files for distributions, which the source package contains: `make dist` calls it.

    python -m reference.packaging FOLDER

writes the man page, from the help texts, and the completions of three shells.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

from click.testing import CliRunner

from lockclient.cli.root_command import group
from lockclient.cli.setup.completion import SHELLS
from reference.commands import ALL, texts

_HEAD = r"""
.\" Made by `make dist`.
.TH CLUSTERMUTEX 1 "" "ClusterMutex" "User Commands"
.SH NAME
clustermutex \- distributed locks that people can see and trust
.SH SYNOPSIS
.B clustermutex
.RI [ OPTIONS ]
.I COMMAND
.RI [ ARGUMENTS ]
"""
_TAIL = r"""
.SH SEE ALSO
.BR etcdctl (1),
.BR flock (1)
"""


def write(folder: Path) -> None:
    """Write the man page and the completions into a folder, which is made if needed."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "clustermutex.1").write_text(man_page(), encoding="utf-8")
    for shell in SHELLS:
        printed = CliRunner().invoke(group, ["completion", shell], catch_exceptions=False).output
        (folder / f"clustermutex.{shell}").write_text(printed, encoding="utf-8")


def man_page() -> str:
    """Return the man page as roff."""
    return "".join([_HEAD.lstrip(), *_sections(), _TAIL.lstrip()])


def _sections() -> Iterator[str]:
    for section, helps in texts().items():
        yield f".SH {'DESCRIPTION' if section == ALL else section.upper()}\n"
        for name, said in helps.items():
            if name != ALL:
                yield f'.SS "{_quoted(name)}"\n'
            yield f".nf\n{_quoted(said)}\n.fi\n"


def _quoted(said: str) -> str:
    """Return text that roff shows as it is; a line may not begin with what is a request."""
    told = said.replace("\\", "\\e").replace("-", "\\-")
    return re.sub(r"^([.'])", r"\\&\1", told, flags=re.MULTILINE)


if __name__ == "__main__":
    write(Path(sys.argv[1]))
