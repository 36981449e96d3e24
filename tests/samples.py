"""Real translations on which checks must raise no alarm: files of the folder that NMT_DATA names."""

import gzip
import os
from pathlib import Path

import pytest

SAMPLES = {
    "en-hi": ("tico19.eng", "tico19.hin"),
    "en-bn": ("tico19.eng", "tico19.ben"),
    "en-my": ("tico19.eng", "tico19.mya"),
    "en-fa": ("tico19.eng", "tico19.fas"),
    "en-th": ("tatoeba-tha.eng", "tatoeba-tha.tha"),
    "en-ja": ("small-enja.train.en", "small-enja.train.ja"),
    "en-zh": ("wmt22-en-zh.src.en", "wmt22-en-zh.refA.zh"),
    "de-en": ("newstest.2008-2012.de", "newstest.2008-2012.en"),
    "en-fr": ("newstest.2008-2012.en", "newstest.2008-2012.fr"),
    "fr-de": ("multi30k.train.fr", "multi30k.train.de"),
}


def sample(languages: str, n: int = 2_000) -> list[tuple[str, str]]:
    """Return those of the first n pairs of a sample with text on both sides; skip the test without the files."""
    paths = [Path(os.environ.get("NMT_DATA") or "no-data") / f"{name}.gz" for name in SAMPLES[languages]]
    if not all(path.exists() for path in paths):
        pytest.skip(f"NMT_DATA does not lead to {paths[0].name} and {paths[1].name}")
    sides = (gzip.decompress(path.read_bytes()).decode("utf-8").split("\n")[:n] for path in paths)
    return [pair for pair in zip(*sides, strict=True) if all(map(str.strip, pair))]
