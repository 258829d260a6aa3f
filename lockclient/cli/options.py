"""Options and parameters that commands share: `--url`, `--json`, `--debug`, names, durations."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from inspect import cleandoc
from textwrap import fill
from typing import TYPE_CHECKING, Any

import click

from lockclient.model.clocks import MAX_DURATION_S
from lockclient.model.fields import Fact
from lockclient.model.lock_name import check_name
from lockclient.model.retention import RECORD_RETENTION
from lockclient.service.service_flags import Command, Parsed, settings_of, url_option, with_options
from lockclient.text.durations import parse_duration, period
from lockclient.text.log_format import PlainFormatter

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

_HEX = "clustermutex.hex"
"""Key in click's context: names and uuids are in hexadecimal."""
_HELP_WIDTH = 78
"""Characters of a line in the help."""


def _debug(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    if value:
        ctx.ensure_object(dict)["debug"] = True
        handler = logging.StreamHandler()
        handler.setFormatter(PlainFormatter(logging.BASIC_FORMAT))
        logging.basicConfig(level=logging.DEBUG, handlers=[handler])


debug_option = click.option(
    "--debug",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_debug,
    help="Log to stderr what is done, and show an error's traceback.",
)
store_options = with_options(url_option(callback=settings_of), debug_option)
"""`--url`, which makes the parameter `settings`, and `--debug`."""


def with_facts(**lists: Sequence[Fact]) -> Callable[[Command], Command]:
    """Fill lists of facts into a command's help, in place of `{its name}`."""

    def filled(command: Command) -> Command:
        texts = {name: _fact_list(facts) for name, facts in lists.items()}
        texts["record_retention"] = RECORD_RETENTION
        command.__doc__ = cleandoc(command.__doc__ or "").format(**texts)
        return command

    return filled


def _fact_list(facts: Sequence[Fact]) -> str:
    width = max(len(fact.name) for fact in facts)
    return "\n".join(
        fill(
            fact.description.replace("`", ""),
            _HELP_WIDTH,
            initial_indent=f"    {fact.name:<{width}}  ",
            subsequent_indent=" " * (width + 6),
        )
        for fact in facts
    )


json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print JSON (its fields are listed above)."
)


hex_option = click.option(
    "--hex",
    "hexadecimal",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=lambda ctx, _, given: ctx.meta.__setitem__(_HEX, given),
    help="NAME and --uuid are in hexadecimal, each the UTF-8 of one. So the dashboard writes what "
    "some shell might read otherwise.",
)
"""For commands that are copied from elsewhere, with a `LockName` and a `Uuid`."""


def _written(value: str, ctx: click.Context | None, what: str) -> str:
    if ctx is None or not ctx.meta.get(_HEX):
        return value
    try:
        return bytes.fromhex(value).decode()
    except ValueError:
        raise click.BadParameter(f"{what} {value!r} is no UTF-8 in hexadecimal (--hex).") from None


class Uuid(click.ParamType[str]):
    """A holder's uuid, any text."""

    name = "uuid"

    def convert(self, value: Any, _param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return it, read from hexadecimal where `--hex` says so."""
        return _written(value, ctx, "The uuid")


class LockName(Parsed[str]):
    """A lock's name; shells complete it by the locks that are held.

    Args:
        parse: reads it.
    """

    def __init__(self, parse: Callable[[str], str] = check_name) -> None:
        super().__init__("name", parse)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the name, read from hexadecimal where `--hex` says so."""
        return super().convert(_written(value, ctx, "The name"), param, ctx)

    def shell_complete(
        self, ctx: click.Context, _param: click.Parameter, incomplete: str
    ) -> list[CompletionItem[str]]:
        """See `completion.held_names`."""
        from lockclient.cli.setup.completion import held_names  # not for other commands

        return held_names(ctx.params.get("settings"), incomplete)


class Duration(Parsed[Any]):
    """A duration, in seconds then; or one of some words that stand for something else.

    Args:
        least: the shortest that is taken.
        most: the longest.
        words: further accepted words, with their values.
    """

    def __init__(
        self, least: float = 0.0, most: float = MAX_DURATION_S, words: dict[str, Any] | None = None
    ) -> None:
        super().__init__("time", self._read)
        self._least, self._most = least, most
        self._words = words or {}

    def _read(self, text: str) -> Any:
        if text in self._words:
            return self._words[text]
        try:
            seconds = parse_duration(text)
        except ValueError as error:
            others = "".join(f" Or `{word}`." for word in self._words)
            raise ValueError(f"{error}{others}") from error
        if not self._least <= seconds <= self._most:
            limits = f"{period(self._least)} to {period(self._most)}"
            raise ValueError(f"{text!r} is out of range: {limits} are taken.")
        return seconds
