"""Text to ids and back."""

import json
import os
import random
import subprocess
import sys
import time
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nmt.data.letters import draw_sample
from nmt.data.subwords import BOS, EOS, N_SPECIAL, PAD, Subwords
from nmt.data.text import unified
from nmt.errors import DataError
from nmt.recipe.data_options import SubwordsConfig
from tests.data.awkward import AWKWARD
from tests.learnt import learnt_subwords

SRC = ["ein Mann schläft auf einem Sofa", "zwei Männer und ein Hund", "</s> <pad> ist nur Text"] * 10
TRG = ["a man sleeps on a sofa", "two men and a dog", "</s> <pad> is just text"] * 10


def trained(**options):
    return learnt_subwords(SRC, TRG, SubwordsConfig(**{"vocab_size": 320, **options}))


CODEC = trained().src
CODECS = {kind: trained(kind=kind, symbols=("<url>", "@@x")).src for kind in ("bpe", "unigram", "word", "char")}


def nfc(text):
    return unicodedata.normalize("NFC", unified(text))


FRAGMENTS = st.sampled_from(["<url>", "@@x", "ein", "Hund", "é", "日本", "</s>", "<", "url>", ".", " ", "  ", "\t"])


@pytest.mark.parametrize("kind", CODECS)
@given(st.text(st.characters(exclude_categories=["Cs"])) | st.lists(FRAGMENTS, max_size=8).map("".join))
@settings(max_examples=50, deadline=None)
def test_every_kind_round_trips_any_text_without_unknown_ids(kind, text):
    codec = CODECS[kind]
    [ids] = codec.encode([text])
    assert codec.decode(ids) == nfc(text)
    assert all(N_SPECIAL <= i < codec.size for i in ids)


def test_control_and_padding_ids_decode_to_no_text():
    [ids] = CODEC.encode(["ein Hund"])
    assert CODEC.decode([BOS, *ids, CODEC.size, CODEC.n_vocab + 5, EOS, PAD]) == "ein Hund"
    assert CODEC.n_vocab % 8 == 0 and CODEC.size <= CODEC.n_vocab < CODEC.size + 8


def test_pieces_are_readable():
    [ids] = CODEC.encode(["ein Mann €"])
    pieces = CODEC.pieces([BOS, *ids, EOS])
    assert pieces[0] == "<s>" and pieces[-1] == "</s>" and pieces[1] == "▁ein" and "<E2>" in pieces
    assert len(pieces) == len(ids) + 2


def test_line_encodes_the_same_alone_and_among_others():
    lines = [*SRC, *AWKWARD]
    found = CODEC.encode(lines)
    fresh_codec = trained().src
    assert found == [fresh_codec.encode([line])[0] for line in lines]
    assert [CODEC.decode(ids) for ids in found] == list(map(nfc, lines))
    assert not {PAD, BOS, EOS} & {i for ids in found for i in ids}


@pytest.mark.parametrize("joint", [True, False])
@pytest.mark.parametrize("kind", ["bpe", "unigram", "word", "char"])
@pytest.mark.parametrize("symbols", [(), ("<url>",)])
def test_saved_vocabulary_loads_unchanged(tmp_path, joint, kind, symbols):
    before = trained(joint=joint, kind=kind, symbols=symbols)
    before.save(tmp_path / "subwords.json")
    after = Subwords.load(tmp_path / "subwords.json")
    assert (after.sha256, after.joint, after.normalize) == (before.sha256, joint, "nfc")
    for saved, loaded in ((before.src, after.src), (before.trg, after.trg)):
        lines = [*SRC, *AWKWARD, "ein <url> und a<url>"]
        assert saved.encode(lines) == loaded.encode(lines)
        assert (loaded.symbols, loaded.size) == (symbols, saved.size)


def test_training_does_not_depend_on_threads_or_hash_seed():
    """Compare this process with another that has a single thread and a different hash seed."""
    code = "from tests.data.vocabulary.test_subwords import digests; print(digests())"
    root = Path(__file__).parents[3]
    seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    env = {**os.environ, "RAYON_NUM_THREADS": "1", "PYTHONHASHSEED": seed}
    process = subprocess.run([sys.executable, "-c", code], env=env, cwd=root, check=True, capture_output=True)
    assert process.stdout == f"{digests()}\n".encode()


def digests():
    vocabularies = [trained(joint=False, kind=kind) for kind in ("bpe", "unigram", "word", "char")]
    return [(subwords.sha256, subwords.src.encode(["ein Hund"])) for subwords in vocabularies]


def test_sample_is_seeded_and_has_the_requested_size():
    flags = list(draw_sample(200, 30, seed=1))
    assert len(flags) == 200 and sum(flags) == 30 and all(draw_sample(100, 100, seed=1))
    assert flags == list(draw_sample(200, 30, seed=1)) != list(draw_sample(200, 30, seed=2))


def test_long_line_without_spaces_takes_little_time():
    long_line = "".join(random.Random(1).choices("abcdefghijklmnop", k=100_000))
    start = time.process_time()
    codec = learnt_subwords([long_line] * 3, TRG, SubwordsConfig(vocab_size=2000)).src
    assert codec.decode(codec.encode([long_line])[0]) == long_line
    assert time.process_time() - start < 10


def test_no_piece_is_longer_than_64_characters():
    codec = learnt_subwords(["-" * 300] * 50, TRG, SubwordsConfig(vocab_size=600)).src
    assert max(map(len, codec.vocab)) <= 64
    assert len(codec.encode(["-" * 6400])[0]) >= 100


@pytest.mark.parametrize(
    ("kind", "change", "expected"),
    [
        ("bpe", lambda c: c.update(format=5), "format .*4"),
        ("bpe", lambda c: c.update(extra=1), "extra .*not permitted"),
        ("bpe", lambda c: c.update(normalize="nfd"), "normalize .*'nfkc'"),
        ("bpe", lambda c: c.update(whitespace="gone"), "whitespace .*'unified'"),
        ("bpe", lambda c: c.update(kind="wordpiece"), "expected the kind"),
        ("bpe", lambda c: c.update(symbols="<url>"), "symbols .*valid array"),
        ("bpe", lambda c: c.update(symbols=["a b"]), "'a b' is not a symbol"),
        ("bpe", lambda c: c.update(symbols=["<url>", "<url>"]), "occurs twice"),
        ("bpe", lambda c: c.update(joint=False), "number of vocabularies"),
        ("bpe", lambda c: c["codecs"][0]["vocab"].pop(0), "byte is missing"),
        ("bpe", lambda c: c["codecs"][0]["vocab"].append("<0xE3>"), "letters of its format"),
        ("bpe", lambda c: c["codecs"][0]["vocab"].append("\U0010ffe3\U0010ff81"), "letters of its format"),
        ("bpe", lambda c: c["codecs"][0]["vocab"].append("\ud800"), "JSON"),
        ("bpe", lambda c: c["codecs"][0]["vocab"].append(c["codecs"][0]["vocab"][3]), "twice"),
        ("bpe", lambda c: c["codecs"][0]["merges"].append(["q", "z"]), "not in the vocabulary"),
        ("bpe", lambda c: c["codecs"][0]["merges"].append(["q"]), r"merges\.\d+\.1 Field required"),
        ("bpe", lambda c: c["codecs"][0].update(pre_tokenizer={"type": "Split"}), "pre_tokenizer"),
        ("unigram", lambda c: c["codecs"][0]["scores"].pop(), "one score for each"),
        ("unigram", lambda c: c["codecs"][0]["scores"].__setitem__(0, 1.0), "logarithm"),
        ("unigram", lambda c: c["codecs"][0]["scores"].__setitem__(0, "x"), r"codecs\.0\.scores\.0 .*valid number"),
        ("unigram", lambda c: c["codecs"][0].pop("scores"), "one score for each"),
        *(("", content, r"subwords\.json") for content in (b"", b"{", b"\xff", b"[" * 100_000, b"null")),
    ],
)
def test_foreign_or_damaged_vocabulary_is_refused(tmp_path, kind, change, expected):
    path = tmp_path / "subwords.json"
    if kind:
        content = json.loads(trained(kind=kind).file.text())
        change(content)
    path.write_bytes(json.dumps(content).encode() if kind else change)
    with pytest.raises(DataError, match=expected):
        Subwords.load(path)


def test_pieces_of_kind_char_are_single_characters():
    lines = ["größer 年年月 1994", "年 größte 日 — naïve"] * 5
    codec = learnt_subwords(lines, lines, SubwordsConfig(kind="char")).src
    for line in [*lines, "日月年", "x"]:
        assert [piece.replace("▁", " ") for piece in codec.pieces(*codec.encode([line]))] == [" ", *line]
    for line in AWKWARD:  # unseen characters are written byte by byte
        assert codec.decode(*codec.encode([line])) == nfc(line)
        for raw in codec.raw(*codec.encode([line])):
            assert len(raw.decode("utf-8", errors="ignore")) <= 1
    full = learnt_subwords(lines, lines, SubwordsConfig(kind="char", vocab_size=264)).src
    assert full.size == 264 and full.decode(*full.encode(["größer 年"])) == "größer 年"
