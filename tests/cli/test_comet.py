"""COMET in the commands, with small checkpoints of the package's own classes; and the error without the package."""

import json
import random
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from made_run import OPTIONS
from sacrebleu.significance import estimate_ci

from nmt.cli.score import main as score
from nmt.cli.train import main as train
from nmt.evaluation.metrics import comet_model
from tests.training.conftest import TRANSLATION, write_pairs

pytestmark = pytest.mark.filterwarnings("ignore")  # Lightning warns
has_comet = find_spec("comet") is not None
needs_comet = pytest.mark.skipif(not has_comet, reason="needs pip install '.[comet]' in an environment of its own")
KINDS = ("regression_metric", "referenceless_regression_metric", "unified_metric")
MADE_OF = {**OPTIONS, "decode.beam": "4"}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A folder with the checkpoint of a small model of each kind."""
    import yaml
    from comet.models import str2model
    from pytorch_lightning import Trainer
    from transformers import BertConfig, BertTokenizerFast

    folder = tmp_path_factory.mktemp("models")
    letters = "abcdefghijklmnopqrstuvwxyz."
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *(f"##{letter}" for letter in letters)]
    (folder / "vocab.txt").write_text("\n".join(pieces) + "\n", encoding="utf-8")
    encoder = str(folder / "encoder")
    BertTokenizerFast(vocab_file=str(folder / "vocab.txt")).save_pretrained(encoder)
    size = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
    BertConfig(vocab_size=len(pieces), max_position_embeddings=64, **size).save_pretrained(encoder)
    for kind in KINDS:
        torch.manual_seed(1)
        more = {"input_segments": ["mt", "src"]} if kind == "unified_metric" else {}
        encoder_options = {"encoder_model": "BERT", "pretrained_model": encoder}
        model = str2model[kind](**encoder_options, **more, hidden_sizes=[8], load_pretrained_weights=False)
        trainer = Trainer(logger=False, accelerator="cpu", enable_progress_bar=False)
        trainer.strategy.connect(model)
        trainer.save_checkpoint(folder / kind / "checkpoints" / "model.ckpt")
        (folder / kind / "hparams.yaml").write_text(
            yaml.safe_dump({"class_identifier": kind, **encoder_options}), encoding="utf-8"
        )
    return folder


@pytest.fixture
def files(tmp_path, monkeypatch):
    """Files src, ref, a and b of 40 lines each in the current folder."""
    monkeypatch.chdir(tmp_path)
    draw = random.Random(1)
    texts = {}
    for name in ("src", "ref", "a", "b"):
        texts[name] = [" ".join(draw.choices(list(TRANSLATION), k=draw.randint(1, 9))) for _ in range(40)]
        Path(name).write_text("".join(f"{line}\n" for line in texts[name]), encoding="utf-8")
    return texts


@needs_comet
@pytest.mark.parametrize("kind", KINDS)
def test_comet_scores_and_signature_equal_those_of_the_package(models, files, capsys, kind):
    from comet import load_from_checkpoint

    path = str(models / kind / "checkpoints" / "model.ckpt")
    flags = ["a", "b", "--ref", "ref", "--src", "src", "--metric", "comet", "--json", "--comet"]
    assert score([*flags, path]) == 0
    out, err = capsys.readouterr()
    assert "BLEU" in err and len(err.splitlines()) == 1  # only the note on BLEU, nothing from Lightning
    results = [system["scores"]["comet"] for system in json.loads(out)["systems"]]
    assert score([*flags, str(models / kind)]) == 0  # the folder
    by_folder = [system["scores"]["comet"] for system in json.loads(capsys.readouterr().out)["systems"]]
    assert [result["score"] for result in by_folder] == [result["score"] for result in results]
    package_model = load_from_checkpoint(path)
    for name, result in zip(("a", "b"), results, strict=True):
        columns = zip(files["src"], files[name], files["ref"], strict=True)
        samples = [dict(zip(("src", "mt", "ref"), texts, strict=True)) for texts in columns]
        expected = package_model.predict(samples, gpus=0, progress_bar=False)
        assert result["score"] == pytest.approx(100 * expected.system_score, abs=1e-4)
        line_scores = comet_model("--comet", path).scores(files["src"], files[name], files["ref"])
        assert line_scores == pytest.approx([100 * value for value in expected.scores], abs=1e-4)
        resamples = np.random.default_rng(12345).choice(40, size=(1000, 40))
        mean, half_width = estimate_ci(np.array(line_scores)[resamples].mean(axis=1))
        assert [result["low"], result["high"]] == pytest.approx([mean - half_width, mean + half_width], abs=1e-3)
        n_reference = int(kind == "regression_metric")
        assert result["signature"] == f"nrefs:{n_reference}|model:{path}|version:2.2.7|bs:1000|seed:12345"
    assert 0.001 < results[1]["p_bootstrap"] < 1 and 0.001 < results[1]["p_randomisation"] < 1
    assert score(["a", "--ref", "ref", "b", *flags[4:], path]) == 0  # several references: the mean over them
    ((with_two_references,),) = (system["scores"].values() for system in json.loads(capsys.readouterr().out)["systems"])
    scores_by_b = comet_model("--comet", path).scores(files["src"], files["a"], files["b"])
    n_reference *= 2
    assert with_two_references["signature"].startswith(f"nrefs:{n_reference}|")
    mean = (results[0]["score"] + np.mean(scores_by_b)) / 2 if n_reference else results[0]["score"]
    assert with_two_references["score"] == pytest.approx(mean, abs=1e-4)


@needs_comet
def test_training_validates_with_comet_and_keeps_the_best_checkpoint(models, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    pairs, valid = write_pairs(tmp_path, "train", 300, 1), write_pairs(tmp_path, "valid", 12, 2)
    Path("x.yaml").write_text(
        f"name: x\ndata: {{src_lang: de, trg_lang: en, max_ratio: 9.0, train: {pairs}, valid: {valid}}}\n"
        "subwords: {vocab_size: 320}\nmodel: {preset: tiny}\n"
        f"valid: {{metric: comet, comet: {models}/regression_metric, every: 2}}\n",
        encoding="utf-8",
    )
    flags = ["x.yaml", "--prepare", "--updates", "4", "--device", "cpu"]
    assert train([*flags, "--valid.comet", "none.ckpt"]) == 2
    err = capsys.readouterr().err
    assert "error: valid.comet: none.ckpt cannot be loaded" in err and f"; tried {tmp_path / 'none.ckpt'})" in err
    assert not Path("runs").exists()
    assert train(flags) == 0
    entries = [json.loads(line) for line in Path("runs/x/log.jsonl").read_text(encoding="utf-8").splitlines()]
    validations = [entry for entry in entries if entry["kind"] == "valid"]
    assert [f"{models}/regression_metric" in entry["comet_signature"] for entry in validations] == [True, True]
    (final,) = (entry for entry in entries if entry["kind"] == "final")
    assert final["candidates"][final["chosen"]]["comet"] == max(
        candidate["comet"] for candidate in final["candidates"].values()
    )


@needs_comet
@pytest.mark.parametrize("kind", KINDS[1:])
def test_decode_qe_ranks_hypotheses_by_comet_score(models, objects, kind):
    records = objects("--decode.qe", models / kind, "--decode.n_best", 4)
    model = comet_model("decode.qe", str(models / kind))
    for record in records:
        if record["source"].strip():
            texts = [hypothesis["output"] for hypothesis in record["n_best"]]
            expected = model.scores([record["source"]] * len(texts), texts)
            assert [hypothesis["qe"] for hypothesis in record["n_best"]] == expected == sorted(expected, reverse=True)
    assert objects("--mbr", 8, "--decode.qe", models / kind) != objects("--mbr", 8)


@needs_comet
def test_unloadable_model_gives_a_one_line_error_and_runs_no_code(models, files, tmp_path, capsys):
    path = models / "regression_metric" / "checkpoints" / "model.ckpt"
    evil = tmp_path / "evil" / "checkpoints" / "model.ckpt"
    evil.parent.mkdir(parents=True)
    (evil.parents[1] / "hparams.yaml").write_bytes((path.parents[1] / "hparams.yaml").read_bytes())
    torch.save({**torch.load(path, weights_only=True), "more": Evil()}, evil)
    reasons = {
        str(evil): "UnpicklingError",
        "Unbabel/none": "LocalEntryNotFound",
        "ref": "IndexError",
        "x.ckpt": "Excep",
    }
    for name, reason in reasons.items():
        assert score(["a", "--ref", "ref", "--src", "src", "--comet", name]) == 2
        out, err = capsys.readouterr()
        assert out == "" and f"--comet: {name} cannot be loaded ({reason}" in err and len(err.splitlines()) == 1
    assert not Path("ran").exists()


class Evil:
    def __reduce__(self):
        return Path.touch, (Path("ran"),)


@needs_comet
def test_model_that_needs_references_is_refused_as_quality_estimator(models, translate):
    assert "needs references" in translate("--decode.qe", models / "regression_metric", code=2)[1]


@pytest.mark.skipif(has_comet, reason="of an environment without it")
def test_missing_comet_package_is_reported_before_any_work(files, capsys):
    assert score(["a", "--ref", "ref", "--src", "src", "--metric", "comet"]) == 2
    assert (
        "pip install 'unbabel-comet>=2.2.7' 'setuptools<81' 'pyarrow<26', in an environment of its own"
        in capsys.readouterr().err
    )


def test_comet_without_source_lines_is_refused(files, capsys):
    assert score(["a", "--ref", "ref", "--comet", "x"]) == 2
    assert "COMET needs the source lines: --src FILE" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--decode.beam", 1], "decode.qe: ranks two or more, but decode.beam is 1"),
        (["--mbr", 4], "among three or more hypotheses, but decode.samples is 4, half of which decode.qe leaves"),
    ],
)
def test_quality_estimation_with_too_few_hypotheses_is_refused(translate, flags, told):
    assert told in translate("--decode.qe", "x", *flags, code=2)[1]
