"""Comparison of systems that translated the same sentences: scores, significance tests, and kinds of differences.

Output: numbers and one offline page. Its script gets the texts as JSON and shows them as text, never as HTML.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from nmt.evaluation.metrics import METRICS, N_BOOTSTRAP, PValues, Score, Texts, score, sentence_chrf, words_of
from nmt.files import script_page

TIE = 1e-6  # two sentences whose chrF2 differs by less are equally good
# First number of each group; the last group is open-ended.
LENGTHS = (0, 10, 20, 30, 40, 60)  # words of the reference
FREQUENCIES = (1, 2, 3, 5, 10, 100)  # times that a word occurs in the references
_LENGTH_RATIO = 1.2  # above this ratio of words, two translations differ in length

# Kinds of differences from the first system's translation of a sentence; the first kind that fits counts.
SAME, STYLE, ORDER, LENGTH, WORDS = "identical", "case or punctuation", "word order", "length", "other words"
DISAGREEMENTS = (SAME, STYLE, ORDER, LENGTH, WORDS)


class System(NamedTuple):
    """A system and its translations. texts: of all systems with the same references, sources and language. flags: names
    of the quality flags of each line, given sources."""

    name: str
    texts: Texts
    flags: Sequence[Sequence[str]] = ()


class Result(NamedTuple):
    """Scores of one system, and its comparison with the first system; empty for that one."""

    system: System
    scores: dict[str, Score]  # by name of the metric
    sentences: list[float]  # chrF2 of each sentence
    p_values: dict[str, PValues]
    wins: dict[str, int]  # by `wins_of`


def compare(
    systems: Sequence[System], metrics: Sequence[str], on_progress: Callable[[int], object] = lambda _: None
) -> list[Result]:
    """Score systems and test the differences of each from the first.

    metrics: names of METRICS. on_progress: called with 1 for each metric of each system. Raises DataError for a system
    of another number of lines than its references.
    """
    results: list[Result] = []
    for system in systems:
        first = results[0] if results else None
        scores, p_values = dict[str, Score](), dict[str, PValues]()
        for name in metrics:
            scores |= score(system.texts, [name], intervals=True)
            if first and (values := scores[name].p_values(first.scores[name])):
                p_values[name] = values
            on_progress(1)
        sentences = sentence_chrf(system.texts)
        wins = wins_of(sentences, first.sentences) if first else {}
        results.append(Result(system, scores, sentences, p_values, wins))
    return results


def wins_of(sentences: Sequence[float], first: Sequence[float]) -> dict[str, int]:
    """Count the sentences that are "won", "tied" and "lost": scores above, at and below those of the first system."""
    differences = [score - base for score, base in zip(sentences, first, strict=True)]
    won, lost = sum(change > TIE for change in differences), sum(change < -TIE for change in differences)
    return {"won": won, "tied": len(differences) - won - lost, "lost": lost}


class Group(NamedTuple):
    """A row of a table: the number of sentences or words in a group, and a value for each system."""

    name: str
    n: int
    values: list[float]


def _group_names(starts: Sequence[int]) -> list[str]:
    closed = [str(start) if start == after - 1 else f"{start}-{after - 1}" for start, after in pairwise(starts)]
    return [*closed, f"{starts[-1]} or more"]


def by_length(systems: Sequence[System]) -> list[Group]:
    """Return the corpus chrF2 of the sentences of each length, in words of the first reference."""
    texts = systems[0].texts
    n_word = [len(words) for words in words_of(texts.references[0], texts.trg_lang)]
    number = np.digitize(n_word, LENGTHS)  # of the group of each sentence, from 1
    statistics = [score(system.texts, ["chrf"])["chrf"].statistics for system in systems]
    groups = []
    for i, name in enumerate(_group_names(LENGTHS), start=1):
        if n := int((number == i).sum()):
            values = [s.scores(s.counts[number == i].sum(0, keepdims=True)).item() for s in statistics if s]
            groups.append(Group(name, n, values))
    return groups


def by_frequency(systems: Sequence[System]) -> list[Group]:
    """Return the F1, in percent, of words by their frequency in the first reference.

    A word of a hypothesis is right as often as its reference has it. A word without an occurrence in any reference
    belongs to no group, so precision counts only wrong words of the same group.
    """
    texts = systems[0].texts
    ref_words = words_of(texts.references[0], texts.trg_lang)
    ref_counts, times = [Counter(words) for words in ref_words], Counter(chain.from_iterable(ref_words))
    group = {word: bisect_right(FREQUENCIES, n) - 1 for word, n in times.items()}
    n_ref_word = Counter(group[word] for words in ref_words for word in words)
    columns = []
    for system in systems:
        n_right, n_written = Counter[int](), Counter[int]()
        for words, ref_count in zip(words_of(system.texts.hypotheses, texts.trg_lang), ref_counts, strict=True):
            for word, n in Counter(words).items():
                if word in group:
                    n_written[group[word]] += n
                    n_right[group[word]] += min(n, ref_count[word])
        columns.append({i: 200 * n_right[i] / (n + n_written[i]) for i, n in n_ref_word.items()})
    names = enumerate(_group_names(FREQUENCIES))
    return [Group(name, n_ref_word[i], [column[i] for column in columns]) for i, name in names if n_ref_word[i]]


def disagreement(words: Sequence[str], first: Sequence[str]) -> str:
    """Return the kind of difference of a translation from that of the first system: one of DISAGREEMENTS."""
    if list(words) == list(first):
        return SAME
    plain, base = ([word.casefold() for word in text if any(map(str.isalnum, word))] for text in (words, first))
    if plain == base:
        return STYLE
    if Counter(plain) == Counter(base):
        return ORDER
    longer, shorter = max(len(plain), len(base)), min(len(plain), len(base))
    return LENGTH if longer > _LENGTH_RATIO * shorter else WORDS


def disagreements(systems: Sequence[System]) -> list[list[str]]:
    """Return, for each system after the first, the kind of disagreement of each sentence."""
    first, *others = (words_of(system.texts.hypotheses, system.texts.trg_lang) for system in systems)
    return [[disagreement(*pair) for pair in zip(other, first, strict=True)] for other in others]


def by_disagreement(results: Sequence[Result], kinds: Sequence[Sequence[str]]) -> list[list[Group]]:
    """Return, for each system after the first, the sentences of each kind and their mean gain in chrF2 over the first
    system."""
    tables = []
    for result, system_kinds in zip(results[1:], kinds, strict=True):
        differences: dict[str, list[float]] = {kind: [] for kind in DISAGREEMENTS}
        for kind, value, base in zip(system_kinds, result.sentences, results[0].sentences, strict=True):
            differences[kind].append(value - base)
        tables.append([Group(kind, len(d), [sum(d) / len(d)]) for kind, d in differences.items() if d])
    return tables


def as_json(results: Sequence[Result]) -> dict[str, Any]:
    """Return the scores as values of JSON, unrounded."""
    systems = []
    for result in results:
        scores = {}
        for name, entry in result.scores.items():
            scores[name] = {"score": entry.value, "low": entry.low, "high": entry.high, "signature": entry.signature}
            if name in result.p_values:
                p = result.p_values[name]
                scores[name] |= {"p_bootstrap": p.bootstrap, "p_randomisation": p.randomisation}
        systems.append({"name": result.system.name, "scores": scores, "sentences": result.wins or None})
    lang, n_line = results[0].system.texts.trg_lang, len(results[0].sentences)
    return {"lang": lang, "n_line": n_line, "n_bootstrap": N_BOOTSTRAP, "systems": systems}


def page(results: Sequence[Result], title: str) -> str:
    """Return the HTML of a page that compares systems."""
    systems = [result.system for result in results]
    kinds = disagreements(systems)
    data = {
        **as_json(results),
        "titles": {name: entry.name for name, entry in results[0].scores.items()},
        "higher": {name: METRICS[name].higher_is_better for name in results[0].scores},
        "lengths": by_length(systems),
        "frequencies": by_frequency(systems),
        "disagreements": by_disagreement(results, kinds),
        "references": list(map(list, systems[0].texts.references)),
        "sources": list(systems[0].texts.sources),
        "hypotheses": [list(system.texts.hypotheses) for system in systems],
        "chrf": [[round(value, 2) for value in result.sentences] for result in results],
        "kinds": kinds,
        "flags": [list(map(list, system.flags)) for system in systems],
    }
    return script_page(Path(__file__).with_name("comparison_page.html"), title, data)
