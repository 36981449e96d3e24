"""The corpus of the date task."""

from datetime import date, timedelta

import pytest
from make_dates import FIRST, LANGUAGES, LAST, N_TEST, N_TRAIN, N_VALID, PIVOT, Shape, generate, main, shapes


@pytest.fixture(scope="module")
def corpus():
    return generate(1)


def test_there_are_several_hundred_shapes_in_many_languages():
    every = shapes()
    assert len({(shape.template, shape.language and shape.language.code) for shape in every}) == len(every) >= 300
    assert len({language.code for language in LANGUAGES}) >= 5


def test_no_line_has_two_readings():
    """The shapes that could be confused differ by numbers, not by years: a few telling years, but every day of them."""
    meaning: dict[str, date] = {}
    every = shapes()
    for year in (1911, 1950, 2007, 2012, 2049, 2099):
        day = date(year, 1, 1)
        while day.year == year:
            for shape in every:
                if shape.can_write(year):
                    line = shape.write(day)
                    assert meaning.setdefault(line.casefold(), day) == day, line
            day += timedelta(days=1 if day.month < 3 else 3)
    assert len(meaning) > 100_000


def test_every_generated_line_has_one_reading_in_the_whole_corpus(corpus):
    pairs = {pair for src, trg in corpus.values() for pair in zip(src, trg, strict=True)}
    assert len(pairs) == len({src for src, _ in pairs})


def test_no_word_names_two_months():
    months: dict[str, int] = {}
    for language in LANGUAGES:
        for words in (language.months, language.short_months):
            for number, word in enumerate(words):
                assert months.setdefault(word.casefold(), number) == number, (language.code, word)


def test_two_digits_of_a_year_are_read_by_the_pivot():
    short = Shape("{d}/{m}/{yy}", None)
    assert [short.can_write(year) for year in (1949, 1950, 2049, 2050)] == [False, True, True, False]
    assert short.write(date(2003, 5, 6)) == "6/5/03"
    assert PIVOT == 50


def test_a_generated_year_has_two_digits_only_where_they_mean_it(corpus):
    """In the years of the pivot now and then, in all others never: so the first and the last of them, too."""
    short = {
        int(day[:4]) for src, trg in corpus.values() for line, day in zip(src, trg, strict=True) if day[:4] not in line
    }
    assert short == set(range(1950, 2050))


def test_weekdays_and_ordinals_are_those_of_the_date():
    english = LANGUAGES[0]
    day = date(1969, 7, 21)
    assert Shape("{wday}, {month} {o}, {yyyy}", english).write(day) == "Monday, July 21st, 1969"
    assert [english.ordinal(n) for n in (1, 2, 3, 4, 11, 12, 13, 22, 23, 31)] == (
        ["1st", "2nd", "3rd", "4th", "11th", "12th", "13th", "22nd", "23rd", "31st"]
    )


def test_no_date_and_no_line_of_one_split_occurs_in_another(corpus):
    assert {split: len(src) for split, (src, _) in corpus.items()} == {
        "train": N_TRAIN,
        "valid": N_VALID,
        "test": N_TEST,
    }
    for side in (0, 1):
        train, valid, test = (set(corpus[split][side]) for split in ("train", "valid", "test"))
        assert not train & test and not train & valid and not valid & test


def test_targets_are_iso_dates_of_the_calendar(corpus):
    for _, targets in corpus.values():
        assert all(FIRST <= date.fromisoformat(line) <= LAST for line in targets)


def test_the_corpus_is_a_function_of_the_seed(corpus):
    assert generate(1) == corpus
    assert generate(2)["test"] != corpus["test"]


def test_the_files_are_the_corpus(tmp_path, corpus):
    assert main([str(tmp_path / "new" / "dates")]) == 0
    for split, sides in corpus.items():
        for side, lines in zip(("src", "trg"), sides, strict=True):
            text = (tmp_path / "new" / "dates" / f"{split}.{side}").read_text(encoding="utf-8")
            assert text == "".join(f"{line}\n" for line in lines)
