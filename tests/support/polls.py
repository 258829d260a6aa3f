"""Look-alike names of locks."""

from __future__ import annotations

REAL = "deploy/prod"
UNSEEN = {
    "ZERO WIDTH NON-JOINER": "deploy\u200c/prod",
    "ZERO WIDTH JOINER": "deploy/\u200dprod",
    "ZERO WIDTH SPACE": "deploy/prod\u200b",
    "WORD JOINER": "de\u2060ploy/prod",
    "COMBINING GRAPHEME JOINER": "deploy/p\u034frod",
    "HANGUL FILLER": "deploy/prod\u3164",
    "HALFWIDTH HANGUL FILLER": "deploy/prod\uffa0",
    "HANGUL CHOSEONG FILLER": "deploy/prod\u115f",
    "HANGUL JUNGSEONG FILLER": "deploy/prod\u1160",
    "KHMER VOWEL INHERENT AQ": "deploy/\u17b4prod",
    "MONGOLIAN FREE VARIATION SELECTOR ONE": "deploy/pro\u180bd",
    "VARIATION SELECTOR-16": "deploy\ufe0f/prod",
    "VARIATION SELECTOR-17": "deploy/prod\U000e0100",
    "TAG LATIN SMALL LETTER A": "deploy/prod\U000e0061",
    "NO-BREAK SPACE": "deploy/prod\xa0",
    "BRAILLE PATTERN BLANK": "deploy/prod\u2800",
    "a space at the end": "deploy/prod ",
}
OTHER_LETTERS = {
    "Cyrillic letters": "d\u0435pl\u043ey/\u0440r\u043ed",
    "Greek letters": "depl\u03bfy/pr\u03bfd",
    "DIVISION SLASH": "deploy\u2215prod",
    "FULLWIDTH": "\uff44\uff45ploy/prod",
    "MATHEMATICAL BOLD": "\U0001d41deploy/prod",
}
ALL = {**UNSEEN, **OTHER_LETTERS}
