"""Swapped source and target files: detected by their words, without false alarms."""

import random

import pytest

from nmt.data.prepare import are_swapped, words_of
from nmt.recipe.data_options import TrainingCorpus
from tests.data.reporting.test_report import report_of
from tests.data.test_prepare import write

DE = [
    "der", "die", "das", "und", "nicht", "mit", "von", "auf", "ein", "ist", "wir", "sie", "haben", "werden", "auch",
    "nach", "bei", "aus",
]  # fmt: skip
EN = [
    "the", "of", "and", "to", "in", "that", "is", "was", "for", "on", "with", "as", "they", "have", "will", "also",
    "after", "from",
]  # fmt: skip
NAMES = [f"Name{letter}" for letter in "abcdefghijklmnopqrstuvwxyz"]


def lines(words, n, seed=1, names=NAMES):
    rng = random.Random(seed)
    return [" ".join([*rng.choices(words, k=6), *rng.choices(names, k=3)]) for _ in range(n)]


def swapped(src, trg, train_src, train_trg):
    return are_swapped(*map(words_of, (src, trg, train_src, train_trg)))


@pytest.mark.parametrize("n", [5, 500])
def test_swapped_sides_are_detected_in_few_lines_and_in_another_domain(n):
    other_names = [f"Ort{letter}" for letter in "abcdefghijklmnop"]
    valid = lines(DE, n, 2, other_names), lines(EN, n, 3, other_names)
    training = lines(DE, 500, 4), lines(EN, 500, 5)
    assert swapped(*valid, *training[::-1]) and swapped(*valid[::-1], *training)
    assert not swapped(*valid, *training) and not swapped(*valid[::-1], *training[::-1])


def test_sides_of_one_language_or_without_words_are_not_judged():
    same = [lines(DE, 200, seed) for seed in range(4)]
    assert not swapped(*same)
    assert not swapped(["12+3"] * 50, ["15"] * 50, ["15"] * 50, ["12+3"] * 50)
    assert not swapped(lines(DE, 50, 1), lines(DE, 50, 2), lines(EN, 200, 3), lines(DE, 200, 4))
    assert not swapped([], [], *same[:2])


def test_languages_without_spaces_are_detected_by_their_characters():
    ja = ["これは本です。私は学生ではありません。", "彼女は昨日東京へ行きました。"] * 20
    assert swapped(ja, lines(EN, 40), lines(EN, 300, 2), ja)
    assert not swapped(ja, lines(EN, 40), ja, lines(EN, 300, 2))


def test_swap_alarm_names_the_files_unless_tags_mark_both_directions(tmp_path):
    valid = lines(EN, 50, 1), lines(DE, 50, 2)
    report = report_of(tmp_path, lines(DE, 300, 3), lines(EN, 300, 4), valid=valid, max_ratio=0)
    (swap,) = report["swapped"]
    names = {side: str(tmp_path / name) for side, name in (("src", "v.de"), ("trg", "v.en"), ("train_src", "t.de"))}
    assert swap == {"split": "valid", **names, "train_trg": str(tmp_path / "t.en")}
    (alarm,) = [alarm["found"] for alarm in report["alarms"] if "look swapped" in alarm["found"]]
    assert f"the words of {names['train_src']}, the source, are those of {names['trg']}, a target" in alarm
    both_directions = [
        TrainingCorpus(
            src=write(tmp_path / f"{n}.a", lines(src, 300, 5)), trg=write(tmp_path / f"{n}.b", lines(trg, 300)), **langs
        )
        for n, (src, trg, langs) in enumerate(
            ((DE, EN, {"src_lang": "de", "trg_lang": "en"}), (EN, DE, {"trg_lang": "de"}))
        )
    ]
    (tmp_path / "more").mkdir()
    assert not report_of(tmp_path / "more", valid=valid, train=both_directions, max_ratio=0)["swapped"]
