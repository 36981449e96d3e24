"""A line that occurs again is not translated again, and nobody can tell from what comes out."""

import pytest

from nmt.cli.translating import answering
from nmt.cli.translating import memory as translate_memory
from nmt.cli.translating.memory import Memory

LINES = ["the ship", "in May", "the ship", "", "für Übung", "in May", "", "the old ship", "the ship", "left"]
SOURCE = "".join(line + "\n" for line in LINES).encode()


def asked(memory, *windows):
    """The lines of each window that somebody has to answer."""
    return [[key[0] for key in memory.slots([(line,) for line in window])[1]] for window in windows]


def test_only_what_is_new_must_be_answered():
    assert asked(Memory(), "aba", "bca", "cd", "dd") == [["a", "b"], ["c"], ["d"], []]


def test_the_same_line_has_the_same_slot():
    memory = Memory()
    first, new = memory.slots([("a",), ("b",), ("a",)])
    again, _ = memory.slots([("b",), ("a",)])
    assert first[0] is first[2] is again[1] is new[("a",)] and first[1] is again[0] is not first[0]


def test_without_room_lines_are_the_same_within_a_window_only():
    assert asked(Memory(budget=0), "aba", "ba") == [["a", "b"], ["b", "a"]]


def test_what_has_not_occurred_for_longest_is_forgotten():
    room = translate_memory._FIXED + translate_memory._PER_CHARACTER
    assert asked(Memory(budget=2 * room), "a", "b", "a", "c", "a", "b") == [["a"], ["b"], [], ["c"], [], ["b"]]


def test_memory_never_exceeds_its_budget():
    memory = Memory(n_hypothesis=3, budget=100_000)
    for n in range(500):
        memory.slots([(f"{n} " + "x" * (n % 90),)])
        assert sum(map(memory._cost, memory._slots)) == 100_000 - memory._left <= 100_000
    assert 10 < len(memory._slots) < 70


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
    monkeypatch.setattr("nmt.cli.translating.job.Memory", lambda n: Memory(n, budget=0))
    assert translate("--decode.window", 3, *flags, source=SOURCE) == (lines, err)
    assert len(calls) > 2 * len(set(LINES))
