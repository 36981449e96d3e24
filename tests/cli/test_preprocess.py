"""nmt-preprocess as a command: recipes, text files, alarms, --check and --show."""

import shlex

import pytest

from nmt.cli.preprocess import main
from nmt.data.corpus import Prepared
from nmt.recipe.reader import read_recipe


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, n in (("train", 50), ("valid", 5)):
        for lang in ("de", "no"):
            lines = "".join(f"{name} {lang} {number}\n" for number in range(n))
            (tmp_path / f"{name}.{lang}").write_text(lines, encoding="utf-8")
    corpora = "train: {src: train.de, trg: train.no}, valid: {src: valid.de, trg: valid.no}"
    recipe = f"name: mine\ndata: {{src_lang: de, trg_lang: 'no', {corpora}}}\n"
    (tmp_path / "recipe.yaml").write_text(recipe, encoding="utf-8")
    return tmp_path


ARGS = ["--train", "train.de", "train.no", "--valid", "valid.de", "valid.no", "--langs", "de", "no", "--out", "my data"]


def test_recipe_is_prepared_in_the_folder_it_names(files, capsys):
    assert main(["recipe.yaml", "--subwords.vocab_size", "300"]) == 0
    assert Prepared.open("prepared/mine").train.n_pair == 50
    out, err = capsys.readouterr()
    assert out == "" and "50 read, 0 dropped, 50 kept" in err
    assert err.endswith("train with: nmt-train recipe.yaml --subwords.vocab_size 300\n")


def test_suggested_training_command_works_in_a_shell(files, capsys):
    assert main(["recipe.yaml", "--data.out", "first"]) == 0
    flags = ["--subwords.extend", "5", "--data.valid", "{src: valid.de, trg: valid.no}", "--data.out", "second"]
    assert main(["recipe.yaml", "--vocab-from", "first", *flags]) == 0
    command = shlex.split(capsys.readouterr().err.split("train with: ")[-1])
    assert command[:2] == ["nmt-train", "recipe.yaml"]
    options = dict(zip(command[2::2], command[3::2], strict=True))
    assert options == {"--subwords.vocab_from": "first", **dict(zip(flags[::2], flags[1::2], strict=True))}
    assert not Prepared.open("second").differences(
        read_recipe("recipe.yaml", [(flag.removeprefix("--"), value) for flag, value in options.items()])
    )


def test_text_files_get_a_recipe_and_overwrite_replaces_the_data(files, capsys):
    assert main(ARGS) == 0
    recipe = read_recipe("my data/recipe.yaml")
    assert (recipe.name, recipe.data.out) == ("my-data", "my data")
    assert (recipe.data.trg_lang, recipe.model.norm) == ("no", "pre")
    assert not Prepared.open("my data").differences(recipe)
    assert "nmt-train 'my data/recipe.yaml'" in capsys.readouterr().err
    assert main(["my data/recipe.yaml"]) == 0
    assert "nothing to do" in capsys.readouterr().err
    assert main([*ARGS, "--subwords.vocab_size", "270"]) == 2
    assert main([*ARGS, "--subwords.vocab_size", "270", "--overwrite"]) == 0
    assert read_recipe("my data/recipe.yaml").subwords.vocab_size == 270


def test_check_writes_a_report_page_and_no_data(files, capsys):
    before = {path.name for path in files.iterdir()}
    assert main([*ARGS, "--check"]) == 0
    assert {path.name for path in files.iterdir()} - before == {"my data.report.html"}
    out, err = capsys.readouterr()
    assert out == "" and "50 read" in err and "my data.report.html" in err and err.endswith("check: no alarm\n")
    leak(files)
    (files / "valid.no").write_text("annet\n" * 5, encoding="utf-8")
    assert main([*ARGS, "--check", "--report", "mine.html"]) == 0 == main([*ARGS, "--check", "--report", "mine.html"])
    assert capsys.readouterr().err.endswith("check: no alarm, but see the warnings above\n")
    assert "</html>" in (files / "mine.html").read_text(encoding="utf-8")


def test_portable_refuses_options_that_no_export_supports(files, capsys):
    for flags in (["--subwords.kind", "unigram"], ["--data.protect", "[url]"]):
        assert main([*ARGS, "--portable", *flags]) == 2
        assert f"--portable: {flags[0].removeprefix('--')} cannot be exported" in capsys.readouterr().err


def test_portable_flags_are_printed_for_prepared_data(files, capsys):
    assert main(ARGS) == 0 == main([*ARGS, "--portable"])
    err = capsys.readouterr().err
    assert "nothing to do" in err and "--model.lexical_attn false" in err.splitlines()[-1]
    assert main([*ARGS[:-1], "new", "--portable", "--vocab-from", "my data"]) == 0  # that is no model


def test_recurrent_model_needs_no_recipe(files):
    assert main([*ARGS, "--model.architecture", "attention", "--model.d_model", "32"]) == 0
    assert read_recipe("my data/recipe.yaml").model.is_recurrent


def test_fine_tuning_inherits_all_rules_of_the_subwords(files):
    assert main([*ARGS, "--subwords.whitespace", "kept", "--subwords.vocab_size", "300"]) == 0
    run = files / "runs" / "old"
    (run / "model").mkdir(parents=True)
    for name in ("recipe.yaml", "subwords.json"):
        (run / name).write_bytes((files / "my data" / name).read_bytes())
    (run / "data.json").write_text("{}", encoding="utf-8")
    assert main([*ARGS[:-1], "tuned", "--vocab-from", "runs/old", "--subwords.extend", "5"]) == 0
    assert read_recipe("tuned/recipe.yaml").subwords.whitespace == "kept"


def leak(files):
    """Make the validation pairs training pairs."""
    for lang in ("de", "no"):
        lines = (files / f"train.{lang}").read_bytes().splitlines(keepends=True)[:5]
        (files / f"valid.{lang}").write_bytes(b"".join(lines))


def swap(files):
    """Write training and validation files whose sides are swapped relative to each other."""
    de = [f"{word} der und nicht mit {n} von auf ein ist" for n, word in enumerate(["das", "wir", "sie", "auch"] * 60)]
    no = [f"{word} det og ikke med {n} fra på en er" for n, word in enumerate(["vi", "dere", "de", "også"] * 60)]
    for name, lines in {"train.de": de[:200], "train.no": no[:200], "valid.no": de[200:], "valid.de": no[200:]}.items():
        (files / name).write_text("\n".join(lines) + "\n", encoding="utf-8")


def other_language(files):
    """Make the target files Russian, except for two lines."""
    for name, n, more in (("train", 50, "en linje på norsk\n" * 2), ("valid", 5, "")):
        lines = "".join(f"Это строка номер {k} {name}\n" for k in range(n))
        (files / f"{name}.no").write_text(lines + more, encoding="utf-8")
    with (files / "train.de").open("a", encoding="utf-8") as file:
        file.write("eine Zeile auf Deutsch\n" * 2)


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (leak, "5 of 5 valid pairs (100 %; alarm above 1 %) are in the training pairs"),
        (swap, "the training files look swapped: the words of train.de, the source, are those of valid.no"),
        (other_language, "50 of 52 training pairs are dropped (96.2 %; alarm above 50 %), most for another script"),
    ],
)
def test_alarm_leaves_a_report_and_no_data_unless_accepted(files, capsys, spoil, told):
    spoil(files)
    before = {path.name for path in files.iterdir()}
    assert main(ARGS) == 3
    error = capsys.readouterr().err.splitlines()[-1]
    assert told in error and "my data.report.html" in error and error.endswith("--data.alarms warn.")
    assert {path.name for path in files.iterdir()} - before == {"my data.report.html"}
    assert main(["recipe.yaml", "--accept-alarms"]) == 0
    assert f"ALARM: {told}" in (err := capsys.readouterr().err) and err.endswith("train with: nmt-train recipe.yaml\n")
    assert main([*ARGS, "--data.alarms", "warn"]) == 0 and not (files / "my data.report.html").exists()
    assert main([*ARGS, "--check", "--report", "my data/report.html"]) == 2
    assert "my data: is prepared data" in capsys.readouterr().err


def test_check_keeps_the_data_and_exits_with_3_on_an_alarm(files, capsys):
    assert main(ARGS) == 0
    leak(files)
    before = {path.name: path.read_bytes() for path in (files / "my data").iterdir()}
    assert main([*ARGS, "--check"]) == 3
    assert "ALARM: 5 of 5 valid pairs" in capsys.readouterr().err
    assert main([*ARGS, "--check", "--accept-alarms"]) == 0
    assert "ALARM: 5 of 5 valid pairs" in capsys.readouterr().err
    assert {path.name: path.read_bytes() for path in (files / "my data").iterdir()} == before


def test_show_prints_prepared_pairs_without_the_text_files(files, capsys):
    assert main(ARGS) == 0
    for name in ("train.de", "valid.de"):
        (files / name).unlink()
    capsys.readouterr()
    assert main(["my data", "--show", "2"]) == 0
    folder_output = capsys.readouterr().out
    assert main([*ARGS, "--show", "2"]) == 0 == main(["my data/recipe.yaml", "--show", "2"])
    assert capsys.readouterr().out == 2 * folder_output
    assert folder_output.count("src text    train de ") == 2 and folder_output.count("trg ids") == 2
    assert main(["my data", "--show", "no"]) == 2
