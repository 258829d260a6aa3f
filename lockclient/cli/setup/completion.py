"""`clustermutex completion`: makes a shell complete commands, options and lock names."""

from __future__ import annotations

import click
from click.shell_completion import BashComplete, FishComplete, ZshComplete

_KINDS = {"bash": BashComplete, "zsh": ZshComplete, "fish": FishComplete}
SHELLS = tuple(_KINDS)
VARIABLE = "_CLUSTERMUTEX_COMPLETE"
"""The environment variable by which a shell's function asks for the completions of a line."""


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print what makes a shell complete commands and lock names.

    The completion reads the names from the store, for a second at most: from that of --url on the
    line, or that of the environment. It offers only names that need no quotes in any shell.

    \b
    bash   in ~/.bashrc:   eval "$(clustermutex completion bash)"
    zsh    in ~/.zshrc:    eval "$(clustermutex completion zsh)"
                           (after compinit)
    fish   once:           clustermutex completion fish \\
                             > ~/.config/fish/completions/clustermutex.fish
    """
    made = _KINDS[shell](ctx.find_root().command, {}, "clustermutex", VARIABLE)
    click.echo(made.source_template % made.source_vars(), nl=False)
