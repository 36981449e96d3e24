"""SentencePiece models as subwords: they segment every text as SentencePiece does, or are refused."""

import io
import random
from collections import Counter

import pytest

from nmt.cli.preprocess import main
from nmt.data.corpus import Prepared
from nmt.data.lines import write_lines
from nmt.data.placeholders import protected
from nmt.data.subwords import N_SPECIAL, Subwords
from nmt.data.vocab_from import find_subwords, reuse
from nmt.errors import DataError, MachineError, RecipeError
from nmt.recipe.data_options import SubwordsConfig
from nmt.recipe.draft import unsupported
from nmt.recipe.reader import read_recipe
from tests.data.awkward import AWKWARD

sentencepiece = pytest.importorskip("sentencepiece", reason="the extra sentencepiece is not installed")
pytest.importorskip("google.protobuf", reason="the extra sentencepiece is not installed")

RNG = random.Random(1)
WORDS = ["the", "cat", "cats", "sat", "on", "aab", "abab", "aaaa", "die", "Katze", "saß", "naïve",
    "1234", "日本", "(iii)", "..."]  # fmt: skip
TEXT = [" ".join(RNG.choices(WORDS, k=12)) for _ in range(150)]
NO_WORDS = Counter(), Counter()
LETTERS = "aaabb t▁  .\t\u00a0\u3000éé¨ﬁ①日本ｱﾞ\u200b\x01\u0301🙂'\u2028"
NASTY = [
    *(line for line in AWKWARD if "\0" not in line),
    *("".join(RNG.choices(LETTERS, k=RNG.randint(0, 30))) for _ in range(800)),
    *("aab" * n + "a" * n + " " + "(i" + "i" * n + ")" for n in range(1, 12)),
    "<0x41> <unk> </s> <s>  <0xFF>",
    " ".join(WORDS * 30),
    "aaaaa" * 200,
]


def trained(path, lines=TEXT, **options):
    buffer = io.BytesIO()
    base = {"vocab_size": 320, "byte_fallback": True, "character_coverage": 0.999, "model_type": "unigram"}
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=buffer, minloglevel=2, hard_vocab_limit=False, **{**base, **options}
    )
    path.write_bytes(buffer.getvalue())
    return sentencepiece.SentencePieceProcessor(model_proto=buffer.getvalue())


def imported(*paths, **options):
    models = find_subwords(*map(str, paths))
    return reuse(models, NO_WORDS, SubwordsConfig(kind="sentencepiece", **options))


def in_bytes(model, pieces):
    """Return the bytes of pieces in the notation of SentencePiece."""
    is_byte = [model.is_byte(model.piece_to_id(piece)) for piece in pieces]
    return [
        bytes([int(piece[3:5], 16)]) if byte else piece.replace("▁", " ").encode()
        for piece, byte in zip(pieces, is_byte, strict=True)
    ]


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
@pytest.mark.parametrize("options", [{}, {"normalization_rule_name": "nfkc_cf"}, {"remove_extra_whitespaces": False}])
def test_segmentation_equals_that_of_sentencepiece_on_every_line(tmp_path, kind, options):
    processor = trained(tmp_path / "m.model", model_type=kind, **options)
    codec = imported(tmp_path / "m.model").src
    for line, ids in zip([*TEXT, *NASTY], codec.encode([*TEXT, *NASTY]), strict=True):
        assert codec.raw(ids) == in_bytes(processor, processor.encode(line, out_type=str)), line
        assert codec.decode(ids) == processor.decode(processor.encode(line)), line
        assert all(N_SPECIAL <= i < codec.n_text for i in ids)


def test_lines_are_not_remembered(tmp_path):
    """Few lines repeat, and those of a large corpus would fill the memory of each process."""
    trained(tmp_path / "m.model")
    codec = imported(tmp_path / "m.model").src
    assert codec.encode(["the cat"]) == codec.encode(["the cat"]) and not codec._cache


def test_imported_model_can_be_saved_loaded_and_imported_again(tmp_path):
    trained(tmp_path / "m.model", model_type="bpe")
    subwords = imported(tmp_path / "m.model")
    subwords.save(tmp_path / "subwords.json")
    loaded = Subwords.load(tmp_path / "subwords.json")
    assert loaded.sha256 == subwords.sha256 and loaded.src.encode(NASTY) == subwords.src.encode(NASTY)
    assert imported(tmp_path / "subwords.json").sha256 == subwords.sha256
    with pytest.raises(DataError, match="kind: bpe, but sentencepiece there"):
        reuse(find_subwords(str(tmp_path / "subwords.json")), NO_WORDS, SubwordsConfig())
    text = (tmp_path / "subwords.json").read_text("utf-8")
    for old, new in (('"model":"', '"model":"AAAA'), ('"model":', '"squeeze":true,"model":'), ('" ",', '" "," xx",')):
        (tmp_path / "w.json").write_text(text.replace(old, new), "utf-8")
        with pytest.raises(DataError, match=r"(not a model|squeeze|not those of the model).* Run nmt-preprocess again"):
            Subwords.load(tmp_path / "w.json")


def test_symbols_and_placeholders_come_after_the_pieces(tmp_path):
    trained(tmp_path / "m.model")
    plain = imported(tmp_path / "m.model").src
    config = SubwordsConfig(kind="sentencepiece", symbols=("<name>",))
    models = find_subwords(str(tmp_path / "m.model"))
    codec = reuse(models, NO_WORDS, config, protect=["url"]).src
    assert codec.table.vocab == plain.vocab and codec.encode(TEXT) == plain.encode(TEXT)
    text, items = protected("the cat <name> http://a.org/b", ["url"])
    (ids,) = codec.encode([text])
    assert codec.pieces(ids)[-1] == "⟨url1⟩" and "<name>" in codec.pieces(ids)
    assert codec.decode(ids, items) == "the cat <name> http://a.org/b"
    assert codec.cut(codec.raw([5 + N_SPECIAL])[0].decode()) == [5 + N_SPECIAL]


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ({"byte_fallback": False}, "no byte_fallback"),
        ({"user_defined_symbols": ["<x>"]}, "user_defined_symbols"),
        ({"add_dummy_prefix": False}, "add_dummy_prefix=false"),
        ({"treat_whitespace_as_suffix": True}, "treat_whitespace_as_suffix"),
        ({"model_type": "char"}, "model_type other than"),
        ({"split_by_whitespace": False, "vocab_size": 400, "character_coverage": 1.0}, "contain a space"),
        *((content, "not a model of SentencePiece") for content in (b"", b"\xff\xfe no model", b"[]")),
    ],
)
def test_invalid_and_unsupported_models_are_refused_with_the_reason(tmp_path, model, message):
    path = tmp_path / "m.model"
    path.write_bytes(model) if isinstance(model, bytes) else trained(path, **model)
    with pytest.raises(DataError, match=message):
        imported(path)


def test_error_without_the_package_gives_the_pip_command(tmp_path, monkeypatch):
    trained(tmp_path / "m.model")
    imported(tmp_path / "m.model").save(tmp_path / "subwords.json")
    monkeypatch.setitem(__import__("sys").modules, "sentencepiece", None)
    with pytest.raises(MachineError, match=r"m\.model, a model of .* pip install 'sentencepiece>=.*' 'protobuf>="):
        imported(tmp_path / "m.model")
    with pytest.raises(MachineError, match=r"kind: sentencepiece.* pip install 'sentencepiece>="):
        Subwords.load(tmp_path / "subwords.json")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"vocab_from": "m.model"}, "subwords.kind: bpe, but subwords.vocab_from is a model"),
        ({"kind": "sentencepiece"}, "subwords.kind: sentencepiece needs a trained model"),
        ({"kind": "sentencepiece", "vocab_from": "m.spm", "extend": "5"}, "subwords.extend"),
        ({"kind": "sentencepiece", "vocab_from": "m.spm", "normalize": "nfkc"}, "subwords.normalize"),
        ({"kind": "sentencepiece", "vocab_from": "a.spm,b.spm"}, "subwords.joint is true"),
        ({"kind": "sentencepiece", "vocab_from": "a.spm,b.spm,c.spm", "joint": "false"}, "name 2 at most"),
    ],
)
def test_incompatible_options_are_refused(options, message):
    unshared = [("model.emb_src_trg_weight_sharing", "false")]
    with pytest.raises(RecipeError, match=message):
        read_recipe(None, [("name", "x"), *unshared, *((f"subwords.{name}", value) for name, value in options.items())])


@pytest.mark.parametrize("joint", [True, False])
def test_data_is_prepared_with_one_model_or_two(tmp_path, monkeypatch, joint, capsys):
    monkeypatch.chdir(tmp_path)
    models = [trained(tmp_path / f"{side}.model", vocab_size=n) for side, n in (("src", 300), ("trg", 320))]
    for side in ("de", "en"):
        write_lines(side, [f"{line} {side}" for line in TEXT])
    files = "src.model" if joint else "src.model,trg.model"
    command = "--train de en --valid de en --accept-alarms --langs de en --out out --subwords.kind sentencepiece"
    command += f" --subwords.joint {str(joint).lower()} --vocab-from {files} --model.emb_src_trg_weight_sharing false"
    assert main(command.split()) == 0
    assert "that this one starts from" not in capsys.readouterr().err  # the model belongs to no run
    data = Prepared.open("out")
    assert data.subwords.joint is joint
    codecs = (data.subwords.src, data.subwords.trg)
    sides = zip(
        models[:1] * 2 if joint else models, codecs, data.valid.texts(), data.valid.pairs(range(150)), strict=True
    )
    for model, codec, lines, rows in sides:
        for line, ids in zip(lines, rows, strict=True):
            assert codec.raw(ids.tolist()) == in_bytes(model, model.encode(line, out_type=str)), line
    assert main(command.split()) == 0
    assert "already prepared" in capsys.readouterr().err
    trained(tmp_path / "src.model", TEXT[:50], vocab_size=310)
    assert main(command.split()) == 2
    assert "src.model is new" in capsys.readouterr().err


def test_huggingface_export_is_not_supported():
    recipe = read_recipe(None, [("name", "x"), ("subwords.kind", "sentencepiece"), ("subwords.vocab_from", "m.spm")])
    assert any("subwords.kind: sentencepiece" in reason for reason in unsupported(recipe)["huggingface"])
