"""How far alignments are from those of people: alignment error rate, precision and recall. No model.

F. J. Och and H. Ney 2003, "A systematic comparison of various statistical alignment models", section 6: people mark
links that are sure, S, and links that are possible, P, of which the sure ones are part. Of the links A that were found

    precision = |A ∩ P| / |A|      recall = |A ∩ S| / |S|      AER = 1 - (|A ∩ S| + |A ∩ P|) / (|A| + |S|)

where every number is a count over all lines. Lower is better; where all links are sure it is 1 - F1.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from nmt.data.text.lines import read_lines
from nmt.errors import DataError

Links = frozenset[tuple[int, int]]  # of words of the source and of the translation, from 0
_LINK = re.compile(r"([0-9]+)([-?])([0-9]+)")


class Gold(NamedTuple):
    """The links of one line. possible: the sure ones among them."""

    sure: Links
    possible: Links


def links_of(pharaoh: str) -> Links:
    """The links of a line that `nmt.evaluation.alignment` wrote: 0-0 1-2."""
    return frozenset((int(i), int(j)) for i, _, j in (pair.partition("-") for pair in pharaoh.split()))


def read_gold(path: str) -> list[Gold]:
    """The lines of a gold file: 1-2 is sure, 1?2 possible, words count from 0. Raises DataError with file:line."""
    return [parse_gold(line or "", f"{path}:{number}") for number, line in enumerate(read_lines(path), start=1)]


def parse_gold(line: str, where: str) -> Gold:
    """One line of a gold file. where: its name, for complaints."""
    sure, possible = set(), set()
    for text in line.split():
        if not (found := _LINK.fullmatch(text)):
            raise DataError(
                f"{where}: {text[:40]!r} is no link. Expected are 1-2, a sure link of word 1 of the source and word 2 "
                "of the translation, and 1?2, a possible one, with white space between them; words are counted from 0."
            )
        link = int(found[1]), int(found[3])
        possible.add(link)
        if found[2] == "-":
            sure.add(link)
    return Gold(frozenset(sure), frozenset(possible))


def check_gold(gold: Gold, n_src: int, n_trg: int, where: str) -> None:
    """Raise DataError for a link of a word that is not there, in a line with this many words."""
    for i, j in sorted(gold.possible):
        for word, n_word, side in ((i, n_src, "source"), (j, n_trg, "translation")):
            if word >= n_word:
                raise DataError(
                    f"{where}: link {i}-{j}, but the {side} has {n_word} words, counted from 0. Does this line belong "
                    "to another one, is the text cut into words in another way, or are the links counted from 1?"
                )


@dataclass
class AlignmentError:
    """The counts of Och and Ney 2003, and what follows from them, in percent. Nothing of nothing is all of it."""

    n_link: int = 0  # |A|
    n_sure: int = 0  # |S|
    n_possible: int = 0  # |P|
    n_link_sure: int = 0  # |A ∩ S|
    n_link_possible: int = 0  # |A ∩ P|
    n_line: int = 0

    def add(self, links: Iterable[tuple[int, int]], gold: Gold) -> None:
        """Count one line."""
        found = frozenset(links)
        self.n_line += 1
        self.n_link += len(found)
        self.n_sure += len(gold.sure)
        self.n_possible += len(gold.possible)
        self.n_link_sure += len(found & gold.sure)
        self.n_link_possible += len(found & gold.possible)

    @property
    def aer(self) -> float:
        """Alignment error rate."""
        return 100.0 - _percent(self.n_link_sure + self.n_link_possible, self.n_link + self.n_sure)

    @property
    def precision(self) -> float:
        """How many of the links found are possible."""
        return _percent(self.n_link_possible, self.n_link)

    @property
    def recall(self) -> float:
        """How many of the sure links were found."""
        return _percent(self.n_link_sure, self.n_sure)

    @property
    def text(self) -> str:
        """One line for people."""
        return (
            f"AER = {self.aer:.1f} % (precision {self.precision:.1f} %, recall {self.recall:.1f} %; "
            f"{self.n_link:,} links, {self.n_sure:,} sure and {self.n_possible - self.n_sure:,} more possible ones in "
            f"{self.n_line:,} lines)"
        )

    @property
    def as_json(self) -> dict[str, Any]:
        """The rates in per cent, and what was counted, for programs."""
        counts = {"n_link": self.n_link, "n_sure": self.n_sure, "n_possible": self.n_possible, "n_line": self.n_line}
        return {"aer": self.aer, "precision": self.precision, "recall": self.recall, **counts}


def _percent(part: int, whole: int) -> float:
    return 100.0 * part / whole if whole else 100.0
