"""nmt-translate --alignments: a line for each line, whole or not at all; their error rate; what they are read off."""

import json
import shutil

import pytest
import torch
from made_run import OPTIONS, SOURCE, make_run

from nmt.cli.translate import main
from nmt.evaluation.alignment_error import AlignmentError, links_of, parse_gold
from nmt.recipe.reader import load_resolved, read_recipe, write_recipe
from nmt.recipe.stored import ALIGN_RECORD, RECORD, kept, store
from nmt.run import Run

LINES = ["the ship", "für Übung", "", "the old ship left", "in May the old ship left", "ship", " ", "in May"] * 3


def write(path, lines):
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8", newline="\n")
    return path


def read(path):
    return path.read_text(encoding="utf-8").split("\n")[:-1]


def words_of_json(lines):
    return [json.loads(line)["word_alignment"] for line in lines]


def test_each_line_has_a_line_that_is_the_field_of_json_and_a_blank_one_is_blank(translate, tmp_path):
    plain, _ = translate()
    assert translate("--alignments", tmp_path / "links")[0] == plain
    wanted = words_of_json(translate("--format", "jsonl")[0])
    assert read(tmp_path / "links") == wanted
    both = zip(SOURCE.decode().split("\n"), plain, strict=True)
    assert [bool(line) for line in wanted] == [bool(source.strip() and output.strip()) for source, output in both]
    for line, source, output in zip(wanted, SOURCE.decode().split("\n"), plain, strict=True):
        assert all(i < len(source.split()) and j < len(output.split()) for i, j in links_of(line))


@pytest.mark.parametrize("flags", [(), ("--format", "jsonl"), ("--format", "tsv", "--decode.n_best", 3)])
def test_the_format_of_the_translations_is_their_own_affair(translate, tmp_path, flags):
    translate("--alignments", tmp_path / "wanted")
    translate("--alignments", tmp_path / "links", *flags)
    assert read(tmp_path / "links") == read(tmp_path / "wanted")


def test_workers_and_small_windows_write_the_same_lines(translate, tmp_path):
    source = write(tmp_path / "in", LINES)
    for name, flags in {"one": ("-i", source), "two": ("--workers", 2), "small": ("--decode.window", 1)}.items():
        translate(*flags, "-o", tmp_path / f"{name}.out", "--alignments", tmp_path / name, source=source.read_bytes())
    assert read(tmp_path / "one") == read(tmp_path / "two") == read(tmp_path / "small")
    assert len(read(tmp_path / "one")) == len(LINES)


def test_what_is_there_is_replaced_only_when_told_and_only_when_whole(translate, tmp_path, monkeypatch):
    links = tmp_path / "links"
    links.write_bytes(b"old\n")
    out, err = translate("--alignments", links, code=2)
    assert "--overwrite" in err and out == []
    with monkeypatch.context() as patch:
        patch.setattr("nmt.cli.translating.tally.Tally._remember", lambda *_: 1 / 0)
        translate("--alignments", links, "--overwrite", code=1)
    assert links.read_bytes() == b"old\n" and [path.name for path in tmp_path.iterdir()] == ["links"]
    translate("--alignments", links, "--overwrite")
    assert len(read(links)) == 6


def test_a_journal_without_alignments_does_not_do_for_them(translate, tmp_path, monkeypatch):
    source = write(tmp_path / "in", LINES)
    with monkeypatch.context() as patch:
        patch.setattr("nmt.cli.translating.output.hashlib.sha256", lambda: 1 / 0)
        translate("-i", source, "-o", tmp_path / "out", "--decode.window", 4, code=1)
        assert not (tmp_path / "out.journal").exists()  # nothing was answered yet
    with monkeypatch.context() as patch:
        patch.setattr("nmt.cli.translating.output.check_still_free", lambda *_: 1 / 0)
        translate("-i", source, "-o", tmp_path / "out", "--decode.window", 4, code=1)
    assert (tmp_path / "out.journal").exists()
    _, err = translate("-i", source, "-o", tmp_path / "out", "--decode.window", 4, "--alignments", tmp_path / "links")
    assert "made with another word alignments" in err
    translate("--alignments", tmp_path / "wanted", source=source.read_bytes())
    assert read(tmp_path / "links") == read(tmp_path / "wanted")


@pytest.mark.parametrize("when", ["written", "read"])
def test_a_line_that_was_split_has_the_links_of_its_pieces_in_their_places(translate, tmp_path, when):
    sentences = ["The old ship left.", "In May  the ship!", "Für Übung?"]
    flags = ("--decode.align_when", when, "--format", "jsonl")
    apart = [json.loads(line) for line in translate(*flags, source="\n".join(sentences).encode())[0]]
    whole = translate(*flags, "--decode.max_src_len", 16, source=" ".join(sentences).encode())[0]
    (one,) = map(json.loads, whole)
    assert "split" in one["flags"] and one["output"].split() == " ".join(each["output"] for each in apart).split()
    wanted, n_src, n_trg = set(), 0, 0
    for each, sentence in zip(apart, sentences, strict=True):
        wanted |= {(i + n_src, j + n_trg) for i, j in links_of(each["word_alignment"])}
        n_src, n_trg = n_src + len(sentence.split()), n_trg + len(each["output"].split())
    assert links_of(one["word_alignment"]) == wanted
    ends = [n for n, token in enumerate(one["tokens"]) if token == "</s>"]
    assert len(ends) == 3 and [one["alignment"][n] for n in ends] == [None] * 3
    origins = {one["source_tokens"][n] for n in one["alignment"] if n is not None}
    assert "</s>" not in origins


def test_words_that_stand_together_are_one_word_whatever_the_model_read_by_itself(translate):
    """Of a script without white space, or where a writer forgot it."""
    source = "你好。再见朋友。the ship left.In May".encode()
    (line,) = translate("--format", "jsonl", "--decode.split", "every", "--decode.max_src_len", 16, source=source)[0]
    one = json.loads(line)
    assert "split" in one["flags"] and one["source_tokens"].count("</s>") > 2
    pairs = links_of(one["word_alignment"])
    assert {i for i, _ in pairs} <= set(range(len(one["source"].split())))
    assert {j for _, j in pairs} == set(range(len(one["output"].split())))


def test_layer_and_head_are_chosen_by_name_for_all_that_is_written(translate, tmp_path):
    found = {}
    for layer, head, when in [(0, 0, "written"), (1, 0, "written"), (2, 1, "written"), (2, 2, "read")]:
        flags = ["--decode.align_layer", layer, "--decode.align_head", head, "--decode.align_when", when]
        lines, _ = translate("--format", "jsonl", "--alignments", tmp_path / "links", "--overwrite", *flags)
        assert read(tmp_path / "links") == words_of_json(lines)
        found[layer, head, when] = tuple(read(tmp_path / "links"))
    assert len(set(found.values())) > 1


def test_the_named_head_is_what_is_read(translate, tmp_path):
    flags = ("--format", "jsonl", "--with-attention", "--layer", 2, "--head", 2)
    by = ("--decode.align_layer", 2, "--decode.align_head", 2)
    for line in translate(*flags, *by)[0]:
        one = json.loads(line)
        if "blank" not in one["flags"]:
            weights = torch.tensor(one["attention"][0]["weights"])[:-1, :-1]
            assert one["alignment"] == [*weights.argmax(-1).tolist(), None]


# -- gold --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def given_pairs(tmp_path):
    source = write(tmp_path / "in", ["the ship", "in May", "", "the old ship left"])
    target = write(tmp_path / "given", ["das Schiff", "im Mai", "", "das alte Schiff ging"])
    return source, target


@pytest.mark.parametrize("piped", [False, True])
def test_the_error_rate_of_given_translations_is_told(translate, tmp_path, given_pairs, piped):
    source, target = given_pairs
    lines = ["0-0 1-1", "0-0 1?1", "", "0-0 1-1 2-2 3?3 3?0"]
    gold = write(tmp_path / "gold", lines)
    flags = ["--score", target, "--gold-alignments", gold, "--scores", tmp_path / "scores.json"]
    flags += ["--alignments", tmp_path / "links", *([] if piped else ["-i", source])]
    _, err = translate(*flags, source=source.read_bytes())
    wanted = AlignmentError()
    for links, line in zip(read(tmp_path / "links"), lines, strict=True):
        wanted.add(links_of(links), parse_gold(line, "gold:1"))
    assert wanted.n_link >= 8 and wanted.text in err
    assert json.loads((tmp_path / "scores.json").read_text("utf-8")) == {"alignment": wanted.as_json}


@pytest.mark.parametrize("piped", [False, True])
@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["0-0", "0:0", "", ""], "gold:2: '0:0' is no link"),
        (["0-0", "1-2", "", ""], "gold:2: link 1-2, but the translation has 2 words"),
        (["0-0", "0-0", "0-0", ""], "gold:3: link 0-0, but the source has 0 words"),
        (["0-0", "0-0", ""], "gold has 3"),
        (["0-0", "0-0", "", "", ""], "gold has 5"),
    ],
)
def test_a_gold_file_that_does_not_fit_is_named(translate, tmp_path, given_pairs, piped, lines, message):
    source, target = given_pairs
    gold = write(tmp_path / "gold", lines)
    flags = ["--score", target, "--gold-alignments", gold, "--alignments", tmp_path / "links"]
    out, err = translate(*flags, *([] if piped else ["-i", source]), source=source.read_bytes(), code=2)
    assert message in err and not (tmp_path / "links").exists()
    if not piped:
        assert out == []  # known before the work


# -- which layer and head ----------------------------------------------------------------------------------------------


@pytest.fixture
def run(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "run")
    return Run(tmp_path / "run")


@pytest.fixture
def tune(run, capfd):
    def call(*flags, code=0):
        found = main([str(run.folder), *map(str, flags)])
        out, err = capfd.readouterr()
        assert found == code, err
        head, *rows = [line.split("\t") for line in out.split("\n")[:-1]] or [[]]
        return [dict(zip(head, row, strict=True)) for row in rows], err

    return call


def validation(tmp_path):
    pairs = [
        ("the ship", "das Schiff"),
        ("ship left", "Schiff ging"),
        ("old", "alt"),
        ("the old", "das alte"),
        ("", ""),
    ]
    src, trg = zip(*pairs * 2, strict=True)
    return write(tmp_path / "valid.src", src), write(tmp_path / "valid.trg", trg)


def gold_of(tune_run, tmp_path, src, trg, *flags):
    """The links that a way of reading makes of the validation data."""
    name = tmp_path / "gold"
    assert main([tune_run, "-i", str(src), "--score", str(trg), "--alignments", str(name), "--overwrite", *flags]) == 0
    return name


@pytest.mark.parametrize(("layer", "head", "when"), [(1, 2, "written"), (2, 1, "read")])
def test_what_made_the_gold_wins_and_is_stored_for_everything_that_aligns(
    run, tune, tmp_path, capfd, layer, head, when
):
    src, trg = validation(tmp_path)
    flags = ["--decode.align_layer", str(layer), "--decode.align_head", str(head), "--decode.align_when", when]
    gold = gold_of(str(run.folder), tmp_path, src, trg, *flags)
    capfd.readouterr()
    rows, err = tune("--tune-alignment", src, trg, "--gold-alignments", gold)
    assert len(rows) == 2 * (1 + 2 * 3)  # the mean of the last layers, and of each its mean and its heads
    best = min(float(row["AER"]) for row in rows)
    (winner,) = [row for row in rows if "winner" in row["mark"]]
    assert best == 0.0 == float(winner["AER"])
    rates = {(row["layer"], row["head"], row["when"]): row["AER"] for row in rows}
    assert rates[str(layer), str(head), when] == "0.00"
    assert "--decode.align_layer" in err and not (run.folder / ALIGN_RECORD).exists()
    _, err = tune("--tune-alignment", src, trg, "--gold-alignments", gold, "--store")
    assert "stored in" in err
    decode = load_resolved(run.recipe_file).decode
    assert [str(decode.align_layer or "-"), str(decode.align_head or "-"), decode.align_when] == [
        winner[name] for name in ("layer", "head", "when")
    ]
    record = json.loads((run.folder / ALIGN_RECORD).read_bytes())
    assert record["before"] == {"align_layer": 0, "align_head": 0, "align_when": "written"}
    assert record["compared_with"] == str(gold) and record["scores"]["aer"] == 0.0
    assert read(gold_of(str(run.folder), tmp_path, src, trg)) == read(gold)


def test_the_table_says_what_the_command_would_say_of_each(run, tune, tmp_path, capfd):
    src, trg = validation(tmp_path)
    gold = write(tmp_path / "gold.people", ["0-0 1-1", "0-0 1?1", "0-0", "0-0 1-1", ""] * 2)
    rows, _ = tune("--tune-alignment", src, trg, "--gold-alignments", gold, "--decode.window", 3)
    for row in rows[:5]:
        flags = ["--decode.align_layer", row["layer"].replace("-", "0"), "--decode.align_when", row["when"]]
        flags += ["--decode.align_head", row["head"].replace("-", "0")]
        assert main([str(run.folder), "-i", str(src), "--score", str(trg), "--gold-alignments", str(gold), *flags]) == 0
        assert f"AER = {float(row['AER']):.1f} % (precision {float(row['precision']):.1f} %" in capfd.readouterr().err


def test_without_gold_the_words_that_occur_together_decide(tune, tmp_path):
    src, trg = validation(tmp_path)
    rows, err = tune("--tune-alignment", src, trg)
    assert "IBM Model 1" in err and len({row["AER"] for row in rows}) > 1
    (winner,) = [row for row in rows if "winner" in row["mark"]]
    assert float(winner["AER"]) == min(float(row["AER"]) for row in rows)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--decode.align_head", "1"], "leave it out"),
        (["--output", "x"], "prints a table"),
        (["--store", "--checkpoint", "update-00000007"], "one run only"),
    ],
)
def test_what_means_nothing_beside_it_is_refused(tune, tmp_path, flags, message):
    src, trg = validation(tmp_path)
    assert message in tune("--tune-alignment", src, trg, *flags, code=2)[1]


def test_lines_that_never_have_text_together_decide_nothing(tune, tmp_path):
    src, trg = write(tmp_path / "a", ["", "the ship"]), write(tmp_path / "b", ["das Schiff", ""])
    assert "no line has text beside a source that has some" in tune("--tune-alignment", src, trg, code=2)[1]


def test_what_both_kinds_of_tuning_have_stored_is_kept_when_training_goes_on(run):
    before = load_resolved(run.recipe_file)
    store(run.recipe_file, {"align_layer": 1, "align_head": 2, "align_when": "read"}, {})
    store(run.recipe_file, {"beam": 2, "length_penalty": "none", "alpha": 1.0}, {})
    found = kept(before, run.recipe_file).decode
    assert (found.align_layer, found.align_head, found.align_when, found.beam) == (1, 2, "read", 2)
    other = before.model_copy(update={"decode": before.decode.model_copy(update={"align_layer": 2})})
    found = kept(other, run.recipe_file).decode
    assert (found.align_layer, found.align_head, found.beam) == (2, 0, 2)
    assert not (run.folder / ALIGN_RECORD).exists() and (run.folder / RECORD).exists()


def test_a_recipe_that_names_no_layer_of_the_model_is_refused(tmp_path):
    recipe = read_recipe(None, [("name", "x"), ("model.n_dec_layer", "2")])
    write_recipe(recipe, tmp_path / "recipe.yaml")
    with pytest.raises(Exception, match="align_layer: 3"):
        store(tmp_path / "recipe.yaml", {"align_layer": 3, "align_head": 0, "align_when": "read"}, {})


# -- text without spaces -----------------------------------------------------------------------------------------------

JAPANESE = ["船は出た。", "", "古い船", "五月 に", "はい"]


@pytest.fixture
def japanese(tmp_path):
    return make_run(tmp_path / "ja", {**OPTIONS, "data.src_lang": "en", "data.trg_lang": "jpn"})


def test_characters_are_aligned_where_a_language_has_no_spaces_and_it_is_said(japanese, translate, tmp_path):
    target = write(tmp_path / "trg", JAPANESE)
    source = b"the ship left\n\nold ship\nin May\nyes\n"

    def links(*flags):
        out, err = translate("--score", target, "--format", "jsonl", *flags, run=str(japanese.folder), source=source)
        return words_of_json(out), err

    (by_character, err), (by_word, quiet) = links(), links("--decode.align_units", "words")
    assert "note: word alignments: of Japanese, written without spaces, characters are counted from 0" in err
    assert "word alignments" not in quiet
    places = [{j for _, j in links_of(line)} for line in by_character]
    assert places == [set(range(len("".join(line.split())))) for line in JAPANESE]  # every character comes from a word
    assert all(i < 3 for line in by_character for i, _ in links_of(line))
    assert [{j for _, j in links_of(line)} for line in by_word] == [set(range(len(line.split()))) for line in JAPANESE]
    file = tmp_path / "links"
    _, err = translate("--score", target, "--alignments", file, run=str(japanese.folder), source=source)
    assert read(file) == by_character and "of Japanese, written without spaces" in err
    gold = write(tmp_path / "gold", ["0-4", "", "0-2", "0-2", "0-1"])
    flags = ["--score", target, "--gold-alignments", gold]
    assert "alignment" in translate(*flags, run=str(japanese.folder), source=source)[1]
    gold.write_text("0-5\n\n\n\n\n", encoding="utf-8")
    _, err = translate(*flags, run=str(japanese.folder), source=source, code=2)
    assert "gold:1: link 0-5, but the translation has 5 words" in err
