"""Preparation of text as a folder of ids: atomic, checked and deterministic."""

import gzip
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from nmt.data import keep
from nmt.data import prepare as prepare_module
from nmt.data.corpus import Prepared
from nmt.data.manifest import settings_of, temporary_folder
from nmt.data.prepare import prepare
from nmt.errors import DataError
from nmt.extras import version_and_commit
from nmt.files import lock_file
from nmt.recipe.data_options import DataConfig, FilterConfig, SubwordsConfig, TrainingCorpus, ValidationSet
from nmt.recipe.options import Recipe
from tests.data.awkward import AWKWARD

ROOT = Path(__file__).parents[2]
NO_FILTERS = {name: type(field.default)(0) for name, field in FilterConfig.model_fields.items()}
SRC = [f"Satz {n} handelt von {n % 7} Hunden" for n in range(200)]
TRG = [f"sentence {n} is about {n % 7} dogs" for n in range(200)]
VALID = [line for line in AWKWARD if not line.startswith("\ufeff")]


def write(path, lines):
    path.write_bytes("".join(line + "\n" for line in lines).encode())
    return str(path)


@pytest.fixture
def recipe(tmp_path):
    return recipe_in(tmp_path)


def recipe_in(folder, src=SRC, trg=TRG, valid=(VALID, VALID), vocab_size=320, vocab_from="", **data):
    """Recipe of files written to `folder`. valid: the lines of both sides, or a list of ValidationSet."""
    if isinstance(valid, tuple):
        valid = [ValidationSet(src=write(folder / "v.de", valid[0]), trg=write(folder / "v.en", valid[1]))]
    train = [TrainingCorpus(src=write(folder / "t.de", src), trg=write(folder / "t.en", trg))]
    files = {"train": train, "valid": valid}
    return Recipe(
        name="test",
        data=DataConfig(**{"src_lang": "de", "trg_lang": "en", "alarms": "warn", "workers": 1, **files, **data}),
        subwords=SubwordsConfig(vocab_size=vocab_size, vocab_from=vocab_from),
    )


def hashes_of(folder):
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}


def test_stored_ids_equal_those_of_the_lines_and_validation_keeps_all_text(recipe, tmp_path):
    prepare(recipe, tmp_path / "out")
    data = Prepared.open(tmp_path / "out")
    assert data.train.n_pair == len(SRC) and data.test is None
    for corpus, src, trg in ((data.train, SRC, TRG), (data.valid, VALID, VALID)):
        order = np.random.default_rng(1).permutation(len(src))
        ids = corpus.pairs(order)
        assert [row.tolist() for row in ids[0]] == data.subwords.src.encode([src[n] for n in order])
        assert [row.tolist() for row in ids[1]] == data.subwords.trg.encode([trg[n] for n in order])
        assert all(row.dtype == np.int64 for row in ids[0])
        assert corpus.src_len.tolist() == [len(row) for row in data.subwords.src.encode(src)]
        assert corpus.trg_len.dtype == np.int32
    assert data.settings == settings_of(recipe)
    assert data.valid.texts() == (VALID, VALID)


def test_only_the_first_bom_and_final_carriage_returns_are_stripped(tmp_path):
    lines = ["\ufeffmark", "\x00" * 30, *(line for line in VALID if line.strip()), "return\r"]
    recipe = recipe_in(tmp_path, max_len=10_000, **NO_FILTERS)
    for side in ("t.de", "t.en"):
        (tmp_path / side).write_bytes(("\ufeff" + "".join(line + "\r\n" for line in lines)).encode() + b"x\n" * 200)
    prepare(recipe, tmp_path / "out")
    data = Prepared.open(tmp_path / "out")
    kept = data.train.pairs(range(len(lines)))[0]
    assert [row.tolist() for row in kept] == data.subwords.src.encode(lines)
    assert json.loads((tmp_path / "out" / "report.json").read_text("utf-8"))["notes"]["bom_inside"] == 2


def test_other_corpora_or_another_order_differ_but_other_weights_do_not(tmp_path):
    first, second = (
        TrainingCorpus(src=write(tmp_path / f"{n}.de", SRC), trg=write(tmp_path / f"{n}.en", TRG)) for n in "ab"
    )
    prepare(recipe_in(tmp_path, train=[first, second]), tmp_path / "out")
    data = Prepared.open(tmp_path / "out")
    assert data.differences(recipe_in(tmp_path, train=[first.model_copy(update={"weight": 3.0}), second])) == []
    for corpora in ([second, first], [first], [second], [first, second, first]):
        (difference,) = data.differences(recipe_in(tmp_path, train=corpora))
        assert difference.startswith(f"data.train: {first.src}, {second.src} in the folder, {corpora[0].src}")


def test_reordered_corpora_differ_if_they_are_named_by_patterns(tmp_path):
    first, second = (
        TrainingCorpus(src=f"{tmp_path}/{n}.*.de", trg=f"{tmp_path}/{n}.*.en")
        for n in "ab"
        if write(tmp_path / f"{n}.1.de", SRC) and write(tmp_path / f"{n}.1.en", TRG)
    )
    prepare(recipe_in(tmp_path, train=[first, second]), tmp_path / "out")
    data = Prepared.open(tmp_path / "out")
    assert not data.differences(recipe_in(tmp_path, train=[first, second]))
    assert data.differences(recipe_in(tmp_path, train=[second, first]))


def test_corpora_with_other_files_in_each_differ_and_are_not_prepared(tmp_path):
    a, b, c = (
        (write(tmp_path / f"{n}.de", [f"{n} {line}" for line in SRC]), write(tmp_path / f"{n}.en", TRG)) for n in "abc"
    )
    before, after = (
        recipe_in(
            tmp_path,
            train=[TrainingCorpus(src=[src for src, _ in files], trg=[trg for _, trg in files]) for files in corpora],
        )
        for corpora in (([a, b], [c]), ([a], [b, c]))
    )
    prepare(before, tmp_path / "out")
    assert Prepared.open(tmp_path / "out").differences(after)
    with pytest.raises(DataError, match=r"data\.train: "):
        prepare(after, tmp_path / "out")


def test_another_target_language_of_a_corpus_differs_without_tags(tmp_path):
    files = {"src": write(tmp_path / "a.de", SRC), "trg": write(tmp_path / "a.en", TRG)}
    recipes = [recipe_in(tmp_path, train=[TrainingCorpus(**files, trg_lang=lang)]) for lang in ("fr", None)]
    prepare(recipes[0], tmp_path / "out")
    data = Prepared.open(tmp_path / "out")
    assert not data.differences(recipes[0]) and data.differences(recipes[1])


def test_report_keeps_the_usual_ratios_of_corpora_that_share_a_source_file(tmp_path):
    source = write(tmp_path / "a.de", SRC)
    corpora = [TrainingCorpus(src=source, trg=write(tmp_path / f"a.{n}", TRG)) for n in "bc"]
    prepare(recipe_in(tmp_path, train=corpora), tmp_path / "out")
    names = json.loads((tmp_path / "out" / "report.json").read_text(encoding="utf-8"))["usual_ratio"]
    assert list(names) == [f"{source} (data.train.{n})" for n in range(2)]


def test_validation_sets_are_stored_separately_in_the_order_of_the_recipe(tmp_path):
    def with_sets(**lines_of):
        files = {name: [write(tmp_path / f"{name}.{side}", lines) for side in "st"] for name, lines in lines_of.items()}
        return recipe_in(
            tmp_path, valid=[ValidationSet(name=name, src=src, trg=trg) for name, (src, trg) in files.items()]
        )

    recipe = with_sets(newstest=VALID[:3], valid=VALID[3:9], web_2=VALID[2:5])
    manifest = prepare(recipe, tmp_path / "out")
    assert manifest["n_pair"] == {"train": 200, "valid-newstest": 3, "valid": 6, "valid-web_2": 3}
    data = Prepared.open(tmp_path / "out")
    texts = [(name, corpus.texts()[1]) for name, corpus in data.valid_sets.items()]
    assert texts == [("newstest", VALID[:3]), ("valid", VALID[3:9]), ("web_2", VALID[2:5])]
    assert data.valid is data.valid_sets["newstest"] and data.differences(recipe) == []
    for other in (with_sets(valid=VALID[3:9]), with_sets(valid=VALID[3:9], newstest=VALID[:3], web_2=VALID[2:5])):
        assert "newstest, valid, web_2 in the folder, valid" in data.differences(other)[0]
        with pytest.raises(DataError, match="--overwrite"):
            prepare(other, tmp_path / "out")


def test_the_datasets_library_opens_the_files(recipe, tmp_path):
    from datasets import Dataset

    prepare(recipe, tmp_path / "out")
    dataset = Dataset.from_file(str(tmp_path / "out" / "valid.arrow"))
    assert dataset.column_names == ["src", "trg", "src_len", "trg_len", "src_text", "trg_text"]
    assert dataset[2]["src_text"] == VALID[2]
    assert dataset.features["src"].feature.dtype == "uint16"


def test_report_counts_dropped_pairs_by_reason_with_their_lines(tmp_path):
    src = [*SRC[:10], "", "OK", "x" * 100, " ".join(f"y{n}" for n in range(400)), SRC[0], "z" * 2_000_000, VALID[-1]]
    trg = [*TRG[:10], "a", "OK", "x", " ".join(f"z{n}" for n in range(390)), TRG[0], "z", "a line of validation"]
    recipe = recipe_in(tmp_path, src, trg, max_len=256, drop_duplicates=True)
    prepare(recipe, tmp_path / "out")
    report = json.loads((tmp_path / "out" / "report.json").read_text(encoding="utf-8"))
    lines = {reason: [place.rpartition(":")[2] for place in row["first"]] for reason, row in report["dropped"].items()}
    one_each = {"empty side": ["11"], "identical sides": ["12"], "length ratio": ["13"], "duplicate": ["15"]}
    assert lines == {**one_each, "too long": ["16", "14"]}
    assert (report["read"], report["kept"], report["source_in_valid_or_test"]) == (17, 11, 1)


def test_one_error_lists_a_missing_file_of_each_corpus_and_the_paths_tried(tmp_path, monkeypatch):
    monkeypatch.setenv("NMT_DATA", str(tmp_path / "corpora"))
    missing = [TrainingCorpus(src="multi30k.x.de", trg="gone.en")]
    with pytest.raises(DataError) as error:
        prepare(recipe_in(tmp_path, train=missing, valid=[ValidationSet(src="gone.fr", trg="v.de")]), tmp_path / "out")
    message = str(error.value)
    assert str(Path("multi30k.x.de").absolute()) in message and str(tmp_path / "corpora" / "multi30k.x.de") in message
    assert "download_multi30k" in message and "data.valid: no file gone.fr: tried" in message


def test_relative_paths_are_found_in_the_folder_nmt_data(recipe, tmp_path, monkeypatch):
    monkeypatch.setenv("NMT_DATA", str(tmp_path))
    (tmp_path / "t.de.gz").write_bytes(gzip.compress((tmp_path / "t.de").read_bytes()))
    recipe = recipe_in(tmp_path, train=[TrainingCorpus(src="t.de.gz", trg="t.en")])
    manifest = prepare(recipe, tmp_path / "out")
    assert manifest["n_pair"]["train"] == len(SRC) and manifest["inputs"][0]["name"] == "t.de.gz"


def test_preparing_again_does_nothing_and_a_changed_recipe_needs_overwrite(recipe, tmp_path):
    messages: list[str] = []
    prepare(recipe, tmp_path / "out")
    before = hashes_of(tmp_path / "out")
    prepare(recipe, tmp_path / "out", talk=messages.append)
    assert "nothing to do" in messages[-1]
    changed = recipe.model_copy(update={"subwords": SubwordsConfig(vocab_size=300)})
    with pytest.raises(DataError, match=r"subwords\.vocab_size: 320 in the folder, 300 in the recipe.*--overwrite"):
        prepare(changed, tmp_path / "out")
    assert hashes_of(tmp_path / "out") == before
    prepare(changed, tmp_path / "out", overwrite=True)
    assert Prepared.open(tmp_path / "out").subwords.src.size == 300
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith(".")) == []


def test_folder_records_the_nmt_version_and_another_version_reuses_it(recipe, tmp_path, monkeypatch):
    messages: list[str] = []
    assert prepare(recipe, tmp_path / "out")["nmt"] == version_and_commit()
    before = hashes_of(tmp_path / "out")
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert f"nmt-preprocess {version_and_commit()} from the recipe" in page
    monkeypatch.setattr("nmt.data.prepare.version_and_commit", lambda: "9.9+g123.dirty")
    prepare(recipe, tmp_path / "out", talk=messages.append)
    assert "nothing to do" in messages[-1] and hashes_of(tmp_path / "out") == before


def test_concurrent_preparation_is_refused_and_leftovers_of_a_killed_one_removed(tmp_path):
    out, leftover = tmp_path / "out", tmp_path / ".out.preparing"
    leftover.mkdir()
    (leftover / "half").touch()
    (tmp_path / ".out.preparing.lock").write_text("1")
    with temporary_folder(out) as folder:
        assert folder == leftover and not list(folder.iterdir())
        with pytest.raises(DataError, match=f"is writing it .process {os.getpid()}"), temporary_folder(out):
            pass
    assert not list(tmp_path.iterdir())


def test_lock_that_its_holder_has_just_removed_is_no_lock(tmp_path, monkeypatch):
    """Another process could create and lock a new file of that name, and both would write the folder."""

    def lock_removed_file(handle):
        (tmp_path / ".out.preparing.lock").unlink()
        return lock_file(handle)

    monkeypatch.setattr("nmt.data.manifest.lock_file", lock_removed_file)
    with (
        pytest.raises(DataError, match="another nmt-preprocess is writing it"),
        temporary_folder(tmp_path / "out"),
    ):
        pass


def test_folder_with_foreign_files_is_never_touched(recipe, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    (out / "thesis.txt").write_text("mine", encoding="utf-8")
    with pytest.raises(DataError, match="left as it is"):
        prepare(recipe, out, overwrite=True)
    (out / "thesis.txt").rename(tmp_path / "thesis.txt")
    prepare(recipe, out)
    (tmp_path / "thesis.txt").rename(out / "thesis.txt")
    with pytest.raises(DataError, match=r"did not write: thesis\.txt"):
        prepare(recipe, out, overwrite=True)
    assert (out / "thesis.txt").read_text(encoding="utf-8") == "mine"


@pytest.mark.parametrize("call", ["_learn", "write_manifest"])
def test_failure_at_any_stage_leaves_only_the_old_data(recipe, tmp_path, monkeypatch, call):
    prepare(recipe, tmp_path / "out")
    before = hashes_of(tmp_path / "out")

    def fail(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(prepare_module, call, fail)
    changed = recipe.model_copy(update={"subwords": SubwordsConfig(vocab_size=300)})
    with pytest.raises(KeyboardInterrupt):
        prepare(changed, tmp_path / "out", overwrite=True)
    assert hashes_of(tmp_path / "out") == before
    assert not list(tmp_path.glob(".*"))


def edit_json(change):
    """Return a function that changes the content of a manifest."""

    def damage(path):
        content = json.loads(path.read_text(encoding="utf-8"))
        change(content)
        path.write_text(json.dumps(content), encoding="utf-8")

    return damage


def edit_bytes(change):
    """Return a function that changes the bytes of a file."""
    return lambda path: path.write_bytes(change(path.read_bytes()))


def flip_bit(content):
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


@pytest.mark.parametrize(
    ("name", "damage", "expected"),
    [
        # Checked before mapping: reading a page beyond the end of a mapped file kills the process.
        ("train.arrow", edit_bytes(lambda content: content[:-1]), r"train\.arrow: .*its size or SHA-256 differs"),
        ("valid.arrow", edit_bytes(flip_bit), r"valid\.arrow: .*SHA-256 differs"),
        ("subwords.json", edit_bytes(flip_bit), r"subwords\.json: .*SHA-256 differs"),
        ("report.json", Path.unlink, r"report\.json: missing"),
        ("manifest.json", Path.unlink, "incomplete"),
        ("manifest.json", edit_bytes(lambda content: content[:-99]), "damaged"),
        ("manifest.json", edit_bytes(lambda _: b'{"a": 1, "a": 2}'), "twice"),
        ("manifest.json", edit_bytes(lambda _: b'{"a": NaN}'), "NaN"),
        ("manifest.json", edit_bytes(lambda _: b"[" * 100_000), "damaged"),
        ("manifest.json", edit_json(lambda c: c.update(format=99)), "99"),
        ("manifest.json", edit_json(lambda c: c.update(made_by="other")), "not a manifest"),
        ("manifest.json", edit_json(lambda c: c["files"].pop("train.arrow")), r"train\.arrow is missing"),
        *(
            ("manifest.json", edit_json(lambda c, corpora=corpora: c.update(corpora=corpora)), "wrong kind")
            for corpora in ([], [{"n_pair": 6}], [{"n_pair": 201}, {"n_pair": -1}], [{"n_pair": True}], "all")
        ),
    ],
)
def test_error_of_a_damaged_folder_names_the_file(recipe, tmp_path, name, damage, expected):
    prepare(recipe, tmp_path / "out")
    damage(tmp_path / "out" / name)
    with pytest.raises(DataError, match=expected):
        Prepared.open(tmp_path / "out")


def test_ids_beyond_the_vocabulary_are_refused(recipe, tmp_path):
    """Matching hashes do not prove that the content is valid."""
    small = recipe.model_copy(update={"subwords": SubwordsConfig(vocab_size=264)})
    prepare(recipe, tmp_path / "a")
    prepare(small, tmp_path / "b")
    manifest = json.loads((tmp_path / "a" / "manifest.json").read_text(encoding="utf-8"))
    small_manifest = json.loads((tmp_path / "b" / "manifest.json").read_text(encoding="utf-8"))
    manifest["files"]["subwords.json"] = small_manifest["files"]["subwords.json"]
    manifest["subwords_sha256"] = small_manifest["subwords_sha256"]
    (tmp_path / "b" / "subwords.json").rename(tmp_path / "a" / "subwords.json")
    (tmp_path / "a" / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    with pytest.raises(DataError, match="ids outside the vocabulary"):
        Prepared.open(tmp_path / "a")


def test_bytes_do_not_depend_on_the_run_workers_or_hash_seed(recipe, tmp_path, monkeypatch):
    """Compare this process with another that has two workers and a different hash seed."""
    monkeypatch.setattr(keep, "N_PAIR", 40)
    code = (
        "import sys; from pathlib import Path; from tests.data.test_prepare import recipe_in; "
        "from nmt.data import keep; from nmt.data.prepare import prepare; folder = Path(sys.argv[1]); "
        "keep.N_PAIR = keep._WORTHWHILE = 40; "
        "prepare(recipe_in(folder, workers=2), folder / 'out1')"
    )
    prepare(recipe, tmp_path / "out0")
    env = {**os.environ, "PYTHONHASHSEED": "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"}
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, env=env, check=True, capture_output=True)
    hashes = [{k: v for k, v in hashes_of(tmp_path / out).items() if k != "recipe.yaml"} for out in ("out0", "out1")]
    assert hashes[0] == hashes[1] and "manifest.json" in hashes[0]
