"""Which names of locks look like each other, so that people may take one for the other.

Two names look alike if the same is left of both when what can't be seen is taken away, blanks are
one space each, compatible forms are one (Unicode's NFKC: full width, ligatures, mathematical
letters), and letters and marks of other scripts stand as the ASCII that they look like. For those
there is a table of the common ones (Cyrillic, Greek, Armenian, Cherokee and phonetic letters,
slashes, dashes, dots), and not all of Unicode's confusables (UTS 39): thousands more, of which most
fonts draw few alike. Among ASCII alone nothing is taken for the same: whoever named locks `l` and
`1` can tell them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Final
from unicodedata import normalize

from lockclient.text.escaping import INVISIBLE, apart, is_plain, plain

_DRAWN_AS: Final = {
    "a": "аɑα", "b": "Ьƅ", "c": "сϲ", "d": "ԁɗ", "e": "еҽ", "f": "ƒ", "g": "ɡց", "h": "һհ",
    "i": "іıɩι", "j": "јϳ", "k": "κк", "l": "ӏǀ", "m": "м", "n": "ոռ", "o": "оοօσ", "p": "рρϱ",
    "q": "ԛգզ", "r": "гᴦ", "s": "ѕꜱ", "t": "тτ", "u": "υսʋᴜ", "v": "νѵᴠ", "w": "ԝաѡᴡ", "x": "хχ",
    "y": "уүγʏ", "z": "ᴢʐ",
    "A": "АΑᎪ", "B": "ВΒᏴ", "C": "СϹᏟ", "D": "Ꭰ", "E": "ЕΕᎬ", "F": "Ϝ", "G": "ԌᏀ", "H": "НΗᎻ",
    "I": "ІΙӀ", "J": "ЈͿᎫ", "K": "КΚᏦ", "L": "Ꮮ", "M": "МΜᎷ", "N": "Ν", "O": "ОΟՕ", "P": "РΡᏢ",
    "Q": "Ԛ", "R": "Ꭱ", "S": "ЅՏᏚ", "T": "ТΤᎢ", "U": "Ս", "V": "ѴᏙ", "W": "ԜᎳ", "X": "ХΧ",
    "Y": "ҮΥ", "Z": "ΖᏃ",
    "2": "Ƨ", "3": "ЗӠƷ", "4": "Ꮞ", "6": "б", "8": "Ȣ",
    "/": "⁄∕╱⟋⧸", "\\": "∖⧵⧹╲⟍", "|": "∣", "-": "‐‑‒–—―−⁃˗", ".": "․܁܂ꓸ", ",": "‚¸", "_": "ˍ",
    ":": "ː˸։∶꞉", "'": "‘’‛′ʹʻʼʽ", '"': "“”‟″", "*": "∗⁎", "=": "᐀꓿", "~": "∼˜", "!": "ǃ",
    "<": "‹", ">": "›", "^": "˄ˆ",
}  # fmt: skip
_ASCII: Final = str.maketrans({char: drawn for drawn, chars in _DRAWN_AS.items() for char in chars})


@lru_cache(1024)
def skeleton(name: str) -> str:
    """Return what is left of a name for the eye."""
    # Before as well: NFKC makes a space and a mark of some accents.
    seen = normalize("NFKC", INVISIBLE.sub(_blank, name.translate(_ASCII)))
    return " ".join(seen.translate(_ASCII).split())


def _blank(found: re.Match[str]) -> str:
    return " " if found[0].isspace() else ""


def told_apart(name: str) -> str:
    """Return a name as it is shown where nobody knows which others there are.

    One that is drawn like plain ASCII, and is not, is written with escapes.
    """
    look = name if is_plain(name) else skeleton(name)
    return apart(name) if look != name and look.isascii() else plain(name)


def named(name: str) -> str:
    """Return a lock's name in quotes, for people who may take one for another."""
    return f"'{told_apart(name)}'"


class Looks:
    """How the names of many locks look, kept up to date name by name; for one thread at a time.

    Only those are kept that are no plain ASCII: all others look like themselves.
    """

    def __init__(self) -> None:
        self._odd: dict[str, dict[str, None]] = {}

    def add(self, name: str) -> None:
        """Take in a name."""
        if not is_plain(name):
            self._odd.setdefault(skeleton(name), {})[name] = None

    def discard(self, name: str) -> None:
        """Forget a name."""
        if not is_plain(name) and (alike := self._odd.get(skeleton(name))) is not None:
            alike.pop(name, None)
            if not alike:
                self._odd.pop(skeleton(name), None)

    def like(self, name: str, held: Callable[[str], bool]) -> str:
        """Return another name that looks like this one; empty if there is none.

        Args:
            held: tells whether a name is one of all of them.
        """
        if not self._odd:
            return ""
        look = name if is_plain(name) else skeleton(name)
        if look != name and held(look):
            return look
        alike = tuple(self._odd.get(look, ()))  # at once: another thread may add to it
        return next((other for other in alike if other != name and held(other)), "")
