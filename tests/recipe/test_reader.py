"""Reading and writing recipes: errors with their places, overrides, and the resolved recipe."""

from operator import attrgetter

import pytest

from nmt.errors import RecipeError
from nmt.recipe import complaints as names
from nmt.recipe.options import Recipe
from nmt.recipe.reader import overrides_of, read_recipe, recipe_text, write_recipe

FILE = "file: a.tsv, src_column: 1, trg_column: 2"


@pytest.fixture
def read(tmp_path):
    def read_text(text, overrides=()):
        path = tmp_path / "recipe.yaml"
        path.write_text(text, encoding="utf-8", newline="\n")
        return read_recipe(path, overrides)

    return read_text


@pytest.fixture
def complaints(read, tmp_path):
    def complaints_about(text, overrides=()):
        with pytest.raises(RecipeError) as caught:
            read(text, overrides)
        return str(caught.value).replace(f"{tmp_path / 'recipe.yaml'}", "recipe.yaml").split("\n")

    return complaints_about


def test_all_errors_are_reported_at_once_in_the_order_of_lines(complaints):
    text = """\
seed: 8.0
data:
  src_lang: 12
  train: {src: a.de, trg: b.en}
  train: again
model:
  preset: tiny
  n_head: 5
train:
  lr: 3
  compile: yes
optim:
  lr: fast
  warmup: 1_000
  eps: .inf
  lerning_rate: 1
modle: {}
"""
    assert complaints(text) == [
        "recipe.yaml:1: name: missing (expected text of at most 100 characters, matching ^[A-Za-z0-9][A-Za-z0-9._-]*$)",
        "recipe.yaml:1: seed: expected a whole number >= 0, found 8.0",
        "recipe.yaml:3: data.src_lang: expected text, found 12 (write it in quotes)",
        "recipe.yaml:5: data.train: written twice (first in line 4; keep one)",
        "recipe.yaml:10: train.lr: unknown option (did you mean optim.lr?)",
        'recipe.yaml:11: train.compile: expected true or false | auto, found "yes"',
        'recipe.yaml:13: optim.lr: expected a number > 0.0 | auto, found "fast"',
        'recipe.yaml:14: optim.warmup: expected a whole number >= 0 | auto, found "1_000"',
        'recipe.yaml:15: optim.eps: expected a number > 0.0, found ".inf"',
        "recipe.yaml:16: optim.lerning_rate: unknown option (did you mean optim.lr?)",
        "recipe.yaml:17: modle: unknown option (did you mean model?)",
    ]


@pytest.mark.parametrize(
    ("written", "intended"),
    [
        ("optim: {learning_rate: 1}", "optim.lr"),
        ("train: {lr: 1}", "optim.lr"),
        ("lr: 1", "optim.lr"),
        ("model: {d_modle: 1}", "model.d_model"),
        ("model: {dropuot: 0.1}", "model.dropout"),
        ("train: {beam: 1}", "valid.beam or decode.beam"),
        ("batch: {max_token: 1}", "batch.max_tokens"),
        ("train: {max_epochs: 3}", "train.epochs"),
        ("Model: {}", "model"),
        ("optim.lr: 1", "optim.lr"),
        ("data: {train: [{src: a, trgt: b}]}", "data.train.0.trg"),
        ("data: {train: [{src: a, trg: b}, {src: a, trg: b, tag: [x]}]}", "data.train.1.tags"),
        ("data: {valid: {file: a, src_colum: 1}}", "data.valid.0.src_column"),
        ("data: {test: {files: a}}", "data.test.file"),
    ],
)
def test_an_unknown_option_suggests_the_intended_one(complaints, written, intended):
    lines = complaints(f"name: x\n{written}\n")
    assert [line.endswith(f"unknown option (did you mean {intended}?)") for line in lines].count(True) == 1


def test_tgt_is_read_as_trg(read, complaints):
    train = "[{src: a, tgt: b, tgt_lang: fr}]"
    text = f"name: x\ndata: {{tgt_lang: de, train: {train}, valid: {{file: a.tsv, src_column: 1, tgt_column: 2}}}}\n"
    assert read(text) == read(text.replace("tgt", "trg"))
    data = {"tgt_lang": "de", "valid": {"src": "a", "tgt": "b"}}  # as a Python program or a flag gives them
    recipe = read("name: x\n", overrides_of({"data": data, "decode.tgt_lang": "fr"}))
    assert (recipe.data.trg_lang, recipe.data.valid[0].trg, recipe.decode.trg_lang) == ("de", "b", "fr")
    assert complaints("name: x\ndata:\n  trg_lang: de\n  tgt_lang: fr\n") == [
        "recipe.yaml:4: data.trg_lang: written twice (first in line 3; keep one)"
    ]


@pytest.mark.parametrize(
    ("written", "seconds"),
    [("90s", 90), ("20m", 1200), ("1h30m", 5400), ("2d", 172_800), ("1d1h1m1s", 90_061), ('""', 0)],
)
def test_a_time_budget_is_read_in_seconds(read, written, seconds):
    assert read(f"name: x\ntrain: {{time_budget: {written}}}").train.budget_seconds == seconds


@pytest.mark.parametrize(
    ("written", "complaint"),
    [
        ("seed: true", "seed: expected a whole number >= 0, found true"),
        ("optim: {lr: true}", "optim.lr: expected a number > 0.0 | auto, found true"),
        ("optim: {lr: -1}", "optim.lr: expected a number > 0.0 | auto, found -1"),
        ("optim: {lr: 1e999}", "optim.lr: expected a number > 0.0 | auto, found Infinity"),
        ("optim: {betas: [0.9]}", "optim.betas.1: missing (expected list of 2: number >= 0.0, < 1.0)"),
        ("optim: {betas: [0.9, 2]}", "optim.betas.1: expected list of 2: number >= 0.0, < 1.0, found 2"),
        ("train: {time_budget: 20min}", 'expected text like 90s, 20m, 1h30m or 2d, found "20min"'),
        ("train: {time_budget: 0s}", 'expected text like 90s, 20m, 1h30m or 2d, found "0s"'),
        ("optim: {schedule: cosin}", ' | cosine | linear | wsd | constant | auto, found "cosin"'),
        ("model: {d_model: null}", "model.d_model: expected a whole number >= 1, found nothing"),
        ("model: 5", "model: expected a section, a mapping of options, found 5"),
        ("batch: {qqq: 1}", "unknown option (known here: max_tokens, per_update, tokens_per_update, pool"),
        ("data: {valid: {src: a}}", "data.valid.0.trg: missing (expected a file; or {file: …} or {dataset: …} with bo"),
        ("data: {train: [{src: a, trg: b}, x]}", "data.train.1: expected mapping {trg_lang, tags, src, trg, file, "),
    ],
)
def test_a_wrong_type_or_value_is_refused_with_the_expected_one(complaints, written, complaint):
    (line,) = complaints(f"name: x\n{written}\n")
    assert line.startswith("recipe.yaml:2: ")
    assert complaint in line


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("- a\n", "expected a mapping of sections and options"),
        ("just text\n", "expected a mapping of sections and options"),
        ("", "recipe.yaml:1: name: missing"),
        ("name: [x\n", "not YAML"),
    ],
)
def test_a_file_that_is_not_a_recipe_gets_only_one_complaint(complaints, text, complaint):
    (line,) = complaints(text)
    assert complaint in line


@pytest.mark.parametrize("name", ["absent.yaml", "."])
def test_an_unreadable_recipe_file_is_refused(tmp_path, name):
    with pytest.raises(RecipeError, match="cannot read the recipe"):
        read_recipe(tmp_path / name)


@pytest.mark.parametrize(
    ("corpus", "complaint"),
    [
        ("{trg: b}", "data.train.0.src: missing (expected a file; or {file: …} or {dataset: …} with both sides)"),
        ("{}", "data.train.0.trg: missing"),
        (f"{{{FILE}, dataset: d, split: s}}", "data.train.0.dataset: not with file (remove one"),
        (f"{{{FILE}, src: a}}", "data.train.0.src: not with file (remove one"),
        ("{file: a.tsv, trg_column: 2}", "data.train.0.src_column: missing (expected the name of a column or key"),
        ("{file: a.tsv, src_column: 2, trg_column: 2}", "data.train.0.trg_column: 2 is also data.train.0.src_column"),
        ("{file: a.tsv, src_column: 0, trg_column: 2}", "a whole number >= 1 | text | null, found 0"),
        ("{dataset: d, src_column: a, trg_column: b}", "data.train.0.split: missing (expected the split"),
        (f"{{{FILE}, split: train}}", "data.train.0.split: not with file"),
        ("{src: a, trg: b, subset: x}", "data.train.0.subset: needs dataset (add it, or remove this)"),
        ("{file: a.tsv, src_column: 1, trg_column: en, header: false}", "false, but column 'en' is chosen by name"),
        ("{src: [], trg: b}", "data.train.0.src: is empty"),
        ("{src: [a, ''], trg: b}", "data.train.0.src: is empty"),
        ("{src: [a, 5], trg: b}", "data.train.0.src: expected text, or a list of them | null, found 5"),
        ("{src: a, trg: b, max_ratio: 0.5}", "data.train.0.max_ratio: 0.5 is below 1"),
        ("{src: a, trg: b, max_ratio: -1}", "data.train.0.max_ratio: expected a number >= 0 | null, found -1"),
        ("{src: a, trg: b, min_script: 1.5}", "data.train.0.min_script: expected a number >= 0.0, < 1.0 | null"),
        ("{src: a, trg: b, max_repeats: 2}", "data.train.0.max_repeats: expected 0 | whole number >= 3 | null"),
        ("{src: a, trg: b, max_len: 3}", "data.train.0.max_len: unknown option (did you mean data.max_len?)"),
        ("{src: a, trg: b, scores: c}", "data.train.0.scores: scores or score_column need min_score or best_share"),
        ("{src: a, trg: b, min_score: 0}", "data.train.0.min_score: scores or score_column need min_score or"),
        ("{src: a, trg: b, scores: '', best_share: 0.5}", "data.train.0.scores: is empty"),
        ("{src: a, trg: b, scores: c, best_share: 50%}", "data.train.0.best_share: expected a number > 0.0, <= 1.0"),
        ("{src: a, translated_by: r, scores: c, min_score: 0}", "data.train.0.scores: not with translated_by"),
    ],
)
def test_contradicting_options_of_a_corpus_are_refused_with_their_line(complaints, corpus, complaint):
    assert any(
        line.startswith("recipe.yaml:4: ") and complaint in line
        for line in complaints(f"name: x\ndata:\n  train:\n    - {corpus}\n")
    )


def test_a_contradiction_is_reported_at_the_line_of_the_written_option(complaints):
    assert complaints("name: x\n\nsubwords:\n  joint: false\n") == [
        "recipe.yaml:4: model.emb_src_trg_weight_sharing: needs one vocabulary, but subwords.joint is "
        "false (change one)"
    ]


TWO_CORPORA = "data: {train: [{src: a, trg: b}, {src: c, trg: d}], valid: {src: e, trg: f}}"


@pytest.mark.parametrize(
    ("written", "overrides", "expected"),
    [
        # An override replaces the value of the file before validation.
        ("optim: {lr: nonsense}", {"optim.lr": "1e-3", "seed": "7"}, {"optim.lr": 1e-3, "seed": 7}),
        ("", {"model.preset": "tiny"}, {"model.d_model": 128}),
        # A list or a mapping.
        ("model: {d_k: 8}", {"optim.betas": "[0.5, 0.9]"}, {"optim.betas": (0.5, 0.9)}),
        ("model: {d_k: 8}", {"model.d_k": "null"}, {"model.d_k": None}),
        ("", {"data.valid": "{src: a, trg: b}"}, {"data.valid": [("a", "b")]}),
        # Options of a corpus.
        (TWO_CORPORA, {"data.train.1.src": "z"}, {"data.train": [("a", "b"), ("z", "d")], "data.valid": [("e", "f")]}),
        (TWO_CORPORA, {"data.valid.src": "y"}, {"data.train": [("a", "b"), ("c", "d")], "data.valid": [("y", "f")]}),
        (TWO_CORPORA, {"data.train.src": "z", "data.train.trg": "y"}, {"data.train": [("z", "y")]}),
        # Text is taken literally.
        ("", {"name": "2024", "train.out": "a: b"}, {"name": "2024", "train.out": "a: b"}),
        ("", {"data.src_lang": "no", "data.out": ""}, {"data.src_lang": "no", "data.out": ""}),
    ],
)
def test_an_override_wins_over_the_file(read, written, overrides, expected):
    recipe = read(f"name: x\n{written}\n", list(overrides.items()))
    for name, value in expected.items():
        found = attrgetter(name)(recipe)
        assert value == ([(files.src, files.trg) for files in found] if name in ("data.train", "data.valid") else found)


def test_an_override_of_one_corpus_option_keeps_the_others(read, complaints):
    text = "name: x\ndata:\n  train:\n    - {src: a, trg: b, max_ratio: 9.0}\n"
    for name in ("data.train.max_ratio", "data.train.0.max_ratio"):
        for variant in (text, text.replace("- ", "  ")):  # a mapping is a list of one
            (corpus,) = read(variant, [(name, "2"), ("data.train.0.weight", "3")]).data.train
            assert (corpus.src, corpus.trg, corpus.max_ratio, corpus.weight) == ("a", "b", 2.0, 3.0)
        (line,) = complaints(text, [(name, "much")])
        assert line.startswith("command line: data.train.0.max_ratio: expected a number >= 0")
    (corpus,) = read("name: x\n", [("data.train.0.src", "y"), ("data.train.trg", "z")]).data.train
    assert (corpus.src, corpus.trg) == ("y", "z")


@pytest.mark.parametrize(
    ("text", "override", "complaint"),
    [
        ("decode: 5", ("decode.beam", "3"), "recipe.yaml:2: decode: expected a section, a mapping of options, found 5"),
        ("data: [5]", ("data.max_len", "9"), "recipe.yaml:2: data: expected a section"),
        ("data: {train: [[]]}", ("data.train.0.max_ratio", "2"), "recipe.yaml:2: data.train.0: expected mapping"),
        (
            "data: {train: [{src: a, trg: b}]}",
            ("data.train.3.src", "z"),
            "command line: data.train.3.src: out of range, the list has 1",
        ),
        (
            "data: {train: [{src: a, trg: b}, {file: [c.tsv, d.tsv]}, {src: c, trg: d}]}",
            ("data.train.max_ratio", "2"),
            "command line: data.train.max_ratio: data.train is a list of 3: say which, as data.train.0.max_ratio",
        ),
    ],
)
def test_an_override_without_a_target_is_refused(complaints, text, override, complaint):
    (line,) = complaints(f"name: x\n{text}\n", [override])
    assert line.startswith(complaint)


def test_an_error_in_an_override_names_the_command_line(complaints):
    overrides = [("optim.lr", "fast"), ("optim.rl", "1"), ("model", "{}"), ("seed", "[1")]
    assert complaints("name: x\nwrong: 1\n", overrides) == [
        "command line: optim.rl: unknown option (did you mean optim.lr?)",
        "command line: model: name an option, not a section",
        "command line: seed: not YAML: while parsing a flow sequence, expected ',' or ']', but got '<stream end>'",
        'command line: optim.lr: expected a number > 0.0 | auto, found "fast"',
        "recipe.yaml:2: wrong: unknown option (known here: name, seed, data, subwords, model, batch, optim, train, "
        "regularize, valid, decode)",
    ]


@pytest.mark.parametrize(
    "model",
    [
        {"preset": "big", "trg_emb_prj_weight_sharing": False},
        {"architecture": "attention", "trg_emb_prj_weight_sharing": False},
        {"architecture": "peeky", "cell": "gru"},
    ],
)
def test_the_resolved_recipe_lists_every_option_and_reads_back_equal(tmp_path, model):
    recipe = Recipe.model_validate(
        {
            "name": "1e4",
            "data": {
                "src_lang": "no",
                "train": [
                    {"src": "C:\\a b", "trg": 'x"\u2028\U0001f600'},
                    {"src": ["~", "1*"], "src_column": 5, "trg": "1"},
                    {"dataset": "d", "split": "train[:9]", "src_column": "translation.de", "trg_column": "no"},
                ],
            },
            "model": model,
            "optim": {"betas": [0.5, 0.9], "lr": 1e-7},
        }
    )
    path = tmp_path / "resolved.yaml"
    write_recipe(recipe, path)
    assert read_recipe(path) == recipe
    assert "null}" not in path.read_text(encoding="utf-8")  # unset options of a corpus are left out
    written = [line.strip().split(":")[0] for line in recipe_text(recipe).split("\n")]
    for section in ("model", "optim", "train", "decode"):
        for name in type(getattr(recipe, section)).model_fields:
            # Options without effect on the model are left out.
            assert (name in written) == (section != "model" or name not in recipe.model.useless)


def test_languages_may_be_given_by_any_code_or_name(read):
    text = "name: x\ndata: {src_lang: zho_Hans, trg_lang: japanese, train: {src: a, trg: b, trg_lang: eng}}\n"
    recipe = read(text, [("decode.trg_lang", "jpn_Jpan"), ("data.valid", "{src: a, trg: b, trg_lang: x-own}")])
    assert (recipe.data.src_lang, recipe.data.trg_lang, recipe.decode.trg_lang) == ("zh-Hans", "ja", "ja")
    assert (recipe.data.train[0].trg_lang, recipe.data.valid[0].trg_lang) == ("en", "x-own")


def test_an_unknown_language_is_refused_with_its_place_and_the_nearest(complaints):
    text = "name: x\ndata:\n  src_lang: cz\n  train: {src: a, trg: b, src_lang: jp}\n"
    found = complaints(text, [("data.trg_lang", "64"), ("decode.trg_lang", "englsh")])
    assert [line.partition(". Expected")[0] for line in found] == [
        "command line: data.trg_lang: '64' is not a language code",
        "command line: decode.trg_lang: 'englsh' is not a language code (did you mean en, English?)",
        "recipe.yaml:3: data.src_lang: 'cz' is not a language code (did you mean cs, Czech?)",
        "recipe.yaml:4: data.train.0.src_lang: 'jp' is not a language code (did you mean ja, Japanese?)",
    ]


def test_a_removed_option_is_ignored_in_the_recipe_of_a_run_and_refused_otherwise(read, complaints, monkeypatch):
    monkeypatch.setitem(names.GONE, "batch.slices", "batch.bpe_dropout does the same (set it)")
    stored = "# The whole truth of this run: every option, resolved.\nname: x\ndata:\n  generate: dates\n"
    assert read(stored) == Recipe(name="x"), "the data of a run are made already"
    assert read(stored + "batch:\n  slices: 0\n") == Recipe(name="x"), "it had no effect"
    assert read(stored + "optim:\n  name: schedulefree\n").optim.name == "adamw", "its weights translate as they did"
    assert "make_dates.py OUT" in complaints("name: x\ndata:\n  generate: dates\n")[0]
    spread = "    - {src: a, trg: b, max_ratio_spread: 3.0}\n  max_ratio_spread: 6.0\n"
    assert read(stored + f"  train:\n{spread}").data.train[0].src == "a", "so are those of its corpora"
    spread_is_gone = "max_ratio_spread: is gone; leave it out: data.max_ratio bounds the same ratio by a factor"
    assert complaints(f"name: x\ndata:\n  train:\n{spread}") == [
        f"recipe.yaml:4: data.train.0.{spread_is_gone}",
        f"recipe.yaml:5: data.{spread_is_gone}",
    ]
    gone = "batch.slices: is gone; batch.bpe_dropout does the same (set it)"
    assert complaints("name: x\nbatch:\n  slices: 0.1\n") == [f"recipe.yaml:3: {gone}"]
    assert complaints("name: x\n", [("batch.slices", "0.1")]) == [f"command line: {gone}"]
