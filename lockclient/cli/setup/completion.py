"""`clustermutex completion`: what lets a shell complete commands, options and lock names."""

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

SHELLS = ("bash", "zsh", "fish")
VARIABLE = "_CLUSTERMUTEX_COMPLETE"
"""Set by the shells' functions, for a line to be completed."""


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print what makes a shell complete commands and lock names.

    The names are asked of the store, for a second at most, as a command would ask: by --url
    on the line, or by the environment. One with characters that nobody sees is not offered.

    \b
    bash   in ~/.bashrc:   eval "$(clustermutex completion bash)"
    zsh    in ~/.zshrc:    eval "$(clustermutex completion zsh)"
                           (after compinit)
    fish   once:           clustermutex completion fish \\
                             > ~/.config/fish/completions/clustermutex.fish
    """
    root = ctx.find_root()
    kinds = {"bash": Bash, "zsh": ZshComplete, "fish": Fish}
    made = kinds[shell](root.command, {}, "clustermutex", VARIABLE)
    click.echo(made.source_template % made.source_vars(), nl=False)


@add_completion_class
class Bash(BashComplete):
    """click's, but safe for any name: bash puts what it is given into the line as it stands.

    So a name comes quoted (`invoice\\ run`; a name like `$(reboot)` must never be run), and as bash
    cuts words at colons and equals signs, too, only what comes after the last one is given back.
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
        word, _ = _last_word(line)
        before = line[: len(line) - len(word)]
        return split_arg_string(before)[1:], "".join(split_arg_string(word))

    def format_completion(self, item: CompletionItem[str]) -> str:
        """Return a line that the script reads."""
        if item.type != "plain":
            return f"{item.type},{item.value}"
        line, at_cursor = os.environ["COMP_WORDS"], os.environ["COMP_CWORD"]
        word, quote = _last_word(line)
        # What bash replaces is not all of the word, but what comes after its last break.
        cut = not quote and word.endswith(at_cursor)
        kept = word[: len(word) - len(at_cursor)] if cut else ""
        rest = item.value.removeprefix("".join(split_arg_string(kept)))
        return f"plain,{_quoted(rest, quote)}"


def _last_word(line: str) -> tuple[str, str]:
    """Return the last word of a line, as it was typed, and the quote that is open at its end."""
    start, quote, escaped = 0, "", False
    for number, char in enumerate(line):
        if escaped:
            escaped = False
        elif char == "\\" and quote != "'":
            escaped = True
        elif quote:
            quote = "" if char == quote else quote
        elif char in "'\"":
            quote = char
        elif char.isspace():
            start = number + 1
    return line[start:], quote


def _quoted(value: str, quote: str) -> str:
    """Write a name so that bash takes it for itself, inside an open quote or bare."""
    if quote == "'":
        return value.replace("'", "'\\''")
    special = r'(["$`\\!])' if quote else r"([^\w@%+,./:=-])"
    return re.sub(special, r"\\\1", value)


@add_completion_class
class Fish(FishComplete):
    """click's, which would cut a name at its first comma."""

    source_template = FishComplete.source_template.replace(
        'string split ","', 'string split --max 1 ","'
    )
