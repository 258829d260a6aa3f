"""`clustermutex completion`: makes a shell complete commands, options and lock names."""

from __future__ import annotations

import os
import re

import click
from click.shell_completion import (
    BashComplete,
    CompletionItem,
    FishComplete,
    ZshComplete,
    add_completion_class,
    split_arg_string,
)

from lockclient.cli.store_access import MAX_NAMES, opened_store
from lockclient.errors import ClusterMutexError
from lockclient.model.clocks import Deadline
from lockclient.stores.settings import Settings
from lockclient.text.escaping import plain

SHELLS = ("bash", "zsh", "fish")
VARIABLE = "_CLUSTERMUTEX_COMPLETE"
"""The environment variable by which a shell's function asks for the completions of a line."""
COMPLETION_TIMEOUT_S = 1.0
"""For the store to answer a shell that completes a name."""
_is_bare = re.compile(r"[\w@%+./:=-]+").fullmatch


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
    kinds = {"bash": Bash, "zsh": ZshComplete, "fish": FishComplete}
    made = kinds[shell](ctx.find_root().command, {}, "clustermutex", VARIABLE)
    click.echo(made.source_template % made.source_vars(), nl=False)


def held_names(settings: Settings | None, beginning: str) -> list[CompletionItem[str]]:
    """Return the locks' names that begin so; none if the store does not answer quickly."""
    try:
        with opened_store(settings or Settings.load()) as store:
            names = store.names(beginning, MAX_NAMES, Deadline.after(COMPLETION_TIMEOUT_S))
    except (ClusterMutexError, ValueError):
        return []  # a shell in the middle of a line is no place for an error
    # A shell shows a name as it puts it into the line. So only names that need no quotes in any
    # shell, and that look like no other name, are offered.
    return [CompletionItem(name) for name in names if _is_bare(name) and plain(name) == name]


@add_completion_class
class Bash(BashComplete):
    """click's class, given the typed line: bash's own words end at colons and equals signs.

    So `--url etcd://host` is one word here, as is a lock's name with a colon. Of the completed word
    bash replaces only the part after the last colon or equals sign.
    """

    source_template = """\
%(complete_func)s() {
    local kind reply
    COMPREPLY=()
    while IFS=, read -r kind reply; do
        case $kind in
            dir) compopt -o dirnames ;;
            file) compopt -o default ;;
            plain) COMPREPLY+=("$reply") ;;
        esac
    done < <(env COMP_WORDS="${COMP_LINE:0:COMP_POINT}" COMP_CWORD="$2" \\
        %(complete_var)s=bash_complete "$1" 2>/dev/null)
}
complete -o nosort -F %(complete_func)s %(prog_name)s
"""

    def get_completion_args(self) -> tuple[list[str], str]:
        """Return the words before the one at the cursor, and that one."""
        line = os.environ["COMP_WORDS"]
        word = _last_word(line)
        return split_arg_string(line[: len(line) - len(word)])[1:], word

    def format_completion(self, item: CompletionItem[str]) -> str:
        """Return a line for the script above: the kind of the item, and the replaced part of it."""
        word, replaced = _last_word(os.environ["COMP_WORDS"]), os.environ["COMP_CWORD"]
        return f"{item.type},{item.value.removeprefix(word.removesuffix(replaced))}"


def _last_word(line: str) -> str:
    """Return the word at the end of a line: empty after a blank."""
    return "" if line[-1:].isspace() else (line.split() or [""])[-1]
