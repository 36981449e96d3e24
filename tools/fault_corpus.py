"""What is prepared and trained on where faults are tried: a recipe, and a few pairs of made-up sentences."""

import random
from pathlib import Path

RECIPE = """\
name: tiny
seed: 3
data:
  src_lang: de
  trg_lang: en
  train: [{src: corpus/train.de, trg: corpus/train.en}]
  valid: {src: corpus/valid.de, trg: corpus/valid.en}
  max_ratio: 9.0
subwords: {vocab_size: 320}
model: {d_model: 16, d_inner: 32, n_enc_layer: 1, n_dec_layer: 1, n_head: 2, dropout: 0.1, norm: pre}
batch: {max_tokens: 120, per_update: 2}
optim: {lr: 3.0e-3, schedule: constant, warmup: 5, clip: 1.0}
train: {out: runs/here, updates: 60, save_every: 5, log_every: 1, ema: 0.9, precision: fp32, device: cpu, threads: 1}
valid: {every: 20, max_tokens: 400, max_sentences: 3}
decode: {max_len_a: 1.0, max_len_b: 5}
"""
PAIRS = [
    ("ein", "a"),
    ("der", "the"),
    ("Mann", "man"),
    ("Hund", "dog"),
    ("rot", "red"),
    ("groß", "big"),
    ("Ball", "ball"),
]


def write_corpus(folder: Path, n_pair: int) -> None:
    """Write so many training pairs, and six to validate on; always the same."""
    for name, n, seed in (("train", n_pair, 1), ("valid", 6, 2)):
        draw = random.Random(seed)
        lines = [[draw.choice(PAIRS) for _ in range(draw.randint(2, 9))] for _ in range(n)]
        for side, language in enumerate(("de", "en")):
            text = "".join(" ".join(word[side] for word in line) + "\n" for line in lines)
            (folder / f"{name}.{language}").write_text(text, encoding="utf-8")
