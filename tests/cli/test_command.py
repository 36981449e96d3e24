"""Exit codes, messages and flags that all commands share."""

import errno
import os
import subprocess
import sys

import pytest

from nmt.cli import export, preprocess, train, translate
from nmt.cli.command import Parser, add_override_flags, overrides_of, printable, run
from nmt.errors import MachineError, NmtError, RecipeError
from nmt.recipe.fields import all_fields


def parser():
    found = Parser()
    add_override_flags(found)
    return found


def fail_with(error):
    def body(_arguments):
        raise error

    return body


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (NmtError("no such thing"), 2, "nmt-x: error: no such thing\n"),
        (RecipeError("one\ntwo"), 2, "nmt-x: error: one\nnmt-x: error: two\n"),
        (MachineError("no GPU"), 1, "nmt-x: error: no GPU\n"),
        (FileNotFoundError(errno.ENOENT, "No such file or directory", "a.txt"), 2, "a.txt: No such file"),
        (OSError(errno.ENOSPC, "No space left on device", "big"), 1, "big: No space left on device"),
        (MemoryError(), 1, "out of memory"),
        (RuntimeError("[...] DefaultCPUAllocator: can't allocate memory: ..."), 1, "out of memory: [...] Default"),
        (KeyError("x"), 1, "a fault of the program itself: KeyError: 'x'"),
    ],
)
def test_an_error_becomes_a_message_and_an_exit_code(error, code, message, capsys):
    assert run("nmt-x", fail_with(error), parser(), []) == code
    shown = capsys.readouterr().err
    assert message in shown
    assert shown.startswith("nmt-x: error: ")
    assert "Traceback" not in shown


def test_debug_shows_the_traceback(capsys):
    assert run("nmt-x", fail_with(NmtError("no")), parser(), ["--debug"]) == 2
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize(("stop", "code"), [(KeyboardInterrupt(), 130), (SystemExit(3), 3), (SystemExit(), 0)])
def test_being_stopped_is_silent(stop, code, capsys):
    assert run("nmt-x", fail_with(stop), parser(), []) == code
    assert capsys.readouterr() == ("", "")


def test_what_the_body_returns_is_the_exit_code():
    assert run("nmt-x", lambda _: None, parser(), []) == 0
    assert run("nmt-x", lambda _: 143, parser(), []) == 143


def test_words_of_a_file_cannot_command_the_terminal(capsys):
    run("nmt-x", fail_with(NmtError("line \x1b[2Jgone\x07 \u202egr\u00fcn")), parser(), [])
    shown = capsys.readouterr().err
    assert "\x1b" not in shown
    assert "\\x1b[2Jgone\\x07 \\u202egr\u00fcn" in shown
    assert printable("caf\u00e9 \u65e5\u672c \ud800") == "caf\u00e9 \u65e5\u672c \\ud800"


def refusal(given, capsys):
    """What is printed about arguments of a command that takes a RECIPE, two files, and the options of decode."""
    found = Parser()
    found.add_argument("recipe", metavar="RECIPE")
    found.add_argument("--train", nargs=2, metavar=("SRC", "TRG"), help="files of text")
    found.add_argument("--keep")
    found.add_argument("--trg-lang")
    add_override_flags(found, ["decode"])
    assert run("nmt-x", lambda _: 0, found, given) == 2
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
        (["--learning_rate", "1"], "--learning_rate: unknown option"),  # that there is in other commands only
        (["RECIPE", "--decode.bea", "5"], "--decode.bea: unknown option (did you mean --decode.beam?)"),
        (["--train", "pairs.csv"], "argument --train: expected 2 arguments, SRC TRG: files of text"),
        (["--decode.beam"], f"argument --decode.beam: expected one argument, VALUE: {BEAM}"),
        (["RECIPE", "more"], "unrecognized arguments: more"),
        ([], "the following arguments are required: RECIPE"),
    ],
)
def test_a_mistake_in_the_flags_is_a_line_with_the_flag_that_was_meant(given, meant, capsys):
    assert refusal(given, capsys) == [meant]


def test_all_unknown_flags_are_told_at_once(capsys):
    assert [line.split(":")[0] for line in refusal(["--a\x1b", "--beam", "--a\x1b"], capsys)] == ["--a\\x1b", "--beam"]


def test_what_only_looks_like_a_flag_is_a_value():
    found = Parser()
    found.add_argument("words", nargs="*")
    assert run("nmt-x", lambda args: len(args.words), found, ["--two words", "--", "--flag"]) == 2


def test_version_is_a_flag(capsys):
    assert run("nmt-x", lambda _: 0, parser(), ["--version"]) == 0
    assert capsys.readouterr().out.startswith("nmt-x ")


def test_help_all_lists_every_option_once_with_its_default(capsys):
    assert run("nmt-x", lambda _: 0, parser(), ["--help-all"]) == 0
    shown = capsys.readouterr().out
    for field in all_fields():
        assert shown.count(f"--{field.name} VALUE") == 1, field.name
    assert "default: 0.001" in shown


@pytest.mark.parametrize(
    ("main", "longest", "own"),
    [(preprocess.main, 70, "--rank-timeout"), (train.main, 40, "--selftest"), (translate.main, 160, "--trg-lang")],
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


def test_the_flags_of_translating_are_in_groups(capsys):
    assert translate.main(["--help"]) == 0
    general = capsys.readouterr().out.partition("\noptions:")[2].partition("\n\n")[0]
    found = [word for word in general.split() if word.startswith("--")]
    assert found == ["--help", "--help-all", "--debug", "--version"]


def test_overrides_are_what_was_given_as_it_was_written():
    given = ["--optim.lr", "1e-3", "--model.preset=tiny", "--data.out", "", "--optim.clip", "-1"]
    found = overrides_of(parser().parse_args(given))
    assert sorted(found) == [("data.out", ""), ("model.preset", "tiny"), ("optim.clip", "-1"), ("optim.lr", "1e-3")]
    assert overrides_of(parser().parse_args([])) == []


def test_an_option_of_one_corpus_is_given_by_its_number(capsys):
    given = ["--data.train.0.max_ratio", "2", "--data.valid.1.name=dev"]
    told = []
    assert run("nmt-x", lambda args: told.extend(overrides_of(args)), parser(), given) == 0
    assert sorted(told) == [("data.train.0.max_ratio", "2"), ("data.valid.1.name", "dev")]
    assert refusal(["RECIPE", "--decode.0.beam", "5"], capsys) == [
        "--decode.0.beam: unknown option (did you mean --decode.beam?)"
    ]
    assert refusal(["RECIPE", "--data.train.0.src", "5"], capsys) == ["--data.train.0.src: unknown option"]


def test_a_command_may_take_the_options_of_some_sections_only():
    some = Parser()
    add_override_flags(some, ["decode"])
    assert overrides_of(some.parse_args(["--decode.beam", "3"])) == [("decode.beam", "3")]
    with pytest.raises(SystemExit):
        some.parse_args(["--optim.lr", "1"])


PRINTING = """
import sys
from nmt.cli.command import Parser, run
def body(_):
    for _ in range(100_000):
        print("gr\\u00fcn \\u65e5\\u672c")
sys.exit(run("nmt-x", body, Parser()))
"""


def test_output_is_utf8_with_bare_newlines_in_any_locale():
    done = subprocess.run(
        [sys.executable, "-X", "utf8=0", "-c", PRINTING.replace("100_000", "2")],
        capture_output=True,
        check=True,
        env={"PATH": "", "LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONPATH": ":".join(sys.path)},
    )
    assert done.stdout == 2 * "gr\u00fcn \u65e5\u672c\n".encode()


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("given", ["--help", "--version"])
def test_where_nobody_reads_what_was_asked_for_that_is_silent(unbuffered, given):
    command, env = [sys.executable, "-c", PRINTING, given], {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, env=env, check=False)
    os.close(write)
    assert (done.returncode, done.stderr) == (141, b"")


def test_a_closed_pipe_is_silent():
    with subprocess.Popen([sys.executable, "-c", PRINTING], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        shown = process.stderr.read()
        assert process.wait() in (0, 141)
    assert shown == b""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /dev/full")
@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("given", ["", "--help", "--version"])
def test_an_output_that_cannot_be_written_is_an_error(unbuffered, given):
    command, env = [sys.executable, "-c", PRINTING, *given.split()], {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    with open("/dev/full", "wb") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, env=env, check=False)
    assert done.returncode == 1
    assert done.stderr.decode() == f"nmt-x: error: {'<stdout>: ' if given else ''}No space left on device\n"


@pytest.mark.skipif(sys.platform == "win32", reason="a shell of another kind")
def test_where_streams_are_closed_no_file_takes_their_place(tmp_path):
    body = (
        "import sys\n"
        "from nmt.cli.command import Parser, run\n"
        "def body(_):\n"
        "    print('said to nobody', file=sys.stderr)\n"
        f"    with open({str(tmp_path / 'out')!r}, 'w') as file:\n"
        "        file.write(str(file.fileno()))\n"
        "sys.exit(run('nmt-x', body, Parser(), []))\n"
    )
    shell = 'exec "$@" <&- >&- 2>&-'
    assert subprocess.run(["/bin/sh", "-c", shell, "sh", sys.executable, "-c", body], check=False).returncode == 0
    assert int((tmp_path / "out").read_text()) > 2
    found = subprocess.run(
        ["/bin/sh", "-c", 'exec "$@" 2>&-', "sh", sys.executable, "-c", body], check=False, capture_output=True
    )
    assert found.returncode == 0 and found.stdout == b""
