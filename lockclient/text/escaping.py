"""Escapes for others' texts: pages, terminal, logs, errors, labels, CSV, chats.

JSON keeps it as it is.
"""

from __future__ import annotations

import json
import re
import traceback
from textwrap import indent
from typing import Any, Final

# ---------------------------------------------------------------- what can't be seen

_INVISIBLE: Final = (
    "\x00-\x1f\x7f-\x9f"  # controls
    "\u2028\u2029"  # line ends of another kind
    "\xa0\u1680\u2000-\u200a\u202f\u205f\u3000"  # spaces that are no U+0020
    # What Unicode calls Default_Ignorable_Code_Point: joiners, fillers, variation selectors,
    # marks, overrides and isolates of direction, tags. Most programs draw nothing for them.
    "\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e"
    "\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufff8"
    "\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
    # Blank, or a format, by other names: Braille, annotations, Egyptian, Khitan, a musical one.
    "\u2800\ufff9-\ufffb\U00013430-\U0001343f\U00013441\U00013442\U00016fe4\U0001d159"
    # What no font has, or each its own: no characters, private ones, lone surrogates (which can't
    # even be written as UTF-8), planes without a character.
    "\ufdd0-\ufdef\ufffe\uffff\ue000-\uf8ff\ud800-\udfff"
    "\U0001fffe\U0001ffff\U0002fffe\U0002ffff\U0003fffe-\U000dffff\U000e1000-\U0010ffff"
)
_BLANK: Final = r"(?<![^ ]) | (?= *\Z)"
"""A space at the beginning, after another one, or at the end."""
ONE_LINE: Final = re.compile(f"([{_INVISIBLE}]|{_BLANK})")
BLOCK: Final = re.compile(rf"((?![\n\t])[{_INVISIBLE}])")
_NON_ASCII: Final = re.compile(f"([^\x20-\x7e]|{_BLANK})")


def escaped(char: str) -> str:
    return char.encode("unicode_escape").decode() if char != " " else "\\x20"


def _escaped(found: re.Match[str]) -> str:
    return escaped(found[0])


def is_plain(text: str) -> bool:
    """Tell whether a text is ASCII without anything invisible."""
    seen = text.isascii() and text.isprintable() and "  " not in text
    return seen and text[:1] != " " and text[-1:] != " "


def plain(text: object, *, block: bool = False) -> str:
    """Return a text with escapes for all that is invisible or moves other text.

    In a `block`, line ends, tabs and spaces stay.
    """
    text = str(text)
    return text if is_plain(text) else (BLOCK if block else ONE_LINE).sub(_escaped, text)


_ONE_LINE_CHARS: Final = 500


def one_line(text: str) -> str:
    """Return a text from outside as one short line without control characters."""
    return plain(text[:_ONE_LINE_CHARS])


def ascii_name(name: str) -> str:
    """Return a name with all that is not ASCII written as escapes."""
    return _NON_ASCII.sub(_escaped, name)


def shown_name(name: str) -> str:
    """Return a lock's name; one that is not ASCII with its escaped form after it."""
    shown = plain(name)
    return shown if shown.isascii() else f"{shown} ({ascii_name(name)})"


_ESCAPE: Final = re.compile(r"\\(?:x([0-9a-f]{2})|u([0-9a-f]{4})|U(00(?:0[0-9a-f]|10)[0-9a-f]{4}))")


def unescaped(text: str) -> str:
    """Return the text that `plain`, `ascii_name`, `shown_name` or `chat` shows so, else `text`."""
    read = _ESCAPE.sub(lambda found: chr(int(found[1] or found[2] or found[3], 16)), text)
    once = read[: len(read) // 2 - 1]  # as of `shown_name`, which has it twice
    if text == shown_name(once):
        return once
    return read if text in (plain(read), ascii_name(read), chat(read)) else text


# ---------------------------------------------------------------- secrets

_AT: Final = r"(?:[@\uff20\ufe6b]|%(?:25)*40)"
HAS_AT: Final = re.compile(_AT).search
_BEFORE_AT: Final = re.compile(rf"\A([a-z]{{2,9}}://)?.*{_AT}", re.DOTALL)
_WORD: Final = re.compile(r"\S+")
_GIVEN: Final = re.compile(rf"\S*:(?=\S).*{_AT}", re.DOTALL)


def hidden(url: str) -> str:
    """Return a URL without all before its last `@`: a password may be anywhere in it."""
    return _BEFORE_AT.sub(r"\1…@", url)


def without_secrets(text: str, *, given: bool = False) -> str:
    """Return a text without what precedes the `@` of its URLs; a `given` one may lack its `//`."""
    if not HAS_AT(text):
        return text
    return _GIVEN.sub("…@", text) if given else _WORD.sub(_without_secret, text)


def _without_secret(found: re.Match[str]) -> str:
    head, slashes, rest = found[0].partition("://")
    return f"{head}{slashes}{hidden(rest)}"


# ---------------------------------------------------------------- ways out


def trace_of(error: BaseException) -> str:
    return as_trace("".join(traceback.format_exception(error)))


def as_trace(text: str) -> str:
    """Return a traceback in which all lines but the first are indented: none looks like a log's."""
    first, _, rest = plain(without_secrets(text), block=True).rstrip("\n").partition("\n")
    return f"{first}\n{indent(rest, '  ')}" if rest else first


def ascii_json(document: Any, *, indent: int | None = None) -> str:
    return json.dumps(document, indent=indent).replace("\x7f", "\\u007f")


_ACTS_IN_CHATS: Final = re.compile(
    r"[<>\[\]*`|~]"  # tags, links by another text, styles, what hides or strikes out
    # Inside a word `_` is no style, and `@` (`unlocker@web-1`) a mention of everybody or of nobody.
    r"|(?<![0-9A-Za-z])[@_]|[@_](?![0-9A-Za-z])|@(?=(?i:everyone|here|channel|all|room)\b)"
    r"|:(?=//[^\s/?#]*@)"  # the link `https://good@evil/` leads to evil
    r"|&(?=[#\w])|\\(?=[!-/:-@\[-`{-~])"  # entities, and backslashes that escape
)


def chat(text: str) -> str:
    """Return a text without mentions, markup and disguised links for any chat or mail program.

    A webhook may pass it on to any of them. What one of them acts on is escaped: `\\x40`.
    """
    return _ACTS_IN_CHATS.sub(lambda found: f"\\x{ord(found[0]):02x}", plain(text, block=True))


_SHOWN: Final = 100
"""Characters of a text in a label."""


def label(text: str) -> str:
    shown = plain(text[: _SHOWN + 1])
    return shown if len(shown) <= _SHOWN else shown[: _SHOWN - 1] + "…"


_BETWEEN: Final = ";|\t\n \"'"
_FORMULA: Final = re.compile(
    # Whole runs, each scanned once: a text of nothing else must not take minutes.
    rf"(?:\A|(?<![{_BETWEEN}])(?=[{_BETWEEN}]))[{_BETWEEN}]*"
    # In all widths and heights: some take them for the same.
    "(?=[=+\\-@\uff1d\uff0b\uff0d\uff20\ufe66\ufe62\ufe63\ufe6b\u207c\u207a\u207b"
    "\u208c\u208a\u208b\u2212])"
)
_ENDS_CELL: Final = re.compile("[;|\t\n]")


def _defused(found: re.Match[str]) -> str:
    # Some spreadsheets split cells at `;`, too, and rows at line ends inside quotes, and strip
    # blanks and quotes in front of a formula.
    begins = found.start() == 0 or _ENDS_CELL.search(found[0])
    return f"{found[0]}'" if begins else found[0]


def cell(text: str) -> str:
    """Return a text as a cell of CSV, a `'` before what a spreadsheet may take for a formula."""
    text = _FORMULA.sub(_defused, plain(text, block=True))
    return f"'{text}" if text[:1] in ("\n", "\t") else text
