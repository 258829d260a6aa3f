"""packaging/clustermutex.1, made of the help texts: `make reference` writes it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from reference.commands import ALL, texts

PAGE = Path(__file__).parents[1] / "packaging" / "clustermutex.1"
_HEAD = r"""
.\" Made by `make reference`.
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


def text() -> str:
    """Return what the page should hold."""
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
    PAGE.write_text(text(), encoding="utf-8")
