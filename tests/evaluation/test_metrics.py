import gzip
import json
import os
import subprocess
import sys
import unicodedata
from pathlib import Path
from typing import get_args

import pytest

from nmt.errors import DataError
from nmt.evaluation.metrics import (
    METRICS,
    Metric,
    Score,
    Texts,
    bleu_tokens,
    exact_match,
    reference_notes,
    score,
)
from nmt.languages import canonical
from nmt.recipe.options import ValidConfig

# From the table in sacreBLEU's README: BLEU (13a) and chrF2 on newstest2017 en-de. The first system output begins
# with a byte order mark, the second does not.
PUBLISHED = {"online-A.0": ("20.8", "52.0"), "LIUM-NMT.4900": ("26.6", "55.9")}
# Translations, and references: plain, in Unicode, and with carriage returns and blanks.
FILES = (
    [
        "The cat sat.", "A second line, here!", "Übung macht den Meister …", "日本語 と 🙂", "naïve ﬁn", "a b\rc d", "",
        "x\u2028y z w\x0b v", "  ",
    ],
    [
        "The cat sat.", "One second line is here!", "Übung macht Meister…", "日本 と 🙃", "naive fin", "a b c d", "b",
        "x y z w v", "e",
    ],
)  # fmt: skip


def wmt17(name: str) -> list[str]:
    folder = os.environ.get("NMT_DATA")
    path = Path(folder or ".") / f"wmt17-en-de.{name}.de.gz"
    if not folder or not path.exists():
        pytest.skip(f"NMT_DATA does not lead to {path.name}")
    # A mark U+FEFF at the start of online-A is part of the published text, so bytes are only decoded here.
    return gzip.decompress(path.read_bytes()).decode("utf-8").removesuffix("\n").split("\n")


@pytest.mark.parametrize("system", PUBLISHED)
def test_bleu_and_chrf_of_wmt17_systems_equal_the_published_ones(system):
    found = score(Texts(wmt17(f"hyp.{system}"), [wmt17("ref")]), ("bleu", "chrf"))
    assert (f"{found['bleu'].value:.1f}", f"{found['chrf'].value:.1f}") == PUBLISHED[system]
    assert "tok:13a" in found["bleu"].signature


def test_several_references_are_scored_as_by_the_sacrebleu_command(tmp_path):
    hypotheses, first = FILES
    second = ["", *hypotheses[1:-1], "something else."][: len(first)]
    for path, lines in zip(("hyp", "ref1", "ref2"), (hypotheses, first, second), strict=True):
        (tmp_path / path).write_bytes("".join(line + "\n" for line in lines).encode("utf-8"))
    files = [str(tmp_path / "ref1"), str(tmp_path / "ref2"), "-i", str(tmp_path / "hyp")]
    command = [sys.executable, "-m", "sacrebleu", *files, "-m", "bleu", "chrf", "ter", "-w", "8", "-f", "json"]
    printed = json.loads(subprocess.run(command, capture_output=True, check=True, encoding="utf-8").stdout)
    scores = score(Texts(hypotheses, [first, second])).values()
    found = [(metric.name, metric.signature, round(metric.value, 8)) for metric in scores]
    assert found == [(metric["name"], metric["signature"], metric["score"]) for metric in printed]
    assert all(metric.signature.startswith("nrefs:2|") for metric in scores)
    assert found != [
        (metric.name, metric.signature, round(metric.value, 8)) for metric in score(Texts(hypotheses, [first])).values()
    ]


@pytest.mark.parametrize("function", [score, exact_match])
def test_unequal_line_counts_and_empty_input_are_refused(function):
    with pytest.raises(DataError, match="translation has 2 lines but the reference has 3"):
        function(Texts(["a", "b"], [["a", "b", "c"]]))
    with pytest.raises(DataError, match="nothing to compare"):
        function(Texts([], [[]]))


HYPOTHESES = ["the cat sat on the mat", "a dog ran in the park", "he saw her there"] * 20
REFERENCES = ["the cat sat on a mat", "a dog ran in the park", "she saw him there"] * 20
FEW_MATCHES = ["a b c d e f", *["q q q q q q q q q"] * 19], ["a b c d e f", "x", "y", "z", "v w"] * 4


@pytest.mark.parametrize(
    ("hypotheses", "references"),
    [
        (HYPOTHESES, REFERENCES),
        FEW_MATCHES,
        *((["", "a b", "a b"], [a, b, "a b"]) for a, b in (("", ""), ("a b", "x"), ("x", "x"))),
    ],
)
def test_confidence_intervals_contain_the_score_and_name_the_method(hypotheses, references):
    texts = Texts(hypotheses, [references])
    for found in score(texts, intervals=True).values():
        assert 0.0 <= found.low <= found.value <= found.high and (found.name == "TER" or found.high <= 100.0), (
            found.text
        )
        assert "bs:1000|" in found.signature and "95 %" in found.text
    for found in score(texts).values():
        assert found.low is None and found.high is None and "bs:" not in found.signature


@pytest.mark.parametrize("code", ["zh", "zh-CN", "zh_Hant", "ZH", "zho_Hans", "cmn", "yue", "chinese"])
def test_chinese_is_scored_with_the_chinese_tokenizer(code):
    found = score(Texts(["我们去公园。"], [["我们走公园。"]], trg_lang=code))
    assert "tok:zh" in found["bleu"].signature
    assert 0 < found["ter"].value < 100


@pytest.mark.parametrize("code", ["ja", "jpn", "jpn_Jpan", "japanese", "ko", "kor_Hang"])
def test_a_missing_tokenizer_is_replaced_by_characters_with_a_note(code, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    tokens, note = bleu_tokens(code)
    assert tokens == "char"
    assert f"sacrebleu[{canonical(code)}]" in note
    assert "tok:char" in score(Texts(["a b"], [["a b"]], trg_lang=code), ("bleu",))["bleu"].signature


@pytest.mark.parametrize("code", ["", "de", "en", "trg", "zhx", "vi", "hi", "x-dates"])
def test_other_languages_are_scored_with_13a(code):
    assert bleu_tokens(code) == ("13a", None)


@pytest.mark.parametrize("code", ["th", "tha", "tha_Thai", "khm_Khmr", "my", "mya", "lo", "bo", "dz", "thai"])
def test_languages_without_spaces_are_scored_by_characters_with_a_note(code):
    tokens, note = bleu_tokens(code)
    assert tokens == "char" and "BLEU counts characters (tok:char): " in note and "no spaces between words" in note
    # Each hypothesis lacks one character, so hardly any space-separated word matches.
    references = ["ฉันไม่รู้ว่าจะพูดอะไรดี", "เขาเป็นเพื่อนของฉัน", "วันนี้อากาศดีมาก"]
    hypotheses = [line[: len(line) // 2] + line[len(line) // 2 + 1 :] for line in references]
    texts = Texts(hypotheses, [references], trg_lang=code)
    found, by_words = (score(variant, ("bleu",))["bleu"] for variant in (texts, texts._replace(trg_lang="")))
    assert "tok:char" in found.signature and found.value > 75 > 20 > by_words.value


def test_references_without_spaces_give_a_note_where_bleu_counts_words():
    japanese = ["彼は水泳が得意ではなかった。", "私はテニス部員です。"]
    for code in ("", "x-own", "xx", "en"):
        (note,) = reference_notes([japanese], code)
        assert "look written without spaces (11 letters a word)" in note
    assert not list(reference_notes([japanese], "ja"))
    spaced = ["彼 は 水泳 が 得意 で は なかっ た 。"], ["A dog runs.", "Donaudampfschifffahrtsgesellschaftskapitän"]
    assert not list(reference_notes([*spaced, [], [""], ["파란 셔츠를 입은 남자가"]], ""))


def test_canonically_equivalent_texts_score_as_equal_and_the_signature_says_so():
    # Letters that NFC decomposes, letters that it composes, and plain text.
    references = [
        "\u09b9\u09df \u09a8\u09be \u0998\u09cb\u09dc\u09be \u09ac\u09be",
        "cha\u0302 die\u0302u i a",
        "a b c d",
    ]
    for form in ("NFC", "NFD"):
        texts = Texts([unicodedata.normalize(form, line) for line in references], [references])
        found = score(texts, intervals=True)
        assert [round(metric.value, 9) for metric in found.values()] == [100.0, 100.0, 0.0]
        assert all(metric.signature.endswith("|form:NFC") for metric in found.values())
        assert exact_match(texts) == 100.0
    assert "form:" not in score(Texts(["é"], [["é"]]), ("chrf",))["chrf"].signature


def test_tokenised_references_give_a_note_and_raw_ones_do_not():
    raw = ["A dog runs.", "It barks.", "A cat . . .", "no"]
    (note,) = reference_notes([raw, ["a dog runs .", "it barks .", "a cat ?", "no."], []], "")
    assert "2 of 4 references end in a full stop after a space" in note


def test_an_exact_match_may_be_with_any_reference():
    texts = Texts(["a", "b", "c"], [["a", "x", "x"], ["x", "b ", "x"], ["a", "x", "x"]])
    assert exact_match(texts) == pytest.approx(200 / 3)


def test_a_registered_metric_reads_sources_hypotheses_and_references(monkeypatch):
    def copied(texts, n_bootstrap):
        same = sum(
            a == b and a != c for a, b, c in zip(texts.sources, texts.hypotheses, *texts.references, strict=True)
        )
        return Score("copied", 100.0 * same / len(texts.sources), "v1", None, None, "")

    monkeypatch.setitem(METRICS, "copied", Metric("copied", copied, higher_is_better=False))
    found = score(Texts(["a", "b", "c"], [["a", "x", "y"]], sources=["a", "b", "z"]))
    assert [*found] == ["bleu", "chrf", "ter", "copied"] and found["copied"].value == pytest.approx(100 / 3)


def test_valid_metric_accepts_every_metric_of_the_table():
    assert set(get_args(ValidConfig.model_fields["metric"].annotation)) == {*METRICS, "loss", "accuracy"}
