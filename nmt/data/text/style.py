"""Style of a text: in small letters, in capitals, with its marks set apart; and input unlike training in that."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping

_APART = re.compile(r"\s[.,!?;:]+(?:\s|$)")
# By the name of each trait: what is said of text that has it, and that has it not.
_TRAITS = {
    "lower": ("lower-cased", "hardly ever lower-cased"),
    "capitals": ("in capitals", "hardly ever in capitals"),
    "apart": ("tokenised, its marks set apart by spaces", "hardly ever tokenised, with marks set apart by spaces"),
}
_USUAL, _UNUSUAL = 0.9, 0.02  # shares of the training lines
_MANY, _FEWEST = 0.3, 5  # share and number of the input lines


def traits_of(line: str) -> Counter[str]:
    """1 for each trait of a line, and under `cased` and `marked` where it could have any."""
    letters = [one for one in line if one.lower() != one.upper() and not "\u10a0" <= one <= "\u10ff"]
    cased, marked = len(letters) >= 3, bool(re.search(r"\w.*[.,!?;:]", line))
    lower = cased and all(map(str.islower, letters))
    capitals = cased and all(map(str.isupper, letters))
    apart = marked and bool(_APART.search(line))
    return Counter(cased=cased, marked=marked, lower=lower, capitals=capitals, apart=apart)


def shares_of(lines: Iterable[str]) -> dict[str, float]:
    """The share of the lines that have each trait, of those that could."""
    found = sum(map(traits_of, lines), Counter[str]())
    return {trait: round(found[trait] / n, 4) for trait in _TRAITS if (n := found[_possible(trait)])}


def style_notes(trained: Mapping[str, float], found: Counter[str]) -> list[str]:
    """Where many lines are written as those of training are not. trained: `shares_of`; found: sums of `traits_of`."""
    notes = []
    for trait, (usual, unusual) in _TRAITS.items():
        n, n_with = found[_possible(trait)], found[trait]
        share = trained.get(trait, 0.5)
        if share >= _USUAL and (n_other := n - n_with) >= max(_FEWEST, _MANY * n):
            notes.append(f"training text is {usual}, {n_other:,} of {n:,} input lines are not")
        if share <= _UNUSUAL and n_with >= max(_FEWEST, _MANY * n):
            notes.append(f"training text is {unusual}, {n_with:,} of {n:,} input lines are")
    return [f"note: {one}: translations may be poor; write the input as training text is" for one in notes]


def _possible(trait: str) -> str:
    return "marked" if trait == "apart" else "cased"
