"""Corpus of the date task."""

from datetime import date, timedelta

import pytest
from make_dates import FIRST, LANGUAGES, LAST, N_TEST, N_TRAIN, N_VALID, Shape, generate, main, shapes


@pytest.fixture(scope="module")
def corpus():
    return generate(1)


def test_no_line_has_two_readings(corpus):
    """A few years are enough, but with many days: shapes are confused by day and month, not by year."""
    meaning: dict[str, date] = {}
    forms = shapes()
    assert len({(shape.template, shape.language and shape.language.code) for shape in forms}) == len(forms) >= 300
    for year in (1911, 1950, 2007, 2012, 2049, 2099):
        day = date(year, 1, 1)
        while day.year == year:
            for shape in forms:
                if shape.can_write(year):
                    line = shape.write(day)
                    assert meaning.setdefault(line.casefold(), day) == day, line
            day += timedelta(days=1 if day.month < 3 else 3)
    assert len(meaning) > 100_000
    pairs = {pair for src, trg in corpus.values() for pair in zip(src, trg, strict=True)}
    assert len(pairs) == len({src for src, _ in pairs})


def test_years_weekdays_and_ordinals_follow_common_usage():
    short, english = Shape("{d}/{m}/{yy}", None), LANGUAGES[0]
    assert [short.can_write(year) for year in (1949, 1950, 2049, 2050)] == [False, True, True, False]
    assert short.write(date(2003, 5, 6)) == "6/5/03"
    assert Shape("{wday}, {month} {o}, {yyyy}", english).write(date(1969, 7, 21)) == "Monday, July 21st, 1969"
    assert [english.ordinal(n) for n in (1, 2, 3, 11, 22)] == ["1st", "2nd", "3rd", "11th", "22nd"]


def test_splits_are_disjoint_and_targets_are_valid_dates(corpus):
    sizes = {"train": N_TRAIN, "valid": N_VALID, "test": N_TEST}
    assert {split: len(src) for split, (src, _) in corpus.items()} == sizes
    for side in (0, 1):
        train, valid, test = (set(corpus[split][side]) for split in ("train", "valid", "test"))
        assert not train & test and not train & valid and not valid & test
    for _, targets in corpus.values():
        assert all(FIRST <= date.fromisoformat(line) <= LAST for line in targets)


def test_files_hold_the_corpus_which_depends_only_on_the_seed(tmp_path, corpus):
    assert main([str(tmp_path / "new" / "dates")]) == 0
    for split, sides in corpus.items():
        for side, lines in zip(("src", "trg"), sides, strict=True):
            text = (tmp_path / "new" / "dates" / f"{split}.{side}").read_text(encoding="utf-8")
            assert text == "".join(f"{line}\n" for line in lines)
    assert generate(2)["test"] != corpus["test"]
