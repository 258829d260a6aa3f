"""Scripts for sh that make a store's users: files with `@name` for each part that differs."""

from __future__ import annotations

from pathlib import Path
from string import Template


class SetupScript(Template):
    """A script in which `@name` is a placeholder, since `$name` is a variable of the shell."""

    delimiter = "@"

    @classmethod
    def beside(cls, module: str) -> SetupScript:
        """Return the script `setup_auth.sh` of the folder of a module's file."""
        return cls(Path(module).with_name("setup_auth.sh").read_text(encoding="utf-8"))
