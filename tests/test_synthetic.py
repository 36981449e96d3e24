"""Commands of docs/data.md on a tiny corpus and model: back-translation, then distillation."""

import gzip
import json
import random
import re
import shlex
from pathlib import Path

import pytest

from nmt.cli.preprocess import main as preprocess
from nmt.cli.train import main as train
from nmt.cli.translate import main as translate
from nmt.data.corpus import Prepared

ROOT = Path(__file__).parents[1]
COMMANDS = {"nmt-preprocess": preprocess, "nmt-train": train, "nmt-translate": translate}
PAIRS = {"ein": "one", "rot": "red", "blau": "blue", "haus": "house", "see": "lake", "hund": "dog", "geht": "walks"}
N_TRAIN, N_MONO = 60, 12

SMALL = """
    subwords.vocab_size=320 model.n_enc_layer=1 model.n_dec_layer=1 model.d_model=32 model.d_inner=32 model.n_head=2
    model.dropout=0 model.attn_dropout=0 data.alarms=warn data.workers=1
    batch.max_tokens=2000 optim.warmup=5 train.updates=50
    train.device=cpu train.precision=fp32 train.save_every=50 train.average=none
    valid.every=50 valid.translate=false valid.metric=loss decode.low_score=0
"""


def commands_of(title):
    """Return the commands in a chapter of docs/data.md."""
    chapter = (ROOT / "docs" / "data.md").read_text(encoding="utf-8").partition(f"## {title}\n")[2]
    return re.search(r"```bash\n(.*?)```", chapter, re.DOTALL)[1].replace("$NMT_DATA/", "").strip().split("\n")


def write(path, lines):
    text = "".join(f"{line}\n" for line in lines).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Working directory with the corpora that the recipes name."""
    rng = random.Random(1)
    texts = [[rng.choice(list(PAIRS)) for _ in range(rng.randint(2, 5))] for _ in range(N_TRAIN + N_MONO)]
    german = [" ".join(words) for words in texts]
    english = [" ".join(PAIRS[word] for word in words) for words in texts]
    for split, n in (("train", N_TRAIN), ("val", 4), ("test_2016_flickr", 4)):
        write(tmp_path / f"multi30k.{split}.de.gz", german[:n])
        write(tmp_path / f"multi30k.{split}.en.gz", english[:n])
    write(tmp_path / "mono.en", [*english[N_TRAIN:], "", english[N_TRAIN]])
    (tmp_path / "recipes").symlink_to(ROOT / "recipes")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("NMT_DATA", raising=False)
    return tmp_path


def run(command, *extra):
    """Run a command with small sizes."""
    name, *arguments = shlex.split(command)
    small = [f"--{option}" for option in SMALL.split()] if name != "nmt-translate" else []
    assert COMMANDS[name]([*arguments, *small, *map(str, extra)]) == 0


def records(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n")[:-1]]


def test_documented_back_translation_and_distillation_train_models(folder, capsys):
    for command in ("nmt-preprocess", "nmt-train"):
        run(f"{command} recipes/multi30k.en-de.yaml")
    (prepare,) = commands_of("Back-translation")
    run(prepare)
    pairs = records(next((folder / "prepared" / "multi30k.de-en.bt.translated").iterdir()))
    mono = (folder / "mono.en").read_text(encoding="utf-8").split("\n")[:-1]
    assert [pair["source"] for pair in pairs] == mono
    assert all(pair.keys() == {"source", "output", "flags"} for pair in pairs)
    run(prepare.replace("preprocess", "train"))
    data = Prepared.open(folder / "prepared" / "multi30k.de-en.bt")
    n_real, n_back = data.sizes
    report = json.loads((data.folder / "report.json").read_text(encoding="utf-8"))
    dropped = report["corpora"][1]["dropped"]
    assert n_real == N_TRAIN and 0 < n_back == len(pairs) - sum(dropped.values())
    assert dropped["flagged blank"] == 1
    src, trg = data.train.pairs(range(n_real + n_back))
    has_tag = [data.subwords.src.pieces(ids)[0] == "<bt>" for ids in src]
    assert has_tag == [False] * n_real + [True] * n_back
    kept = [data.subwords.trg.decode(ids) for ids in trg[n_real:]]
    assert set(kept) <= set(mono)
    assert (folder / "runs" / "multi30k.de-en.bt" / "model").is_dir()

    (prepare,) = commands_of("Distillation")
    run(f"{prepare} --data.train.translated_by runs/multi30k.de-en.bt")
    distilled = records(next((folder / "prepared" / "multi30k.de-en.student.translated").iterdir()))
    data = Prepared.open(folder / "prepared" / "multi30k.de-en.student")
    kept = [pair for pair in distilled if not pair["flags"]]
    assert 0 < data.train.n_pair <= len(kept) <= N_TRAIN == len(distilled)
    assert "training pairs" in capsys.readouterr().err
