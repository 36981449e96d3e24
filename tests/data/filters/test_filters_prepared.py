"""Filters in nmt-preprocess: dropped pairs in the report, filters of single corpora, and folders of older versions."""

import numpy as np
import pytest

from nmt.data.manifest import changed_settings, settings_of
from nmt.errors import DataError
from nmt.recipe.data_options import DataConfig, FilterConfig
from nmt.recipe.options import Recipe
from nmt.recipe.reader import read_recipe, write_recipe

NEW_OPTIONS = FilterConfig.model_fields.keys() - {"max_ratio", "drop_identical", "drop_duplicates"}
GOOD = [
    (f"Haus {name} am See im Wald", f"house {name} by the lake")
    for name in ["one", "two", "three", "four", "five", "six"]
]
LONG = ("ein recht kurzer Satz über Hunde", "a sentence about dogs " * 3)  # twice as long
RUSSIAN = ("собаки громко лают ночью", "dogs bark loudly at night")
UNLIKE = "qy xk wv zj " + " ".join(f"{a}{b}" for a, b in zip("abcdefghijk", "zyxwvutsrqp", strict=True))
BAD_LINES = {
    "ein\x00Hund": "control characters",
    "fÃ¼r": "damaged text",
    "собаки громко лают": "another script",
    "12 34 56 78 90 12 34 56 78 90": "mostly symbols",
    "ja " * 20: "repeats itself",
}


@pytest.fixture
def report_of(at):
    """report_of(*options, pairs, **data): report on corpora of the same pairs, one for each dict of options."""

    def prepare_corpora(*options, pairs=GOOD, **data):
        train = []
        for n, corpus_options in enumerate(options):
            for k, side in enumerate(("src", "trg")):
                at.write(f"{n}.{side}", "".join(f"{pair[k]} {n}\n" for pair in pairs))
            train.append({"src": f"{n}.src", "trg": f"{n}.trg", **corpus_options})
        return at.prepare(train, vocab_size=300, **{"src_lang": "de", "trg_lang": "en", **data})

    return prepare_corpora


def test_drops_are_reported_with_reason_and_line_and_held_out_lines_stay(at):
    at.write("t.de", "".join(f"{line}\n" for line in [*(src for src, _ in GOOD), *BAD_LINES]))
    at.write("t.en", "".join(f"{line}\n" for line in [*(trg for _, trg in GOOD), *["a rather short line of text"] * 5]))
    at.write("bad", "".join(f"{line}\n" for line in BAD_LINES))
    valid = {"src": "bad", "trg": "bad"}
    report = at.prepare({"src": "t.de", "trg": "t.en"}, valid=valid, vocab_size=300, src_lang="de", trg_lang="en")
    assert report.kept == len(GOOD) and at.texts()[0] == list(BAD_LINES)
    assert report.notes == {"control": 2}, "of the two held-out lines: only those were kept"
    first_places = {reason: drop["first"] for reason, drop in report.dropped.items()}
    assert first_places == {reason: [f"t.de:{len(GOOD) + n}"] for n, reason in enumerate(BAD_LINES.values(), start=1)}


def test_each_corpus_has_its_own_usual_ratio(at):
    """A pair that is usual in one corpus is dropped from the other."""
    rng = np.random.default_rng(1)

    def random_lines(lengths):
        return ["".join(rng.choice(list("abcdefghij klm"), size=length)) + "\n" for length in lengths]

    lengths = rng.integers(60, 120, 50)
    for name, factor in (("short", 1), ("long", 3)):
        at.write(f"{name}.de", "".join(random_lines([*lengths, 80])))
        at.write(f"{name}.en", "".join(random_lines([*(factor * lengths), 240])))
    corpora = [{"src": f"{name}.de", "trg": f"{name}.en"} for name in ("short", "long")]
    report = at.prepare(corpora, max_ratio=1.5, max_len=999, vocab_size=300)
    assert report.dropped == {"length ratio": {"count": 1, "first": ["short.de:51"]}}
    assert {name: round(ratio["median"]) for name, ratio in report.usual_ratio.items()} == {"short.de": 1, "long.de": 3}
    assert any("long.de: target/source length 3.0" in line for line in report.said)


# Options of each corpus, pairs of every corpus, options of all corpora, drops of each corpus by reason.
CORPUS_FILTERS = {
    "ratio": ([{}, {"max_ratio": 1.5}], [*GOOD, LONG, ("gleich", "gleich")], {},
              [{"identical sides": 1}, {"identical sides": 1, "length ratio": 1}]),
    "off": ([{}, {"max_ratio": 0}], [*GOOD, LONG], {"max_ratio": 1.5}, [{"length ratio": 1}, {}]),
    "script": ([{}, {"src_lang": "ru"}, {"min_script": 0}], [*GOOD, RUSSIAN, RUSSIAN], {},
               [{"another script": 2}, {"another script": len(GOOD)}, {}]),
    "duplicates": ([{}, {"drop_duplicates": True, "src": ["0.src", "1.src"], "trg": ["0.trg", "1.trg"]}],
                   [*GOOD, *GOOD[:2]], {}, [{}, {"duplicate": 8 + 2}]),
    "translations": ([{}, {"max_translations": 2}],
                     [*GOOD, (GOOD[0][0], "another house"), (GOOD[0][0], "a third house")], {},
                     [{}, {"many translations": 1}]),
    "too long": ([{}, {"src_lang": "nl"}], [*GOOD, (UNLIKE, UNLIKE[::-1])], {"max_len": 22}, [{"too long": 1}] * 2),
}  # fmt: skip


@pytest.mark.parametrize(("options", "pairs", "data", "expected"), CORPUS_FILTERS.values(), ids=CORPUS_FILTERS)
def test_options_of_a_corpus_override_those_of_all(report_of, options, pairs, data, expected):
    report = report_of(*options, pairs=pairs, **data)
    assert [corpus["dropped"] for corpus in report.corpora] == expected
    n_read, n_drop = report.corpora[-1]["read"], sum(expected[-1].values())
    assert report.corpora[-1]["kept"] == n_read - n_drop
    assert not n_drop or any(f".src: {n_read} read, {n_drop} dropped (" in line for line in report.said)


def test_written_recipe_keeps_the_filters_of_its_corpora(tmp_path):
    data = DataConfig(train=[{"src": "a", "trg": "b", "max_ratio": 0, "src_lang": "ru"}])
    write_recipe(Recipe(name="t", data=data), tmp_path / "r.yaml")
    loaded = read_recipe(tmp_path / "r.yaml").data
    assert loaded == data and loaded.filters_of(0).max_ratio == 0 and loaded.languages_of(0) == ("ru", "und")


FLAGS = (["low"], [], ["split"], ["repeated", "low"], ["split", "cap"], [])


def test_flagged_lines_are_dropped_and_counted_by_flag(at):
    columns = {"src_column": "source", "trg_column": "output", "drop_flagged": True}
    rows = [{"source": src, "output": trg, "flags": flags} for (src, trg), flags in zip(GOOD, FLAGS, strict=True)]
    report = at.prepare({"file": at.write("a.jsonl", rows), **columns})
    dropped = {reason: (drop["count"], drop["first"]) for reason, drop in report.dropped.items()}
    expected = (("low", 1), ("repeated", 4), ("cap", 5))
    assert dropped == {f"flagged {flag}": (1, [f"a.jsonl:{n}"]) for flag, n in expected}
    at.write("other", "".join(f"{trg}\n" for _, trg in GOOD))
    one_side = {"src": "a.jsonl", "src_column": "source", "trg": "other", "drop_flagged": True}
    assert at.prepare(one_side).kept == 3, "one side that is flagged is enough"
    assert at.prepare({"file": "a.jsonl", **columns, "drop_flagged": False}).kept == 6
    at.write("a.jsonl", [rows[1], {"source": "x", "output": "y"}])
    with pytest.raises(DataError, match=r"a\.jsonl:2: no list of texts under the key 'flags'"):
        at.prepare({"file": "a.jsonl", **columns})


def before_new_options(settings):
    """Settings of a version without the new filters and without `subwords.kind`."""
    new_options = {*NEW_OPTIONS, "kind"}
    return {part: {name: options[name] for name in options.keys() - new_options} for part, options in settings.items()}


@pytest.mark.parametrize(
    ("options", "changed"),
    [
        ({}, []),
        ({"data": {"min_script": 0.5}}, ["data.min_script: 0.2 in the folder, 0.5 in the recipe"]),
        (
            {"data": {"drop_near_duplicates": True}},
            ["data.drop_near_duplicates: False in the folder, True in the recipe"],
        ),
        ({"data": {"max_ratio": 3.0}}, ["data.max_ratio: 4.0 in the folder, 3.0 in the recipe"]),
        ({"subwords": {"kind": "char"}}, ["subwords.kind: 'bpe' in the folder, 'char' in the recipe"]),
    ],
)
def test_new_option_is_a_change_only_where_it_is_not_the_default(options, changed):
    stored, current = (settings_of(Recipe.model_validate({"name": "test", **changes})) for changes in ({}, options))
    assert changed_settings(before_new_options(stored), current) == changed
