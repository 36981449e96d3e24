"""The whole road once: a small model learns to copy, and its translations do not depend on how they are batched."""

import random
import shutil

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.numpy import load, save

import nmt
from nmt.data.prepare import prepare
from nmt.data.stored.translations import translations_of
from nmt.data.vocabulary.subwords import BOS, EOS, PAD, Subwords
from nmt.decoding.retry import tries
from nmt.decoding.scoring.shortlist import Shortlist
from nmt.decoding.translator import Translator
from nmt.errors import RecipeError, RunError
from nmt.recipe.options import Recipe
from nmt.recipe.reader import read_recipe
from nmt.recipe.subword_options import SubwordsConfig
from nmt.run import Run
from nmt.training.starting.launch import launch

LETTERS = "abcdefghijklmnop"


def some_lines(n, seed):
    draw = random.Random(seed)
    return [" ".join(draw.choices(LETTERS, k=draw.randint(3, 9))) for _ in range(n)]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of 100 updates of 35 lines or so: sure enough of itself that rounding decides nothing."""
    folder = tmp_path_factory.mktemp("copy")
    files = {}
    for name, n, seed in (("train", 4000, 1), ("valid", 20, 2)):
        text = "".join(line + "\n" for line in some_lines(n, seed))
        (folder / name).write_text(text, encoding="utf-8", newline="\n")
        files[name] = {"src": str(folder / name), "trg": str(folder / name)}
    recipe = Recipe.model_validate(
        {
            "name": "copy",
            "seed": 1,
            "data": {**files, "drop_identical": False, "out": str(folder / "prepared")},
            "subwords": {"vocab_size": 296},
            "model": {
                "d_model": 64,
                "d_inner": 128,
                "n_enc_layer": 1,
                "n_dec_layer": 2,
                "n_head": 4,
                "dropout": 0.0,
                "norm": "pre",
                "position": "rotary",
                "rotary_enc_attn": True,
                "scale_emb_or_prj": "emb",
                "emb_init": "normal",
            },
            "batch": {"max_tokens": 300},
            "optim": {"lr": 3e-3, "schedule": "cosine", "warmup": 30, "clip": 1.0},
            "train": {"out": str(folder / "run"), "updates": 100, "precision": "fp32", "threads": 1},
            "valid": {"every": 1000, "translate": False, "metric": "loss"},
        }
    )
    prepare(recipe, recipe.data_folder)
    assert launch(recipe) == "done"
    return Run(recipe.run_folder)


def translate(run, lines, **decode):
    model, _ = run.load_model(torch.device("cpu"))
    config = run.recipe().decode.model_copy(update=decode)
    return [one.text for one in Translator(model, run.subwords(), config).translate(lines)]


def test_it_learns_to_copy(run):
    lines = some_lines(200, 3)
    right = sum(a == b for a, b in zip(translate(run, lines, beam=1), lines, strict=True))
    assert right >= 196


@pytest.mark.parametrize("beam", [1, 4])
def test_translations_are_the_same_bytes_alone_in_batches_and_in_any_order(run, beam):
    lines = [*some_lines(25, 4), *("q r a b", "abc abc", "a " * 14, "Ü", "a a a a a a")]
    alone = translate(run, lines, beam=beam, max_tokens=1)
    for per_batch in (7, 64):
        # A line of letters has as many subwords and EOS, so that about so many fit.
        assert translate(run, lines, beam=beam, max_tokens=per_batch * beam * 8) == alone
        assert translate(run, lines[::-1], beam=beam, max_tokens=per_batch * beam * 8, window=31) == alone[::-1]


def counts_of(run):
    return translations_of(run.translations_file, run.recipe().data_folder, run.subwords())


def test_with_a_shortlist_it_copies_as_well_and_no_line_depends_on_another(run, capfd):
    model, lines = nmt.load(run.folder, device="cpu"), [*some_lines(40, 5), "q r a b", "Ü"]
    whole = [one.text for one in model.translate(lines)]
    assert not run.translations_file.exists()
    found = model.translate(lines, shortlist=64)
    assert "which subwords translate each other" in capfd.readouterr().err
    assert [one.text for one in found][:40] == whole[:40]
    for one, exact in zip(found[:40], model.translate(lines[:40]), strict=True):
        assert one.score == pytest.approx(exact.score, abs=0.05) and one.score != exact.score
    alone = [model.translate([line], shortlist=64)[0].text for line in lines]
    assert alone == [one.text for one in found]
    assert model.translate(lines[:2], shortlist=64, beam=70)[0].text == whole[0]  # more hypotheses than subwords
    # So few subwords that a search without the likeliest translations could not copy.
    few = Shortlist(counts_of(run), 20, first=EOS, never=[PAD, BOS], device=torch.device("cpu"))
    src_seq = torch.tensor([[*run.subwords().src.encode(["p o n m l"])[0], EOS, PAD]])
    listed = few(src_seq).columns[0].tolist()
    assert listed[0] == EOS and len(set(listed)) == 20 and not {PAD, BOS} & set(listed)
    assert set(src_seq[0].tolist()) - {PAD} <= set(listed)


def test_what_is_asked_of_a_translation_is_looked_for_among_all_subwords(run):
    model = nmt.load(run.folder, device="cpu")
    request = nmt.Request("a b c d", prefix="zebra")
    asked = [model.translate([request], shortlist=n)[0] for n in (0, 64)]
    assert asked[0].text == asked[1].text and asked[0].text.startswith("zebra") and asked[0].score == asked[1].score


def test_the_counts_of_a_run_are_kept_and_made_anew_where_they_are_damaged_or_another_vocabularys(run, tmp_path, capfd):
    copied = Run(
        shutil.copytree(
            run.folder, tmp_path / "run", ignore=shutil.ignore_patterns(run.translations_file.name, "checkpoints")
        )
    )
    path = copied.translations_file
    first = counts_of(copied)
    told = (
        f"nmt: note: {copied.folder}: counting which subwords translate each other in {copied.recipe().data_folder}, "
    )
    assert f"{told}once for this run\n" in capfd.readouterr().err
    kept = path.read_bytes()
    again = counts_of(copied)
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True)) and not capfd.readouterr().err
    tables = load(kept)
    out_of_range = {**tables, "trg": tables["trg"] + 10**6}
    twice = {**tables, "frequent": np.zeros_like(tables["frequent"])}
    with safe_open(path, "numpy") as file:
        mark = file.metadata()
    share = tables["share"].copy()
    share.flat[9] ^= 1
    wrong = [{**tables, "share": share}, {"trg": tables["trg"]}, out_of_range, twice]
    cut = [kept[:100], b"", kept[: len(kept) // 2], save(tables), save(tables, {"sha256": "0" * 64})]
    for content in [*cut, *(save(one, mark) for one in wrong)]:
        path.write_bytes(content)
        found = counts_of(copied)
        assert all(np.array_equal(a, b) for a, b in zip(first, found, strict=True)) and path.read_bytes() == kept
    path.unlink()
    lines = ["x y"] * 9
    other = Subwords.train(lambda: lines, lambda: lines, SubwordsConfig(vocab_size=280), 1)
    with pytest.raises(RunError, match=r"prepared has other subwords than the run: prepare the data again"):
        translations_of(path, copied.recipe().data_folder, other)
    data = copied.recipe().data_folder
    data.rename(tmp_path / "elsewhere")
    try:
        with pytest.raises(RunError, match=r"decode\.shortlist needs the data .* Or leave that option at 0"):
            counts_of(copied)
        assert nmt.load(copied.folder, device="cpu").translate(["a b"])[0].text
    finally:
        (tmp_path / "elsewhere").rename(data)


def test_counts_that_cannot_be_kept_are_told_with_the_reason(run, tmp_path, capfd):
    path = tmp_path / "gone" / "translations"
    found = translations_of(path, run.recipe().data_folder, run.subwords())
    assert all(np.array_equal(a, b) for a, b in zip(found, counts_of(run), strict=True))
    assert f"nmt: note: {path}: cannot be kept (No such file or directory), so it is" in capfd.readouterr().err


def test_a_shortlist_is_refused_where_it_would_do_nothing(run):
    model = nmt.load(run.folder, device="cpu")
    for option, value in (("samples", 4), ("no_repeat", 3), ("min_len_b", 2), ("min_len_a", 0.5)):
        with pytest.raises(RecipeError, match=rf"shortlist: has no effect where decode\.{option}"):
            model.translate(["a b"], shortlist=64, **{option: value})
    with pytest.raises(RecipeError, match="shortlist"):
        model.translate(["a b"], shortlist=5)
    with pytest.raises(RecipeError, match="no effect on a model with data"):
        read_recipe(run.recipe_file, [("decode.shortlist", "64"), ("data.protect", "[number]")])
    assert {one.shortlist for one in tries(model.decode(shortlist=64)).values()} == {0}
