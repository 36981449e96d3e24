"""Flags that all commands share, recipe options as flags, mistakes in them, and the help."""

import shlex

import pytest

from nmt.cli import export, preprocess, train, translate
from nmt.cli.parser import Parser, add_override_flags, overrides_of, run
from nmt.recipe.complaints import GONE, OTHER_NAMES, SHORT
from nmt.recipe.fields import all_fields

MAINS = {"nmt-preprocess": preprocess.main, "nmt-train": train.main, "nmt-translate": translate.main}
MAX_HELP_LINES = {"nmt-preprocess": 105, "nmt-train": 80, "nmt-translate": 190, "nmt-export": 60}


def make_parser(only=None):
    """Return the parser of a command that takes a RECIPE, two files, and recipe options."""
    parser = Parser("nmt-x")
    parser.add_argument("recipe", metavar="RECIPE")
    parser.add_argument("--train", nargs=2, metavar=("SRC", "TRG"), help="files of text")
    parser.add_argument("--pairs", nargs="+", action="append")
    parser.add_argument("--keep")
    parser.add_argument("--trg-lang")
    add_override_flags(parser, only)
    return parser


def messages(argv, capsys):
    """Return the error messages for these arguments, without the hint at --help."""
    assert run(lambda _: 0, make_parser(["decode"]), argv) == 2
    out, err = capsys.readouterr()
    assert not out
    lines = [line.rpartition(". All: nmt-x ") for line in err.splitlines()]
    assert all(message.startswith("nmt-x: error: ") for message, _, _ in lines)
    assert all(flag == ("--help-all" if "unknown option" in message else "--help") for message, _, flag in lines)
    return [message.removeprefix("nmt-x: error: ") for message, _, _ in lines]


BEAM_HELP = "Hypotheses kept for each sentence; 1 is greedy. [whole number >= 1; default: 5]"


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("--beam 5", "--beam: unknown option (did you mean --decode.beam?)"),
        ("RUN --decode.bean=5", "--decode.bean: unknown option (did you mean --decode.beam?)"),
        ("--decod.beam 5", "--decod.beam: unknown option (did you mean --decode.beam?)"),
        ("--beam-size 5", "--beam-size: unknown option (did you mean --decode.beam?)"),
        ("--trian train.de train.en", "--trian: unknown option (did you mean --train?)"),
        ("--trg_lang de", "--trg_lang: unknown option (did you mean --trg-lang or --decode.trg_lang?)"),
        ("--tgt_lang de", "--tgt_lang: unknown option (did you mean --trg-lang?)"),
        ("--nbest=5", "--nbest: unknown option (did you mean --decode.n_best?)"),
        ("--learning_rate 1", "--learning_rate: unknown option"),  # exists only in other commands
        ("RECIPE --decode.bea 5", "--decode.bea: unknown option (did you mean --decode.beam?)"),
        ("RECIPE --decode.0.beam 5", "--decode.0.beam: unknown option (did you mean --decode.beam?)"),
        ("RECIPE --data.train.0.src 5", "--data.train.0.src: unknown option"),
        ("--train pairs.csv", "argument --train: expected 2 arguments, SRC TRG: files of text"),
        ("--decode.beam", f"argument --decode.beam: expected one argument, VALUE: {BEAM_HELP}"),
        ("RECIPE more", "unrecognized arguments: more"),
        ("", "the following arguments are required: RECIPE"),
        ("RECIPE --keep ''", 'argument --keep: is empty, ""'),
        ("''", 'argument RECIPE: is empty, ""'),
        ("RECIPE --train '' x.en", 'argument --train: is empty, ""'),
        ("RECIPE --pairs '' x.en", 'argument --pairs: is empty, ""'),
    ],
)
def test_mistaken_flag_gives_one_line_that_names_the_right_flag(given, meant, capsys):
    assert messages(shlex.split(given), capsys) == [meant]


def test_unknown_flags_are_listed_together_and_removed_flags_with_their_replacement(capsys, monkeypatch):
    assert [line.split(":")[0] for line in messages(["--a\x1b", "--beam", "--a\x1b"], capsys)] == ["--a\\x1b", "--beam"]
    monkeypatch.setitem(GONE, "old", "use nmt-export")
    assert run(lambda _: 0, Parser("nmt-x"), ["--old", "x", "--new"]) == 2
    gone, unknown = capsys.readouterr().err.splitlines()
    assert gone == "nmt-x: error: --old is gone: use nmt-export"
    assert run(lambda _: 0, Parser("nmt-x"), ["--data.train.0.max_ratio_spread", "6"]) == 2
    assert "--data.train.0.max_ratio_spread is gone: " in capsys.readouterr().err
    assert "--new: unknown option" in unknown and unknown.endswith("--help")
    (parser := Parser("nmt-x")).add_argument("words", nargs="*")
    assert parser.read(["--two words", "--", "--flag"]).words == ["--two words", "--flag"]  # these only look like flags


def test_options_accept_short_dotted_tgt_and_numbered_names():
    flags = "--data.train.0.max_ratio 2 --data.valid.1.name=dev --data.tgt_lang de --data.train.0.tgt=x"
    values = {"data.train.0.max_ratio": "2", "data.valid.1.name": "dev", "data.trg_lang": "de", "data.train.0.trg": "x"}
    assert dict(overrides_of(make_parser().read(["RECIPE", *flags.split()]))) == values
    parser = Parser("nmt-train")
    add_override_flags(parser)
    flags = "--lr 1 --optim.lr 2 --time-budget=20m --train.updates 3 --updates 4"
    values = {"optim.lr": "2", "train.time_budget": "20m", "train.updates": "4"}  # the last one counts
    assert dict(overrides_of(parser.parse_args(flags.split()))) == values


@pytest.mark.parametrize("tool", [*MAINS, "nmt-export"])
def test_help_fits_a_terminal_with_documented_flags_and_valid_examples(tool, monkeypatch, capsys):
    """Help also shows the defaults of common options and the way to the others."""

    def help_text(*flags, columns="80"):
        monkeypatch.setenv("COLUMNS", columns)
        MAINS.get(tool, export.main)(["--help", *flags] if flags != ("all",) else ["--help-all"])
        return capsys.readouterr().out

    short, wide = help_text(), help_text(columns="200")
    assert short.count("\n") < MAX_HELP_LINES[tool] and max(map(len, short.split("\n"))) <= 80
    for flag, name, metavar in SHORT.get(tool, ()):
        option = next(field for field in all_fields() if field.name == name)
        (line,) = [line for line in wide.split("\n") if line.startswith(f"  {flag} {metavar} ")]
        description = " ".join((line + wide.partition(line)[2].partition("\n  --")[0]).split())
        assert f"default: {option.default}]" in description
    flags, _, examples = wide.partition("\nexamples:\n")
    examples = examples.replace("\\\n", "").split("\n")
    assert len(examples) >= 2
    for words in (shlex.split(line.rpartition("| ")[2], comments=True) for line in examples if line):
        assert words[0] == tool
        assert all(word in flags for word in words if word.startswith("--"))
    if tool in MAINS:
        all_options, section = help_text("all"), help_text("decode")
        assert "--decode.OPTION" in short and "--help-all, or" in short and "--decode.beam" not in short
        assert "default: 5]" in all_options and max(map(len, all_options.split("\n"))) <= 80
        sections = {field.section for field in all_fields()} if tool != "nmt-translate" else {"decode"}
        for field in (field for field in all_fields() if field.section in sections):
            assert all_options.count(f"--{field.name} VALUE") == 1, field.name
        assert "--decode.beam VALUE" in section and "--optim.lr" not in section and "usage" not in section
        assert help_text("RECIPE") == short


@pytest.mark.parametrize(
    ("tool", "flag", "ours"),
    [
        *(("nmt-train", "--max-update", "--updates"), ("nmt-train", "--train.max_updates", "--updates")),
        *(("nmt-train", "--learning-rate", "--lr"), ("nmt-train", "--arch", "--model.preset")),
        *(("nmt-train", "--batch-size", "--batch-tokens"), ("nmt-train", "--early-stopping", "--patience")),
        *(("nmt-train", "--fp16", "--precision"), ("nmt-train", "--save-dir", "--out")),
        *(("nmt-train", "--max-time", "--time-budget"), ("nmt-train", "--num-beams", "--decode.beam")),
        *(("nmt-translate", "--beam-size", "--beam"), ("nmt-translate", "--decode.beam_size", "--beam")),
        ("nmt-translate", "--unwrap", "--input-format=wrapped"),
    ],
)
def test_flag_of_another_toolkit_is_answered_with_ours(tool, flag, ours, capsys):
    assert MAINS[tool](["RUN", flag, "5"]) == 2
    assert f"{flag}: unknown option (did you mean {ours}?)" in capsys.readouterr().err


def test_every_foreign_name_maps_to_an_option_and_is_not_one():
    known = {field.name for field in all_fields()} | {"device", "output", "input-format"}
    assert {name.split("=")[0] for names in OTHER_NAMES.values() for name in names} <= known
    short_flags = {flag.removeprefix("--").replace("-", "_") for flags in SHORT.values() for flag, _, _ in flags}
    assert not short_flags & OTHER_NAMES.keys()
