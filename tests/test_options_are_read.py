"""Every option is read where it may take effect: shown by watching small preparations, trainings and translations.

What an option that is read then changes is for the tests of its room.
"""

import json
import sys
from pathlib import Path

import pytest

from nmt.cli.translate import main as translate
from nmt.data.prepare import prepare
from nmt.data.sources import find_sources
from nmt.errors import DataError
from nmt.recipe.data_options import OwnFilters
from nmt.recipe.fields import all_fields
from nmt.recipe.options import Recipe
from nmt.recipe.section import Section
from nmt.training.launch import launch
from tests.training.conftest import write_pairs

ROOT = Path(__file__).parents[1]
# Who reads an option here compares, copies, estimates or tells, and does not do what it says.
NO_EFFECT = {
    "nmt/recipe/decode_options.py": {"searching"},
    "nmt/recipe/data_options.py": {"filters_of"},
    "nmt/data/manifest.py": {"settings_of"},
    "nmt/training/budget.py": {"n_measured_at_end"},
    "nmt/training/resolve.py": {"check_space", "checkpoint_bytes"},
}


def declared():
    """{dotted name: (class, field)} of all options: the class that declares it, which others may inherit from."""
    found = {}

    def walk(model, prefix):
        for name, info in model.model_fields.items():
            parts = [info.annotation]
            while parts:
                part = parts.pop()
                if isinstance(part, type) and issubclass(part, Section):
                    walk(part, f"{prefix}{name}.")
                parts += getattr(part, "__args__", ())
            found[prefix + name] = owner_of(model, name)

    walk(Recipe, "")
    return found


def owner_of(model, name):
    """The class that declares a field of a model, and the field."""
    return next(base for base in reversed(model.__mro__) if name in getattr(base, "model_fields", ())), name


def takes_effect(frame):
    """Whether a read from here may be one that does something."""
    file = Path(frame.f_code.co_filename)
    if not file.is_relative_to(ROOT / "nmt") or (file.parent.name == "recipe" and "options" not in file.stem):
        return False
    while frame is not None:
        file, function = Path(frame.f_code.co_filename), frame.f_code.co_name
        if file.stem.endswith("contradictions"):
            return False
        if file.is_relative_to(ROOT) and function in NO_EFFECT.get(file.relative_to(ROOT).as_posix(), ()):
            return False
        frame = frame.f_back
    return True


@pytest.fixture
def seen(monkeypatch):
    """The (class, field) pairs that were read since, each from where it may take effect."""
    found, known = set(), {}

    def watched(section, name):
        kind = type(section)
        if kind not in known:
            known[kind] = {field: owner_of(kind, field) for field in kind.model_fields}
        option = known[kind].get(name)
        if option is not None and option not in found and takes_effect(sys._getframe(1)):
            found.add(option)
        return object.__getattribute__(section, name)

    monkeypatch.setattr(Section, "__getattribute__", watched, raising=False)
    return found


@pytest.fixture
def recipe_of(tmp_path):
    """recipe_of(run, section={option: value}, ...) -> Recipe, of a tiny model that moves twice."""
    pairs = write_pairs(tmp_path, "train", 60, 1)
    sides = [Path(pairs[side]).read_text(encoding="utf-8").split("\n")[:-1] for side in ("src", "trg")]
    lines = [json.dumps({"src": src, "trg": trg, "flags": []}) for src, trg in zip(*sides, strict=True)]
    (tmp_path / "train.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    keys = {"src_column": "src", "trg_column": "trg"}
    held_out = write_pairs(tmp_path, "valid", 4, 2)
    (tmp_path / "lines.de").write_text("ein Hund\n", encoding="utf-8")

    def recipe_of(run, **sections):
        tree = {
            "name": "watched",
            "data": {
                "src_lang": "de",
                "trg_lang": "en",
                "train": [pairs, {"file": str(tmp_path / "train.jsonl"), "drop_flagged": True, **keys}],
                "valid": [held_out],
                "test": held_out,
                "out": str(tmp_path / f"{run}-data"),
                "max_ratio": 9.0,
                "alarms": "warn",
                "workers": 1,
            },
            "subwords": {"vocab_size": 320},
            "model": {"d_model": 16},
            "batch": {"max_tokens": 400},
            "optim": {"warmup": 1},
            "train": {"out": str(tmp_path / run), "updates": 2, "device": "cpu", "precision": "fp32"},
            "valid": {"every": 1},
            "decode": {"max_len_a": 0.5, "max_len_b": 3},
        }
        for section, options in sections.items():
            tree[section] = {**tree.get(section, {}), **options}
        return Recipe.model_validate(tree)

    return recipe_of


SMALL = {"d_model": 16, "d_inner": 16, "n_head": 2, "n_enc_layer": 1, "n_dec_layer": 1}


def test_every_option_is_read_where_it_may_take_effect(seen, recipe_of, tmp_path, capfd):
    def whole(run, *flags, **sections):
        recipe = recipe_of(run, **sections)
        prepare(recipe, recipe.data_folder, talk=lambda _line: None)
        launch(recipe)
        files = ["--input", str(tmp_path / "lines.de"), "--output", str(tmp_path / f"{run}.en")]
        translate([str(tmp_path / run), "--device", "cpu", *files, *flags])

    alignments = ("--alignments", str(tmp_path / "alignments"))
    whole(
        "transformer",
        *alignments,
        model=SMALL,
        optim={"name": "muon", "schedule": "wsd", "end_factor": 0.1},
        train={"time_budget": "1h", "average": "best", "keep_best": 2, "ema": 0.9},
        regularize={"simcut": 1.0},
    )
    whole(
        "attention",
        "--decode.samples",
        "2",
        model={"architecture": "attention"},
        subwords={"vocab_from": str(tmp_path / "transformer-data"), "extend": 8},
    )
    (tmp_path / "set").mkdir()
    of_set = {"dataset": str(tmp_path / "set"), "split": "train", "src_column": "src", "trg_column": "trg"}
    with pytest.raises(DataError, match="cannot be loaded"):  # it is empty
        find_sources(recipe_of("dataset", data={"test": of_set}))
    (tmp_path / "test.tsv").write_text("de\ten\nein\ta\n", encoding="utf-8")
    tsv = {"file": str(tmp_path / "test.tsv"), "header": True, "src_column": 1, "trg_column": 2}
    find_sources(recipe_of("table", data={"test": tsv}))

    options = declared()
    assert set(options) == {field.name for field in all_fields()} | set(Recipe.model_fields)
    # What a corpus has for itself says again what the section does, and is handed on as that: `filters_of`.
    unread = {name for name, option in options.items() if option[0] is not OwnFilters and option not in seen}
    assert not unread, f"declared in nmt/recipe/ and without any effect: {', '.join(sorted(unread))}"
