"""What makes a translation look wrong without a reference: small tests of source and output, each a pure function.

Reasons, not verdicts: a name repeats itself in good translations too.
"""

import re
from collections import Counter
from collections.abc import Collection
from functools import lru_cache
from itertools import combinations

from nmt.data.filters.ratio import UsualRatio, is_unusual
from nmt.data.text.items import PATTERNS
from nmt.data.text.scripts import letters_of_others, scripts_of
from nmt.decoding.constraints.request import is_blank
from nmt.decoding.numbers import missing_numbers
from nmt.decoding.translation import Translation, is_in_pieces

EMPTY, DAMAGED, REPEATED, COPIED, LOST, ADDED = "empty", "damaged", "repeated", "copied", "lost", "added"
SCRIPT, RATIO = "script", "ratio"
CAP, LOW, UNMET = "cap", "low", "unmet"  # what only the search can know
MISSING, DOUBLED = "missing", "doubled"  # what only who puts protected items back can know
# A block of at least two characters some times in a row, or one character so often that it is no ellipsis.
_RUN = {n: re.compile(rf"(\S.{{1,80}}?)\1{{{n - 1},}}", re.DOTALL) for n in (3, 4)}
_SHORT_RUN = re.compile(r"(\S.{1,3})\1\1", re.DOTALL)
_GRAM = 5  # characters, more than a short block has
_RUN_OF_ONE = re.compile(r"([^\s\d])\1{2,}|(\d)\2{9,}")
_DOUBLE = re.compile(r"(?:^| )(\S{3,}) \1(?= )")
# White space and punctuation, which may stand in a loop or not. Vowel signs are no letters to Python, and stay.
_BETWEEN = re.compile(r"[\s!-/:-@[-`{-~¡-¿\u2010-\u2027\u2030-\u205e\u3000-\u303f\uff00-\uff0f\uff1a-\uff20।॥၊။؟،]+")
_LONG_LOOP, _LONG_ROW = 4, 10
_LOST_CHARACTER = "\ufffd"
_UNCHANGED = re.compile("|".join(pattern for kind, pattern in PATTERNS.items() if kind != "number"))
_FAR_ENOUGH = 5_000  # characters that are looked at: a line may be of any size
_SHORTEST_COPY = 4  # words: a name or two may well stay as they are
_LEAST_LOST = 10  # smaller numbers are often written as words
_LEAST_ADDED = 13  # so are these in the source, if they are months
_LONG_COPY = 40  # bytes
_FEW_LETTERS = 4  # of other scripts, which a formula may have


def reasons(
    source: str, output: str, max_ratio: float, usual_ratio: float | None = None, languages: Collection[str] = ()
) -> list[str]:
    """Name reasons for doubt, of `empty`, `damaged`, `repeated`, `copied`, `lost`, `added`, `script`, `ratio`.

    max_ratio, usual_ratio: as for `is_out_of_ratio`; languages: as for `is_in_foreign_script`.
    """
    checks = {
        EMPTY: is_empty(source, output),
        DAMAGED: is_damaged(source, output),
        REPEATED: is_repeated(source, output),
        COPIED: is_copied(source, output),
        LOST: bool(lost(source, output)),
        ADDED: bool(added(source, output)),
        SCRIPT: is_in_foreign_script(source, output, languages),
        RATIO: is_out_of_ratio(source, output, max_ratio, usual_ratio),
    }
    return [name for name, found in checks.items() if found]


def complaints(
    line: str,
    translation: Translation,
    max_ratio: float,
    low_score: float,
    usual_ratio: float | None = None,
    languages: Collection[str] = (),
) -> list[str]:
    """`reasons` of the best translation of a line, and those that lie in how it was found: `cap`, `low`, `missing`,
    `doubled` and `unmet`.

    low_score: decode.low_score of the recipe.
    """
    if not translation.hypotheses:
        return []
    best = translation.hypotheses[0]
    found = [] if best.finished else [CAP]
    found += reasons(line, translation.text, max_ratio, usual_ratio, languages)
    found += [LOW] * is_low(best.score, len(best.ids) + 1, low_score)
    found += [MISSING] * bool(translation.missing) + [DOUBLED] * bool(translation.doubled)
    return found + [UNMET] * bool(translation.unmet)


def flags_of(translation: Translation, reasons: list[str]) -> list[str]:
    """Everything odd about a translation, by name. reasons: those against it, as of `complaints`."""
    if not translation.hypotheses:
        return ["letterless" if translation.text else "blank"]
    return ["split"] * is_in_pieces(translation) + reasons


def is_low(log_prob: float, n_token: int, low_score: float) -> bool:
    """Whether the mean log-probability of a token, the end counted, is below the limit; 0 is none."""
    return low_score < 0 and log_prob / n_token < low_score


def is_empty(source: str, output: str) -> bool:
    """Whether nothing of the output can be seen, and something of the source."""
    return is_blank(output) and not is_blank(source)


def is_damaged(source: str, output: str) -> bool:
    """Return whether the output has more characters that were lost (U+FFFD) than the source: it ended inside one."""
    return output.count(_LOST_CHARACTER) > source.count(_LOST_CHARACTER)


def is_repeated(source: str, output: str) -> bool:
    """Return whether the output goes round in a loop, and the source in none or in one of less than half as many turns.

    A loop is a piece of text four times in a row, or, where that is most of the output and nothing in the source comes
    twice, three times, or a word twice. Case and punctuation do not count.
    """
    source, output = source[:_FAR_ENOUGH].casefold(), output[:_FAR_ENOUGH].casefold()
    n_turn = _turns(output)
    if n_turn >= _LONG_LOOP:
        return n_turn > 2 * _turns(source)
    words = f"{_BETWEEN.sub(' ', output).strip()} "
    runs = (_RUN[3], _DOUBLE) if _may_run(words) else (_DOUBLE,)
    found = max((one for run in runs if (one := run.search(words))), key=_length, default=None)
    if found is None or 2 * _length(found) <= len(words) or not any(map(str.isalpha, found[1])):
        return False
    return _turns(source) == 1


def _turns(text: str) -> int:
    """Return how often something stands in a row, at most."""
    ones = [len(one[0]) for one in _RUN_OF_ONE.finditer(text)]
    turns = [n for n in ones if n >= _LONG_ROW] or [1]
    words = f"{_BETWEEN.sub(' ', text).strip()} "
    for form in filter(_may_run, (text, words)):
        turns += [len(one[0]) // len(one[1]) for one in _RUN[_LONG_LOOP].finditer(form)]
    if max(turns) == 1:
        turns += [3] * bool(_may_run(words) and _RUN[3].search(words)) + [2] * bool(_DOUBLE.search(words))
    return max(turns)


@lru_cache(maxsize=4)
def _may_run(text: str) -> bool:
    """Return False only for a text in which no block comes three times in a row, in less time than `_RUN` takes."""
    if _SHORT_RUN.search(text):
        return True
    places: dict[str, list[int]] = {}  # of the first characters of longer blocks
    for place in range(len(text) - _GRAM + 1):
        places.setdefault(text[place : place + _GRAM], []).append(place)
    often = ((found, frozenset(found)) for found in places.values() if len(found) > 2)
    return any(2 * b - a in known for found, known in often for a, b in combinations(found, 2))


def _length(found: re.Match[str]) -> int:
    return len(found[0])


def is_copied(source: str, output: str) -> bool:
    """Whether the output is the source, and that is longer than a name."""
    words = source.split()
    return words == output.split() and (len(words) >= _SHORTEST_COPY or len(source.encode()) >= _LONG_COPY)


def lost(source: str, output: str) -> list[str]:
    """Numbers of the source, by their value, and addresses, names, tags and emoji that the output has not."""
    source, output = source[:_FAR_ENOUGH], output[: 10 * _FAR_ENOUGH]
    (wanted, rest), (there, other) = _items(source), _items(output)
    missing = Counter(wanted) - Counter(there)
    return sorted(missing.elements()) + missing_numbers(rest, other, _LEAST_LOST)


def added(source: str, output: str) -> list[str]:
    """Numbers of the output that the source has not, by their value."""
    source, output = source[: 10 * _FAR_ENOUGH], output[:_FAR_ENOUGH]
    return missing_numbers(_items(output)[1], _items(source)[1], _LEAST_ADDED)


def is_in_foreign_script(source: str, output: str, languages: Collection[str]) -> bool:
    """Whether most letters of the output are of scripts of none of the languages, and those of the source are not.

    languages: codes of those of the source and of the target; where the scripts of one are not known, any will do.
    """
    scripts = list(map(scripts_of, languages))
    if not scripts or not all(scripts) or (output.isascii() and any("Latn" in one for one in scripts)):
        return False
    others = letters_of_others(frozenset().union(*scripts))

    def is_foreign(text: str) -> bool:
        n_foreign, n_letter = sum(map(len, others.findall(text))), sum(map(str.isalpha, text))
        return n_foreign >= _FEW_LETTERS and 2 * n_foreign > n_letter

    return is_foreign(output[:_FAR_ENOUGH]) and not is_foreign(source[:_FAR_ENOUGH])


def is_out_of_ratio(source: str, output: str, max_ratio: float, usual_ratio: float | None = None) -> bool:
    """Return whether data.max_ratio dropped all training pairs of such lengths.

    max_ratio: data.max_ratio of the recipe. usual_ratio: characters of a target for one of its source, as learnt from
    the training pairs. Where that is not known, as in runs begun long ago, neither characters nor UTF-8 bytes may be in
    a ratio around 1.
    """
    if not max_ratio:
        return False
    median = usual_ratio or 1.0
    usual = UsualRatio(median, median / max_ratio, median * max_ratio)
    if not is_unusual(len(source), len(output), usual):
        return False
    return usual_ratio is not None or is_unusual(len(source.encode()), len(output.encode()), usual)


@lru_cache(maxsize=4)
def _items(text: str) -> tuple[list[str], str]:
    """Addresses, names, tags and emoji of a text, and the text without them, as they have numbers of their own."""
    found = _UNCHANGED.findall(text)
    return found, _UNCHANGED.sub(" ", text) if found else text
