"""Flags that all commands share, options of the recipe as flags, mistakes in them, and the help."""

import shlex

import pytest

from nmt.cli import export, preprocess, train, translate
from nmt.cli.parser import Parser, add_override_flags, add_short_flags, overrides_of, run
from nmt.recipe.complaints import GONE, OTHER_NAMES, SHORT
from nmt.recipe.fields import all_fields

MAINS = [preprocess.main, train.main, translate.main, export.main]


def parser():
    found = Parser("nmt-x")
    add_override_flags(found)
    return found


def refusal(given, capsys):
    """What is printed about arguments of a command that takes a RECIPE, two files, and the options of decode."""
    found = Parser("nmt-x")
    found.add_argument("recipe", metavar="RECIPE")
    found.add_argument("--train", nargs=2, metavar=("SRC", "TRG"), help="files of text")
    found.add_argument("--keep")
    found.add_argument("--trg-lang")
    add_override_flags(found, ["decode"])
    assert run(lambda _: 0, found, given) == 2
    told, shown = capsys.readouterr()
    assert not told
    lines = [line.rpartition(". All: nmt-x ") for line in shown.splitlines()]
    assert all(told.startswith("nmt-x: error: ") for told, _, _ in lines)
    assert all(flag == ("--help-all" if "unknown option" in told else "--help") for told, _, flag in lines)
    return [told.removeprefix("nmt-x: error: ") for told, _, _ in lines]


BEAM = "Hypotheses kept for each sentence; 1 is greedy. [whole number >= 1; default: 5]"


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        (["--beam", "5"], "--beam: unknown option (did you mean --decode.beam?)"),
        (["RUN", "--decode.bean=5"], "--decode.bean: unknown option (did you mean --decode.beam?)"),
        (["--decod.beam", "5"], "--decod.beam: unknown option (did you mean --decode.beam?)"),
        (["--beam-size", "5"], "--beam-size: unknown option (did you mean --decode.beam?)"),
        (["--n-best", "5"], "--n-best: unknown option (did you mean --decode.n_best?)"),
        (["--trian", "train.de", "train.en"], "--trian: unknown option (did you mean --train?)"),
        (["--trg_lang", "de"], "--trg_lang: unknown option (did you mean --trg-lang or --decode.trg_lang?)"),
        (["--tgt_lang", "de"], "--tgt_lang: unknown option (did you mean --trg-lang?)"),
        (["--nbest=5"], "--nbest: unknown option (did you mean --decode.n_best?)"),
        (["--max-tokens", "5"], "--max-tokens: unknown option (did you mean --decode.max_tokens?)"),
        (["--learning_rate", "1"], "--learning_rate: unknown option"),  # that there is in other commands only
        (["RECIPE", "--decode.bea", "5"], "--decode.bea: unknown option (did you mean --decode.beam?)"),
        (["--train", "pairs.csv"], "argument --train: expected 2 arguments, SRC TRG: files of text"),
        (["--decode.beam"], f"argument --decode.beam: expected one argument, VALUE: {BEAM}"),
        (["RECIPE", "more"], "unrecognized arguments: more"),
        ([], "the following arguments are required: RECIPE"),
        (["RECIPE", "--keep", ""], 'argument --keep: is empty, ""'),
        ([""], 'argument RECIPE: is empty, ""'),
    ],
)
def test_a_mistake_in_the_flags_is_a_line_with_the_flag_that_was_meant(given, meant, capsys):
    assert refusal(given, capsys) == [meant]


def test_a_flag_of_an_earlier_version_is_refused_with_what_to_use_instead(capsys, monkeypatch):
    monkeypatch.setitem(GONE, "old", ((), "use nmt-export"))
    parser = Parser("nmt-x")
    assert run(lambda _: 0, parser, ["--old", "x", "--new"]) == 2
    gone, unknown = capsys.readouterr().err.splitlines()
    assert gone == f"{parser.prog}: error: --old is gone: use nmt-export"
    assert "--new: unknown option" in unknown and unknown.endswith("--help")


def test_all_unknown_flags_are_told_at_once(capsys):
    assert [line.split(":")[0] for line in refusal(["--a\x1b", "--beam", "--a\x1b"], capsys)] == ["--a\\x1b", "--beam"]


def test_what_only_looks_like_a_flag_is_a_value():
    found = Parser("nmt-x")
    found.add_argument("words", nargs="*")
    assert run(lambda args: len(args.words), found, ["--two words", "--", "--flag"]) == 2


def test_help_all_lists_every_option_once_with_its_default(capsys):
    assert run(lambda _: 0, parser(), ["--help-all"]) == 0
    shown = capsys.readouterr().out
    for field in all_fields():
        assert shown.count(f"--{field.name} VALUE") == 1, field.name
    assert "default: 0.001" in shown


@pytest.mark.parametrize(
    ("main", "longest", "own"),
    [(preprocess.main, 105, "--vocab-from"), (train.main, 75, "--selftest"), (translate.main, 190, "--trg-lang")],
)
def test_help_shows_the_flags_of_the_command_and_how_to_see_those_of_the_recipe(
    main, longest, own, monkeypatch, capsys
):
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert main(["--help-all"]) == 0
    everything = capsys.readouterr().out
    assert own in shown and own in everything
    assert "--decode.OPTION VALUE" in shown and "--help-all, or" in shown and shown.count("\n") < longest
    assert "--decode.beam VALUE" in everything and "--decode.beam" not in shown


@pytest.mark.parametrize("main", [preprocess.main, train.main, translate.main, export.main])
@pytest.mark.parametrize("flag", ["--help", "--help-all"])
def test_the_help_fits_a_terminal_of_80_columns(main, flag, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    main([flag])
    assert [line for line in capsys.readouterr().out.split("\n") if len(line) > 80] == []


def test_an_option_of_one_corpus_is_given_by_its_number(capsys):
    given = ["--data.train.0.max_ratio", "2", "--data.valid.1.name=dev"]
    told = []
    assert run(lambda args: told.extend(overrides_of(args)), parser(), given) == 0
    assert sorted(told) == [("data.train.0.max_ratio", "2"), ("data.valid.1.name", "dev")]
    assert refusal(["RECIPE", "--decode.0.beam", "5"], capsys) == [
        "--decode.0.beam: unknown option (did you mean --decode.beam?)"
    ]
    assert refusal(["RECIPE", "--data.train.0.src", "5"], capsys) == ["--data.train.0.src: unknown option"]


@pytest.mark.parametrize(("main", "tool"), [(m, f"nmt-{m.__module__.rpartition('.')[2]}") for m in MAINS])
def test_help_shows_the_common_options_with_defaults_and_examples_that_are_right(main, tool, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    for flag, name, metavar in SHORT.get(tool, ()):
        option = next(field for field in all_fields() if field.name == name)
        (line,) = [line for line in shown.split("\n") if line.startswith(f"  {flag} {metavar} ")]
        assert f"default: {option.default}]" in shown.partition(line)[2].partition("\n  --")[0] or "default" in line
    examples = shown.partition("\nexamples:\n")[2].replace("\\\n", "").split("\n")
    assert len(examples) >= 2
    for words in (shlex.split(line.rpartition("| ")[2], comments=True) for line in examples if line):
        assert words[0] == tool
        assert all(word in shown for word in words if word.startswith("--"))


@pytest.mark.parametrize("main", MAINS[:3])
def test_help_of_a_section_shows_its_options_alone(main, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["--help", "decode"]) == 0
    shown = capsys.readouterr().out
    assert "--decode.beam VALUE" in shown and "--optim.lr" not in shown and "usage" not in shown
    assert main(["--help", "RECIPE"]) == 0
    assert "usage" in capsys.readouterr().out


def test_a_short_flag_is_the_option_and_the_last_counts():
    found = Parser("nmt-train")
    add_short_flags(found)
    add_override_flags(found)
    given = ["--lr", "1", "--optim.lr", "2", "--time-budget=20m", "--train.updates", "3", "--updates", "4"]
    told = {"optim.lr": "2", "train.time_budget": "20m", "train.updates": "4"}
    assert dict(overrides_of(found.parse_args(given))) == told


def test_tgt_is_trg_in_flags(capsys):
    told = []
    given = ["--data.tgt_lang", "de", "--data.train.0.tgt=x", "--decode.tgt_lang", "fr"]
    assert run(lambda args: told.extend(overrides_of(args)), parser(), given) == 0
    assert sorted(told) == [("data.train.0.trg", "x"), ("data.trg_lang", "de"), ("decode.trg_lang", "fr")]


@pytest.mark.parametrize(
    ("flag", "ours"),
    [
        *(("--max-update", "--updates"), ("--after-batches", "--updates"), ("--train.max_updates", "--updates")),
        *(("--learning-rate", "--lr"), ("--arch", "--model.preset"), ("--max-tokens", "--batch-tokens")),
        *(("--batch-size", "--batch-tokens"), ("--early-stopping", "--patience"), ("--fp16", "--precision")),
        *(("--save-dir", "--out"), ("--max-time", "--time-budget"), ("--num-beams", "--decode.beam")),
    ],
)
def test_a_word_of_another_toolkit_is_answered_with_ours(flag, ours, capsys):
    assert train.main(["r.yaml", flag, "5"]) == 2
    assert f"{flag}: unknown option (did you mean {ours}?)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flag", "ours"),
    [("--beam-size", "--beam"), ("--decode.beam_size", "--beam"), ("--unwrap", "--input-format=wrapped")],
)
def test_so_is_one_of_translation(flag, ours, capsys):
    assert translate.main(["RUN", flag, "5"]) == 2
    assert f"{flag}: unknown option (did you mean {ours}?)" in capsys.readouterr().err


def test_every_other_name_is_of_an_option_and_none_is_an_option_itself():
    known = {field.name for field in all_fields()} | {"device", "output", "input-format"}
    assert {name.split("=")[0] for names in OTHER_NAMES.values() for name in names} <= known
    short = {flag.removeprefix("--").replace("-", "_") for flags in SHORT.values() for flag, _, _ in flags}
    assert not short & OTHER_NAMES.keys()
