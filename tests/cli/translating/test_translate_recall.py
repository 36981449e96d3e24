"""A line that occurs again in its window is not translated again, with the same output."""

import pytest

from nmt.cli.translating import workers

LINES = ["the ship", "in May", "the ship", "", "für Übung", "in May", "", "the old ship", "the ship", "left"]
SOURCE = "".join(line + "\n" for line in LINES).encode()


@pytest.mark.parametrize("flags", [[], ["--decode.samples", 2]])
def test_a_line_that_occurs_again_in_its_window_is_translated_once(translate, monkeypatch, flags):
    calls = []
    real = workers.LineTranslator.results

    def noted(lines, task):
        calls.extend(task.items)
        return real(lines, task)

    monkeypatch.setattr(workers.LineTranslator, "results", noted)
    lines, err = translate(*flags, source=SOURCE)
    assert len(calls) == len(set(calls)) == len(set(LINES))
    assert translate("--decode.window", 1, *flags, source=SOURCE) == (lines, err)
    assert len(calls) == len(set(LINES)) + len(LINES)
