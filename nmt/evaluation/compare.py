"""Comparison of systems that translated the same sentences: scores, significance, and where they differ.

Numbers and one offline page. The texts are data: the script of the page is given JSON and shows them as text.
"""

import html
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, NamedTuple

from nmt.evaluation.metrics import METRICS, N_BOOTSTRAP, Comet, PValues, Score, Texts, score, sentence_chrf, words_of
from nmt.files import filled_page, json_for_html

TIE = 1e-6  # two sentences whose chrF2 differs by less are equally good
# The first number of each group; the last has no end.
LENGTHS = (0, 10, 20, 30, 40, 60)  # words of the reference
FREQUENCIES = (1, 2, 3, 5, 10, 100)  # times that a word occurs in the references
_LONGER = 1.2  # times as many words: sentences differ in length

# How a system's translation of a sentence differs from the first system's; the first that holds counts.
SAME, STYLE, ORDER, LENGTH, WORDS = "identical", "case or punctuation", "word order", "length", "other words"
DISAGREEMENTS = (SAME, STYLE, ORDER, LENGTH, WORDS)


class System(NamedTuple):
    """A system and its translations, line by line. flags: names of quality flags of each, where the source is known."""

    name: str
    hypotheses: Sequence[str]
    flags: Sequence[Sequence[str]] = ()


class Wins(NamedTuple):
    """Numbers of sentences in which a system has a higher, an equal and a lower chrF2 than the first."""

    won: int
    tied: int
    lost: int


class Result(NamedTuple):
    """Scores of one system, and its differences from the first system, which has none."""

    system: System
    scores: dict[str, Score]  # by name of the metric
    sentences: list[float]  # chrF2 of each sentence
    p_values: dict[str, PValues]
    wins: Wins | None


def compare(
    systems: Sequence[System],
    references: Sequence[Sequence[str]],
    *,
    metrics: Sequence[str],
    sources: Sequence[str] = (),
    trg_lang: str = "",
    comet: Comet | None = None,
    on_progress: Callable[[int], object] = lambda _: None,
) -> list[Result]:
    """Score systems and test the differences of each from the first.

    references: the lines of each reference. metrics: names of METRICS. comet: the model of that metric. on_progress:
    called with the number of steps done, of `n_step`. Raises DataError for a system of another number of lines than
    the references.
    """
    texts = [Texts(one.hypotheses, references, sources, trg_lang, comet) for one in systems]
    scores: list[dict[str, Score]] = [{} for _ in systems]
    for found, one in zip(scores, texts, strict=True):
        for name in metrics:
            found.update(score(one, [name], intervals=True))
            on_progress(1)
    p_values: list[dict[str, PValues]] = [{} for _ in systems]
    for name in metrics if len(systems) > 1 else ():
        if tests := METRICS[name].compare:
            for its, p_value in zip(p_values[1:], tests(texts), strict=True):
                its[name] = p_value
        on_progress(1)
    sentences = [sentence_chrf(one) for one in texts]
    wins = [None, *(wins_of(one, sentences[0]) for one in sentences[1:])]
    return [Result(*one) for one in zip(systems, scores, sentences, p_values, wins, strict=True)]


def n_step(n_system: int, n_metric: int) -> int:
    """Steps of `compare`."""
    return n_metric * (n_system + (n_system > 1))


def wins_of(sentences: Sequence[float], first: Sequence[float]) -> Wins:
    """Count the sentences in which one system's scores are above, at and below the first's."""
    differences = [one - other for one, other in zip(sentences, first, strict=True)]
    won, lost = sum(one > TIE for one in differences), sum(one < -TIE for one in differences)
    return Wins(won, len(differences) - won - lost, lost)


class Group(NamedTuple):
    """A row of a table: how many sentences or words there are, and a value of each system."""

    name: str
    n: int
    values: list[float]


def _group_names(starts: Sequence[int]) -> list[str]:
    ends = [str(start) if start == after - 1 else f"{start}-{after - 1}" for start, after in pairwise(starts)]
    return [*ends, f"{starts[-1]} or more"]


def by_length(systems: Sequence[System], references: Sequence[Sequence[str]], trg_lang: str) -> list[Group]:
    """The corpus chrF2 of the sentences of each length, in words of the first reference."""
    rows: list[list[int]] = [[] for _ in LENGTHS]
    for number, words in enumerate(words_of(references[0], trg_lang)):
        rows[bisect_right(LENGTHS, len(words)) - 1].append(number)

    def value(system: System, its: list[int]) -> float:
        hypotheses, *some = ([lines[number] for number in its] for lines in (system.hypotheses, *references))
        return score(Texts(hypotheses, some, trg_lang=trg_lang), ["chrf"])["chrf"].value

    named = zip(_group_names(LENGTHS), rows, strict=True)
    return [Group(name, len(its), [value(one, its) for one in systems]) for name, its in named if its]


def by_frequency(systems: Sequence[System], references: Sequence[Sequence[str]], trg_lang: str) -> list[Group]:
    """The F1 of the words that occur so often in the first reference, in percent.

    A word of a hypothesis is right as often as its reference has it. A word that no reference has is in no group, so
    that precision counts what was written in place of other words of the group.
    """
    cut = words_of(references[0], trg_lang)
    wanted, times = [Counter(words) for words in cut], Counter(chain.from_iterable(cut))
    group = {word: bisect_right(FREQUENCIES, n) - 1 for word, n in times.items()}
    n_wanted = Counter(group[word] for words in cut for word in words)
    columns = []
    for system in systems:
        right, written = Counter[int](), Counter[int]()
        for words, there in zip(words_of(system.hypotheses, trg_lang), wanted, strict=True):
            for word, n in Counter(words).items():
                if word in group:
                    written[group[word]] += n
                    right[group[word]] += min(n, there[word])
        columns.append({i: 200 * right[i] / (n + written[i]) for i, n in n_wanted.items()})
    named = enumerate(_group_names(FREQUENCIES))
    return [Group(name, n_wanted[i], [column[i] for column in columns]) for i, name in named if n_wanted[i]]


def disagreement(words: Sequence[str], first: Sequence[str]) -> str:
    """Name how the words of a translation differ from those of the first system: one of DISAGREEMENTS."""
    if list(words) == list(first):
        return SAME
    plain, others = ([word.casefold() for word in its if any(map(str.isalnum, word))] for its in (words, first))
    if plain == others:
        return STYLE
    if Counter(plain) == Counter(others):
        return ORDER
    longer, shorter = max(len(plain), len(others)), min(len(plain), len(others))
    return LENGTH if longer > _LONGER * shorter else WORDS


def disagreements(results: Sequence[Result], trg_lang: str) -> list[list[str]]:
    """The kind of disagreement of each system after the first, for each sentence."""
    first, *rest = (words_of(one.system.hypotheses, trg_lang) for one in results)
    return [[disagreement(*both) for both in zip(one, first, strict=True)] for one in rest]


def by_disagreement(results: Sequence[Result], kinds: Sequence[Sequence[str]]) -> list[list[Group]]:
    """For each system after the first: the sentences of each kind, and by how much their mean chrF2 is above the
    first's."""
    tables = []
    for result, its in zip(results[1:], kinds, strict=True):
        differences: dict[str, list[float]] = {kind: [] for kind in DISAGREEMENTS}
        for kind, one, first in zip(its, result.sentences, results[0].sentences, strict=True):
            differences[kind].append(one - first)
        tables.append([Group(kind, len(d), [sum(d) / len(d)]) for kind, d in differences.items() if d])
    return tables


def as_json(results: Sequence[Result], trg_lang: str) -> dict[str, Any]:
    """The scores in values of JSON, unrounded."""
    systems = []
    for one in results:
        scores = {}
        for name, found in one.scores.items():
            scores[name] = {"score": found.value, "low": found.low, "high": found.high, "signature": found.signature}
            if name in one.p_values:
                p = one.p_values[name]
                scores[name] |= {"p_bootstrap": p.bootstrap, "p_randomisation": p.randomisation}
        wins = one.wins._asdict() if one.wins else None
        systems.append({"name": one.system.name, "scores": scores, "sentences": wins})
    return {"lang": trg_lang, "n_line": len(results[0].sentences), "n_bootstrap": N_BOOTSTRAP, "systems": systems}


def page(
    results: Sequence[Result], references: Sequence[Sequence[str]], sources: Sequence[str], trg_lang: str, title: str
) -> str:
    """The text of a page that compares systems. sources: may be empty."""
    systems = [one.system for one in results]
    kinds = disagreements(results, trg_lang)
    data = {
        **as_json(results, trg_lang),
        "titles": {name: found.name for name, found in results[0].scores.items()},
        "higher": {name: METRICS[name].higher_is_better for name in results[0].scores},
        "lengths": by_length(systems, references, trg_lang),
        "frequencies": by_frequency(systems, references, trg_lang),
        "disagreements": by_disagreement(results, kinds),
        "references": list(map(list, references)),
        "sources": list(sources),
        "hypotheses": [list(one.hypotheses) for one in systems],
        "chrf": [[round(value, 2) for value in one.sentences] for one in results],
        "kinds": kinds,
        "flags": [list(map(list, one.flags)) for one in systems],
    }
    return filled_page(
        Path(__file__).with_name("comparison_page.html"), {"title": html.escape(title), "data": json_for_html(data)}
    )
