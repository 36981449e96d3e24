"""Subwords of another run: reused unchanged, or extended for new text."""

import json
from collections import Counter

import pytest

from nmt.cli.preprocess import main
from nmt.data.corpus import Prepared
from nmt.data.letters import BYTE_LETTERS, LONGEST_PIECE
from nmt.data.lines import write_lines
from nmt.data.subword_kinds import KINDS as SUBWORD_KINDS
from nmt.data.subword_kinds import PieceTable
from nmt.data.subwords import N_SPECIAL, Subwords
from nmt.data.vocab_from import find_subwords, given_subwords, reuse
from nmt.errors import DataError, RecipeError
from nmt.recipe.data_options import SubwordsConfig
from nmt.recipe.reader import read_recipe
from tests.data.awkward import AWKWARD
from tests.learnt import counted_words, learnt_subwords

OLD = ["the cat sat on the mat", "the dog sat, too", "cats and dogs <url>"] * 5
NEW = ["die Katze saß auf der Matte", "der Hund saß auch da", "Katzen und Hunde"] * 5
KINDS = ["bpe", "unigram", "word", "char"]


def saved(tmp_path, **options):
    old = learnt_subwords(OLD, OLD, SubwordsConfig(**{"vocab_size": 290, **options}))
    old.save(tmp_path / "subwords.json")
    return old


def reused(tmp_path, lines=NEW, talk=str, **options):
    paths = find_subwords(str(tmp_path / "subwords.json"))
    config = SubwordsConfig(**options)
    return reuse(paths, (counted_words(lines, config), counted_words(lines, config)), config, talk=talk)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("joint", [True, False])
def test_reused_subwords_are_unchanged_and_new_pieces_follow_old_ones(tmp_path, kind, joint):
    old = saved(tmp_path, kind=kind, joint=joint, symbols=("<url>",))
    assert reused(tmp_path, kind=kind, joint=joint, symbols=("<url>",)).sha256 == old.sha256
    options, account = {"kind": kind, "joint": joint, "extend": 2 if kind == "char" else 12}, []
    new = reused(tmp_path, talk=account.append, symbols=("<name>", "<url>"), **options)
    for after, before in ((new.src, old.src), (new.trg, old.trg)):
        pieces = before.table.vocab
        # "ß" is the only character of the new text that has no piece.
        assert len(after.table.vocab) == len(pieces) + (1 if kind == "char" else 12)
        assert after.table.vocab[: len(pieces)] == pieces and after.merges[: len(before.merges)] == before.merges
        assert after.symbols == ("<url>", "<name>")
        assert sum(map(len, after.encode(NEW))) < sum(map(len, before.encode(NEW)))
        for line in [*NEW, *OLD, *AWKWARD, "<name> <url>"]:
            assert after.decode(after.encode([line])[0]) == after.normalised(line)
    new.save(tmp_path / "new.json")
    assert Subwords.load(tmp_path / "new.json").src.encode(NEW) == new.src.encode(NEW)
    n_old, n_new = old.src.size, new.src.size
    assert f"{n_old} pieces of {tmp_path}/subwords.json, {n_new - n_old} new, {n_new} in all" in account[0]


def test_rare_new_characters_become_pieces_of_kind_char(tmp_path):
    saved(tmp_path, kind="char")
    assert "ж" in reused(tmp_path, ["a" * 90] * 100 + ["ж"], kind="char", extend=5).src.vocab


def test_white_space_of_the_recipe_must_be_that_of_the_subwords(tmp_path):
    saved(tmp_path)
    with pytest.raises(DataError, match="whitespace: kept, but unified there"):
        reused(tmp_path, whitespace="kept")


def test_extended_vocabulary_equals_a_large_one_learnt_on_the_same_text(tmp_path):
    large = learnt_subwords(OLD, OLD, SubwordsConfig(vocab_size=300))
    small = saved(tmp_path, vocab_size=280)
    new = reused(tmp_path, OLD, extend=20)
    assert small.src.size == 280 and new.src.size == large.src.size
    assert sum(map(len, new.src.encode(OLD))) == sum(map(len, large.src.encode(OLD)))


def test_no_new_piece_is_too_long_or_a_symbol(tmp_path):
    saved(tmp_path, symbols=("<url>",))
    new = reused(tmp_path, ["-" * 90 + " x<url>x"] * 30, symbols=("<url>",), extend=200).src
    assert max(map(len, new.vocab)) <= LONGEST_PIECE
    assert not [piece for piece in new.table.vocab if "url" in piece]


@pytest.mark.parametrize("kind", KINDS)
def test_characters_that_mean_bytes_in_pieces_become_no_new_pieces(tmp_path, kind):
    saved(tmp_path, kind=kind)
    line = "\U0010ffc3\U0010ffa9 ab \U0010ffc3\U0010ffa9 c\U0010ffc3"
    new = reused(tmp_path, [line] * 30, kind=kind, extend=20)
    new.save(tmp_path / "new.json")
    loaded = Subwords.load(tmp_path / "new.json").src
    assert loaded.decode(loaded.encode([line])[0]) == line


def test_unrelated_new_pieces_do_not_change_the_segmentation_of_old_text(tmp_path):
    for kind in ("bpe", "word"):
        old = saved(tmp_path, kind=kind)
        new = reused(tmp_path, ["ßßß ßß"] * 9, kind=kind, extend=3)
        assert new.src.encode(OLD) == old.src.encode(OLD)


def test_a_merge_that_is_found_again_keeps_its_rank():
    merges = [("b", "c"), ("a", "b"), ("ab", "c"), ("abc", "d")]
    old = PieceTable(vocab=[*BYTE_LETTERS, *map("".join, merges)], merges=merges)
    # "abcd" is a, bc, d. The new merge of a and bc gives an old piece, which is then merged with d.
    assert SUBWORD_KINDS["bpe"].extend(old, Counter({"abcd": 10}), 5).merges == [*merges, ("a", "bc")]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "word"}, "kind: word, but bpe or char there"),
        ({"joint": False}, "joint: false, but true there"),
        ({"normalize": "none"}, "normalize: none, but nfc there"),
        ({"whitespace": "kept", "extend": 5}, "whitespace: kept, but unified there"),
        ({"symbols": ()}, "symbols: <url> is missing"),
        ({"symbols": ("<url>", "at")}, "at is already an ordinary piece of"),  # already a piece of the text
    ],
)
def test_conflicting_options_are_refused(tmp_path, options, message):
    saved(tmp_path, symbols=("<url>",))
    with pytest.raises(DataError, match=message):
        reused(tmp_path, **{"symbols": ("<url>",), **options})


def test_missing_vocabulary_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"vocab_from: no .*nowhere.*Name a run"):
        find_subwords(str(tmp_path / "nowhere"))
    with pytest.raises(DataError, match=r"vocab_from: no .*subwords\.json"):
        find_subwords(str(tmp_path))
    with pytest.raises(RecipeError, match=r"subwords\.extend: has no effect without subwords\.vocab_from"):
        read_recipe(None, [("name", "x"), ("subwords.extend", "5")])


def test_data_is_prepared_with_the_subwords_of_other_data(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name, lines in (("old", OLD), ("new", NEW)):
        write_lines(f"{name}.src", [f"{n} {line}" for n, line in enumerate(lines)])
        write_lines(f"{name}.trg", [f"{line} {n}" for n, line in enumerate(lines)])

    def files(name):
        pair = [f"{name}.src", f"{name}.trg"]
        return ["--train", *pair, "--valid", *pair, "--langs", "x-a", "x-b", "--accept-alarms"]

    assert main([*files("old"), "--out", "old", "--subwords.vocab_size", "290"]) == 0
    command = [*files("new"), "--out", "new", "--vocab-from", "old", "--subwords.extend", "9"]
    capsys.readouterr()
    assert main(command) == 0
    assert (
        "joint vocabulary: 290 pieces of old/subwords.json, 9 new, 299 in all, padded to 304" in capsys.readouterr().err
    )
    old, new = Prepared.open("old"), Prepared.open("new")
    assert new.subwords.src.vocab[:287] == old.subwords.src.vocab and new.subwords.src.size == N_SPECIAL + 296
    assert main(command) == 0 and "nothing to do" in capsys.readouterr().err
    assert new.differences(read_recipe("new/recipe.yaml")) == []
    assert main([*files("old"), "--out", "old", "--subwords.vocab_size", "280", "--overwrite"]) == 0
    capsys.readouterr()
    assert main(command) == 2  # the old subwords have changed
    assert "old/subwords.json is new" in capsys.readouterr().err
    assert json.loads((tmp_path / "new" / "manifest.json").read_bytes())["inputs"][-1]["split"] == "subwords"


@pytest.mark.parametrize("name", ["manifest.json", "data.json"])
def test_modified_subwords_file_is_refused(tmp_path, name):
    """A modified file may still be a valid vocabulary. The hash in the folder of the data or run reveals it."""
    folder = tmp_path / "a"
    if name == "manifest.json":
        write_lines(tmp_path / "x", [f"{n} {line}" for n, line in enumerate(OLD)])
        pair = [str(tmp_path / "x")] * 2
        options = ["--langs", "x-a", "x-b", "--subwords.vocab_size", "290", "--data.drop_identical", "false"]
        assert main(["--train", *pair, "--valid", *pair, "--accept-alarms", "--out", str(folder), *options]) == 0
    else:
        folder.mkdir()
        (folder / name).write_text(json.dumps({"subwords": saved(folder).sha256}))
    path = folder / "subwords.json"
    assert given_subwords(find_subwords(str(folder)), joint=True).sha256 == Subwords.load(path).sha256
    content = json.loads(path.read_text(encoding="utf-8"))
    content["codecs"][0]["merges"].reverse()
    path.write_text(json.dumps(content), encoding="utf-8")
    Subwords.load(path)
    with pytest.raises(DataError, match="was changed: its SHA-256 differs"):
        given_subwords(find_subwords(str(folder)), joint=True)
