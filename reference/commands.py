"""The reference in docs/command.md, made from the help texts.

    python -m reference.commands docs/command.md

writes it anew between its two marks; what stands around them is written by hand.
"""

from __future__ import annotations

import sys
from pathlib import Path

import click

from lockclient.cli.root_command import SECTIONS, group

BEGIN = "<!-- The reference: made by `python -m reference.commands docs/command.md`. -->"
END = "<!-- The end of the reference. -->"
_WIDTH = 90
ALL = "All commands"


def reference() -> str:
    """Return the sections of the reference, with the help texts as code blocks."""
    parts = []
    for section, helps in texts().items():
        parts += [] if section == ALL else [f"## {section}"]
        parts += [
            _block(f"## {name}" if name == ALL else f"### {name}", helps[name]) for name in helps
        ]
    return "\n\n".join(parts)


def texts() -> dict[str, dict[str, str]]:
    """Return what `--help` says, by the section of the commands and their names."""
    root = _context(group, "clustermutex", None)
    found = {ALL: {ALL: _plain(group.get_help(root))}}
    for section, names in SECTIONS.items():
        found[section] = {}
        for name in names:
            command = group.get_command(root, name)
            assert command is not None
            text = command.get_help(_context(command, name, root))
            found[section][f"clustermutex {name}"] = _plain(text)
    return found


def _context(command: click.Command, name: str, parent: click.Context | None) -> click.Context:
    return click.Context(
        command,
        info_name=name,
        parent=parent,
        terminal_width=_WIDTH,
        max_content_width=_WIDTH,
        **command.context_settings,
    )


def _plain(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.splitlines())


def _block(title: str, text: str) -> str:
    return f"{title}\n\n```text\n{text}\n```"


def renewed(page: str) -> str:
    """Return the page with its reference made anew.

    Raises:
        ValueError: the marks are not there.
    """
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"The page needs the marks {BEGIN} and {END}.")
    return f"{before}{begin}\n\n{reference()}\n\n{end}{after}"


if __name__ == "__main__":
    target = Path(sys.argv[1])
    target.write_text(renewed(target.read_text(encoding="utf-8")), encoding="utf-8")
