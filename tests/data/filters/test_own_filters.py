"""Corpora with languages and filters of their own: what is dropped where, what is told of it, and what is refused."""

import json
import re

import pytest

from nmt.data.manifest import MANIFEST
from nmt.data.prepare import prepare
from nmt.errors import DataError, RecipeError
from nmt.recipe.data_options import FilterConfig, OwnFilters
from nmt.recipe.options import Recipe
from nmt.recipe.reader import read_recipe, write_recipe

NAMES = ("one", "two", "three", "four", "five", "six")
GOOD = [(f"Haus {name} am See im Wald", f"house {name} by the lake") for name in NAMES]
LONG = ("ein recht kurzer Satz über Hunde", "a sentence about dogs " * 3)  # twice as long
UNLIKE = "qy xk wv zj " + " ".join(f"{a}{b}" for a, b in zip("abcdefghijk", "zyxwvutsrqp", strict=True))
RUSSIAN = ("собаки громко лают ночью", "dogs bark loudly at night")


def write(path, lines):
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return str(path)


def recipe_in(folder, *own, pairs, **data):
    """As many corpora of the same pairs as there are options of their own."""
    corpora = []
    for n, options in enumerate(own):
        files = {
            side: write(folder / f"{n}.{side}", [f"{pair[k]} {n}" for pair in pairs])
            for k, side in enumerate(("src", "trg"))
        }
        corpora.append({**files, **options})
    valid = {"src": corpora[0]["src"], "trg": corpora[0]["trg"]}
    data = {
        "src_lang": "de",
        "trg_lang": "en",
        "train": corpora,
        "valid": valid,
        "alarms": "warn",
        "workers": 1,
        **data,
    }
    return Recipe.model_validate(
        {"name": "t", "data": {"out": str(folder / "out"), **data}, "subwords": {"vocab_size": 300}}
    )


def made(recipe, **how):
    said = []
    prepare(recipe, recipe.data_folder, talk=said.append, **how)
    return json.loads((recipe.data_folder / "report.json").read_text(encoding="utf-8")), said


def dropped(report):
    return [one["dropped"] for one in report["corpora"]]


def test_a_filter_of_a_corpus_is_its_own_and_the_others_are_those_of_all(tmp_path):
    report, said = made(recipe_in(tmp_path, {}, {"max_ratio": 1.5}, pairs=[*GOOD, LONG, ("gleich", "gleich")]))
    assert dropped(report) == [{"identical sides": 1}, {"identical sides": 1, "length ratio": 1}]
    told = [(one["read"], one["kept"]) for one in report["corpora"]]
    assert told == [(8, 7), (8, 6)]
    assert any("1.src: 8 read, 2 dropped (identical sides 1, length ratio 1), 6 kept" in line for line in said)
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    row = next(one for one in page.split("<tr>") if "1.src <small>identical sides 1, length ratio 1</small>" in one)
    assert re.findall(r"<td class=n>(\d+)</td>", row) == ["8", "2", "6"]


def test_a_filter_can_be_off_for_one_corpus(tmp_path):
    report, _ = made(recipe_in(tmp_path, {}, {"max_ratio": 0}, pairs=[*GOOD, LONG], max_ratio=1.5))
    assert dropped(report) == [{"length ratio": 1}, {}]


def test_scripts_are_those_of_the_languages_of_the_corpus(tmp_path):
    report, _ = made(recipe_in(tmp_path, {}, {"src_lang": "ru"}, {"min_script": 0}, pairs=[*GOOD, RUSSIAN, RUSSIAN]))
    assert dropped(report) == [{"another script": 2}, {"another script": len(GOOD)}, {}]


def test_a_corpus_may_be_asked_alone_whether_its_pairs_came_before_anywhere(tmp_path):
    recipe = recipe_in(tmp_path, {}, {"drop_duplicates": True}, {}, pairs=[*GOOD, *GOOD[:2]])
    first, second, _ = recipe.data.train
    second = second.model_copy(update={"src": [first.src, second.src], "trg": [first.trg, second.trg]})
    train = [first, second, first.model_copy()]
    report, _ = made(recipe.model_copy(update={"data": recipe.data.model_copy(update={"train": train})}))
    assert dropped(report) == [{}, {"duplicate": 8 + 2}, {}]


def test_too_many_translations_are_counted_over_all_and_dropped_where_it_is_asked(tmp_path):
    pairs = [*GOOD, (GOOD[0][0], "another house"), (GOOD[0][0], "a third house")]
    report, _ = made(recipe_in(tmp_path, {}, {"max_translations": 2}, pairs=pairs))
    assert dropped(report) == [{}, {"many translations": 1}]


def test_each_corpus_may_have_a_spread_of_its_own(tmp_path):
    pairs = [(f"{a} {a} {a} {a}", f"{b} {b} {b} {b}") for a, b in GOOD] + [(LONG[0] * 2, f"{LONG[1]}, not {LONG[1]}")]
    report, _ = made(recipe_in(tmp_path, {}, {"max_ratio_spread": 6.0}, pairs=pairs, max_ratio=0))
    assert dropped(report) == [{}, {"length ratio": 1}]
    assert [name.rpartition("/")[2] for name in report["usual_ratio"]] == ["1.src"]


def test_what_is_too_long_is_told_of_its_corpus_and_one_corpus_needs_no_table(tmp_path):
    report, _ = made(recipe_in(tmp_path, {}, {"src_lang": "nl"}, pairs=[*GOOD, (UNLIKE, UNLIKE[::-1])], max_len=22))
    assert dropped(report) == [{"too long": 1}] * 2
    alone = tmp_path / "alone"
    alone.mkdir()
    assert "corpora" not in made(recipe_in(alone, {"max_ratio": 9.0}, pairs=GOOD))[0]


def test_other_filters_of_a_corpus_are_other_data_unless_they_say_the_same(tmp_path):
    made(recipe_in(tmp_path, {}, {}, pairs=GOOD))
    same = ({"src_lang": "de"}, {"max_ratio": 4.0, "drop_control": True})
    assert "nothing to do" in made(recipe_in(tmp_path, *same, pairs=GOOD))[1][0]
    for own in ({"max_ratio": 3.0}, {"src_lang": "ru"}):
        with pytest.raises(
            DataError, match=r"data\.train\.1\.(max_ratio: None there, 3\.0|src_lang: None there, 'ru') here"
        ):
            made(recipe_in(tmp_path, {}, own, pairs=GOOD))


def test_where_no_corpus_has_its_own_the_manifest_is_as_it_was_before_any_could(tmp_path):
    made(recipe_in(tmp_path, {}, {"src_lang": "de", "max_symbols": 0.9}, pairs=GOOD))
    settings = json.loads((tmp_path / "out" / MANIFEST).read_text(encoding="utf-8"))["settings"]
    assert not [name for name in settings["data"] if name.startswith("train")]


def test_every_filter_can_be_a_corpus_own_with_its_own_bounds():
    assert OwnFilters.model_fields.keys() == FilterConfig.model_fields.keys()
    assert set(OwnFilters().model_dump().values()) == {None}


@pytest.mark.parametrize(
    ("own", "complaint"),
    [
        ("max_ratio: 0.5", r":3: data\.train\.1\.max_ratio: 0\.5 is below 1"),
        ("max_ratio: -1", r"data\.train\.1\.max_ratio: expected a number >= 0(\.0)? \| null, found the number -1"),
        ("min_script: 1.5", r"data\.train\.1\.min_script: expected a number >= 0\.0, < 1\.0 \| null"),
        ("max_repeats: 2", r"data\.train\.1\.max_repeats: expected 0 \| whole number >= 3 \| null"),
        ("max_len: 3", r"data\.train\.1\.max_len: unknown option \(did you mean data\.max_len\?\)"),
        (
            "drop_flagged: true",
            r"drop_flagged: flags stand in the JSONL .* data\.train\.1\.format says .* lines of text",
        ),
    ],
)
def test_what_no_corpus_can_have_is_refused_by_name(tmp_path, own, complaint):
    path = tmp_path / "r.yaml"
    corpora = f"[{{src: a, trg: b}},\n          {{src: a, trg: b, {own}}}]"
    path.write_text(f"name: x\ndata: {{train: {corpora}}}\n", encoding="utf-8")
    with pytest.raises(RecipeError, match=complaint):
        read_recipe(path)


def test_a_recipe_that_is_written_out_has_the_filters_of_its_corpora(tmp_path):
    recipe = recipe_in(tmp_path, {}, {"max_ratio": 0, "src_lang": "ru"}, pairs=GOOD)
    write_recipe(recipe, tmp_path / "r.yaml")
    assert "max_symbols: 0.9, " not in (tmp_path / "r.yaml").read_text(encoding="utf-8")
    again = read_recipe(tmp_path / "r.yaml").data
    assert again.filters_of(1) == recipe.data.filters_of(1) != again.filters_of(0)
    assert again.languages_of(1) == ("ru", "en")


def jsonl(path, *flags):
    """What nmt-translate would write: pairs with these flags."""
    records = [
        {"source": src, "output": trg, "flags": list(flag)} if flag is not None else {"source": src, "output": trg}
        for (src, trg), flag in zip(GOOD, flags, strict=False)
    ]
    path.write_text("".join(json.dumps(one) + "\n" for one in records), encoding="utf-8")
    return str(path)


def flagged(tmp_path, *flags, **own):
    file = {"file": jsonl(tmp_path / "a.jsonl", *flags), "src_column": "source", "trg_column": "output"}
    recipe = recipe_in(tmp_path, {}, pairs=GOOD)
    train = [{**file, "drop_flagged": True, **own}]
    data = {**recipe.data.model_dump(exclude_none=True), "train": train}
    return Recipe.model_validate({**recipe.model_dump(include={"name", "subwords"}), "data": data})


FLAGS = (["low"], [], ["split"], ["repeated", "low"], ["split", "cap"], [])


def test_lines_that_look_wrong_are_dropped_and_counted_by_what_they_are_flagged(tmp_path):
    report, _ = made(flagged(tmp_path, *FLAGS))
    assert {reason: one["count"] for reason, one in report["dropped"].items()} == {
        "flagged cap": 1,
        "flagged low": 1,
        "flagged repeated": 1,
    }
    assert report["dropped"]["flagged repeated"]["first"] == [f"{tmp_path / 'a.jsonl'}:4"]
    assert report["kept"] == 3
    with pytest.raises(DataError, match=r"data\.train\.0\.drop_flagged: True there, None here"):
        made(flagged(tmp_path, *FLAGS, drop_flagged=False))
    assert made(flagged(tmp_path, *FLAGS, drop_flagged=False), overwrite=True)[0]["kept"] == 6


def test_one_side_that_is_flagged_is_enough(tmp_path):
    other = write(tmp_path / "other", [trg for _, trg in GOOD])
    report, _ = made(flagged(tmp_path, *FLAGS, file=None, src=str(tmp_path / "a.jsonl"), trg=other, trg_column=None))
    assert report["kept"] == 3


def test_where_there_are_no_flags_none_are_looked_for(tmp_path):
    with pytest.raises(DataError, match=r"drop_flagged: no key 'flags' in its first 6 lines.*nmt-translate"):
        made(flagged(tmp_path, *[None] * 6))
    with pytest.raises(DataError, match=r"a\.jsonl:2: no list of texts under the key 'flags'"):
        made(flagged(tmp_path, [], None, [], [], [], []))
    tsv = write(tmp_path / "a.tsv", [f"{src}\t{trg}" for src, trg in GOOD])
    with pytest.raises(DataError, match=r"a\.tsv: drop_flagged is for JSONL, and this is tsv"):
        made(flagged(tmp_path, file=tsv, src_column=1, trg_column=2))
