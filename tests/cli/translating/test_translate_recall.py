"""A line that occurs again is not translated again, and nobody can tell from what comes out."""

import pytest

from nmt.cli.translating import answering
from nmt.cli.translating import answering as translate_recall
from nmt.cli.translating.answering import Recall

LINES = ["the ship", "in May", "the ship", "", "für Übung", "in May", "", "the old ship", "the ship", "left"]
SOURCE = "".join(line + "\n" for line in LINES).encode()


def asked(recall, *windows):
    """The lines of each window that somebody has to answer."""
    return [[key[0] for key in recall.slots([(line,) for line in window])[1]] for window in windows]


def test_only_what_is_new_must_be_answered():
    assert asked(Recall(), "aba", "bca", "cd", "dd") == [["a", "b"], ["c"], ["d"], []]


def test_the_same_line_has_the_same_slot():
    recall = Recall()
    first, new = recall.slots([("a",), ("b",), ("a",)])
    again, _ = recall.slots([("b",), ("a",)])
    assert first[0] is first[2] is again[1] is new[("a",)] and first[1] is again[0] is not first[0]


def test_without_room_lines_are_the_same_within_a_window_only():
    assert asked(Recall(budget=0), "aba", "ba") == [["a", "b"], ["b", "a"]]


def test_what_has_not_occurred_for_longest_is_forgotten():
    room = translate_recall._FIXED + translate_recall._PER_CHARACTER
    assert asked(Recall(budget=2 * room), "a", "b", "a", "c", "a", "b") == [["a"], ["b"], [], ["c"], [], ["b"]]


def test_memory_never_exceeds_its_budget():
    recall = Recall(n_hypothesis=3, budget=100_000)
    for n in range(500):
        recall.slots([(f"{n} " + "x" * (n % 90),)])
        assert sum(map(recall._cost, recall._slots)) == 100_000 - recall._left <= 100_000
    assert 10 < len(recall._slots) < 70


@pytest.mark.parametrize("flags", [[], ["--decode.samples", 2]])
def test_the_translations_are_the_bytes_of_a_command_without_memory(translate, monkeypatch, flags):
    """The last digits of scores are not: they depend on what else is in a batch."""
    calls = []
    real = answering.Answering.answer

    def noted(engine, keys, *rest):
        calls.extend(keys)
        return real(engine, keys, *rest)

    monkeypatch.setattr(answering.Answering, "answer", noted)
    lines, err = translate("--decode.window", 3, *flags, source=SOURCE)
    assert len(calls) == len(set(calls)) == len(set(LINES))
    monkeypatch.setattr("nmt.cli.translating.job.Recall", lambda n: Recall(n, budget=0))
    assert translate("--decode.window", 3, *flags, source=SOURCE) == (lines, err)
    assert len(calls) > 2 * len(set(LINES))
