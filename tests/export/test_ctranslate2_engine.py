"""nmt-translate --engine ctranslate2: our front end and our scores around their search."""

import json

import pytest
import torch
from tiny import made, saved

import nmt
from nmt.cli.translate import main
from nmt.decoding.scoring.scorer import length_divisor, score_tokens
from nmt.errors import NmtError, RecipeError, RunError
from nmt.export import ctranslate2 as room
from nmt.export.ctranslate2_engine import Loaded, refused
from nmt.export.safetensors import copy_front_end
from nmt.recipe.decode_options import DecodeConfig

pytest.importorskip("ctranslate2")

SOURCE = "the ship\n\nthe old ship left\nfür Übung\n \nin May\nthe ship\n"
CPU = torch.device("cpu")
SHORT = ["--decode.max_len_a", "0", "--decode.max_len_b", "6", "--device", "cpu", "--threads", "1"]


def written(place, subwords, liking):
    """A run and what was exported of it. Their model likes what no translation has, and the end so much."""
    model, recipe = made(subwords, trg_emb_prj_weight_sharing="false")
    with torch.no_grad():
        always = model.decoder.layer_stack[-1].pos_ffn.layer_norm.bias
        model.trg_word_prj.weight[[0, 1, *range(subwords.trg.size, subwords.trg.n_vocab)]] = 1.5 * always
        model.trg_word_prj.weight[2] = liking * always
    run = saved(place / "run", subwords, model, recipe)
    room.export(model, recipe.model, subwords, place / "ct2", None)
    copy_front_end(run, place / "ct2")
    return place


@pytest.fixture(scope="module")
def folders(subwords, tmp_path_factory):
    place = written(tmp_path_factory.mktemp("engine"), subwords, 1.2)
    (place / "in").write_text(SOURCE, encoding="utf-8")
    return place


@pytest.fixture
def translate(folders, capsysbinary):
    def call(folder, *flags, code=0):
        assert main([str(folders / folder), "--input", str(folders / "in"), *SHORT, *map(str, flags)]) == code
        out, err = capsysbinary.readouterr()
        assert b"Traceback" not in err
        return out.decode("utf-8").split("\n")[:-1], err.decode("utf-8")

    return call


def test_greedy_translations_and_their_scores_are_those_of_the_run(translate):
    how = ["--decode.beam", 1, "--format", "jsonl"]
    ours = [json.loads(line) for line in translate("run", *how)[0]]
    theirs = [json.loads(line) for line in translate("ct2", "--engine", "ctranslate2", *how)[0]]
    assert [one["flags"] for one in ours].count(["blank"]) == 2
    assert len(theirs) == 7 and theirs[0]["output"] == theirs[6]["output"]
    for one, two in zip(ours, theirs, strict=True):
        for name in "output", "tokens", "flags":
            assert two[name] == one[name]
        for name in "log_prob", "score", "token_log_probs":
            assert two[name] == pytest.approx(one[name], abs=1e-4)


@pytest.mark.parametrize("penalty", ["wu", "average", "none"])
def test_the_two_best_are_the_first_of_the_four_best(folders, penalty):
    """Also where the cap ended some of them, whose last step CTranslate2 does not count."""
    how = {"beam": 4, "length_penalty": penalty, "max_len_a": 0.0, "max_len_b": 6}
    loaded, lines = Loaded(folders / "ct2", CPU), SOURCE.split("\n")
    two, four = (loaded.translator(DecodeConfig(n_best=n, **how)).translate(lines) for n in (2, 4))
    assert [one.texts for one in two] == [one.texts[:2] for one in four]


def test_a_model_may_have_nothing_to_say(subwords, tmp_path):
    place, config = written(tmp_path, subwords, 2.0), DecodeConfig(beam=1)
    for translator in nmt.load(place / "run", device="cpu"), Loaded(place / "ct2", CPU):
        (found,) = translator.translator(config).translate(["old"])
        assert found.text == "" and found.hypotheses[0].finished


@pytest.mark.parametrize("penalty", ["wu", "average", "none"])
def test_scores_are_what_the_run_itself_says_of_what_was_found(folders, penalty):
    """However the search ends: by itself or at the cap."""
    config = DecodeConfig(beam=4, n_best=4, length_penalty=penalty, alpha=0.7, max_len_a=0.0, max_len_b=6)
    model, ended = nmt.load(folders / "run", device="cpu").model, set()
    for translation in Loaded(folders / "ct2", CPU).translator(config).translate(SOURCE.split("\n")):
        scores = [one.normalised for one in translation.hypotheses]
        assert scores == sorted(scores, reverse=True) and len(scores) == (4 if translation.src_ids else 0)
        for one in translation.hypotheses:
            assert one.score == pytest.approx(sum(*score_tokens(model, [translation.src_ids], [one.ids])), abs=1e-4)
            divisor = length_divisor(torch.tensor(len(one.ids) + 1), penalty, 0.7)
            assert one.normalised == pytest.approx(one.score / float(divisor))
            assert one.finished or len(one.ids) == 6
            ended.add(one.finished)
    assert ended == {True, False}


def test_given_translations_are_scored_alike(translate, folders):
    (folders / "given").write_text("May\nthe\n\nold old\nx\nship\nMay\n", encoding="utf-8")
    ours = translate("run", "--score", folders / "given")[0]
    theirs = translate("ct2", "--engine", "ctranslate2", "--score", folders / "given")[0]
    assert [float(one) for one in theirs] == pytest.approx([float(one) for one in ours], abs=1e-4)


def test_control_symbols_and_padding_never_come_out(folders, subwords):
    config = DecodeConfig(beam=4, n_best=4, max_len_a=0.0, max_len_b=30)
    translator = Loaded(folders / "ct2", CPU).translator(config)
    for translation in translator.translate(SOURCE.split("\n")):
        for one in translation.hypotheses:
            assert all(2 < i < subwords.trg.size for i in one.ids) and len(one.ids) <= 30


def test_minimum_bayes_risk_chooses_among_their_hypotheses(folders):
    loaded = Loaded(folders / "ct2", CPU)
    (found,) = loaded.translator(DecodeConfig(beam=4, mbr="chrf", max_len_b=6, max_len_a=0.0)).translate(["in May"])
    assert len(found.utilities) == 1 and 0.0 < found.utilities[0] < 99.0  # of several that are not alike


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--decode.samples", 4, "--decode.top_p", 0.9], "decode.samples: 4 (by default 0), decode.top_p: 0.9"),
        (["--mbr", 8], "decode.samples: 8"),
        (["--trg-lang", "fr"], "decode.trg_lang: fr, but the model translates into und: choose one of those"),
        (["--decode.precision", "bf16"], "nmt-export --quantization"),
        (["--attention", "a.png"], "--attention"),
        (["--checkpoint", "update-1"], "--checkpoint"),
    ],
)
def test_what_ctranslate2_has_not_is_refused_by_name(translate, flags, message):
    assert message in translate("ct2", "--engine", "ctranslate2", *flags, code=2)[1]


def test_the_language_that_the_model_writes_may_be_named(translate, folders, tmp_path):
    lang = nmt.load(folders / "run", device="cpu").recipe.data.trg_lang
    engine = "--engine", "ctranslate2"
    plain = translate("ct2", *engine)[0]
    assert translate("ct2", *engine, "--trg-lang", lang)[0] == plain
    lines = [json.dumps({"source": line, "trg_lang": lang}) for line in SOURCE.split("\n")[:-1]]
    (tmp_path / "own").write_text("\n".join(lines) + "\n", encoding="utf-8")
    assert translate("ct2", *engine, "--input", tmp_path / "own", "--input-format", "jsonl")[0] == plain


def test_every_option_that_changes_the_search_is_known_or_refused():
    """An option that is added one day is refused until somebody decides what it is here."""

    class Later(DecodeConfig):
        new: int = 0

    assert not list(refused(Later(beam=2, n_best=2, alpha=0.5, mbr="none", max_tokens=9, window=3)))
    assert list(refused(Later(new=1, beam=2))) == ["decode.new: 1 (by default 0)"]


def test_a_folder_of_the_other_kind_is_named(translate, folders, tmp_path, capsysbinary):
    assert "translate with --engine ctranslate2" in translate("ct2", code=2)[1]
    assert "nmt-export" in translate("run", "--engine", "ctranslate2", code=2)[1]
    assert main([str(folders / "ct2"), str(folders / "ct2"), "--engine", "ctranslate2"]) == 2
    assert "name one folder" in capsysbinary.readouterr().err.decode()
    with pytest.raises(RunError, match=r"no such folder\. Make it: nmt-export runs/NAME --to .* --output .*/absent$"):
        Loaded(tmp_path / "absent", CPU)
    (tmp_path / "model.bin").write_bytes(b"")
    with pytest.raises(RunError, match=r"recipe\.yaml or subwords\.json is missing"):
        Loaded(tmp_path, CPU)


def test_attention_is_not_to_be_had(folders):
    translator = Loaded(folders / "ct2", CPU).translator(DecodeConfig(max_len_b=3))
    (found,) = translator.translate(["in May"])
    with pytest.raises(NmtError, match="looks at the source"):
        translator.attention(found)


def test_the_options_are_checked_before_anything_is_translated(folders):
    with pytest.raises(RecipeError, match=r"decode\.samples"):
        Loaded(folders / "ct2", CPU).translator(DecodeConfig(samples=2))


def test_the_exported_folder_is_no_run_of_ours(folders):
    with pytest.raises(RunError, match=r"ct2 is a model of CTranslate2, .* nmt-translate --engine ctranslate2"):
        nmt.load(folders / "ct2")


@pytest.mark.parametrize("flags", [["--avoid", "phrases"], ["--terms", "phrases"], ["--keep", "x"]])
def test_what_it_cannot_be_asked_is_refused_before_the_work(translate, flags):
    out, err = translate("ct2", "--engine", "ctranslate2", *flags, code=2)
    assert not out and f"ctranslate2 has nothing like {flags[0]}" in err


def test_what_a_line_cannot_ask_of_it_is_refused_with_its_place(translate, folders):
    (folders / "asks").write_text('{"source": "May"}\n{"source": "May", "prefix": "x"}\n', encoding="utf-8")
    how = ["--engine", "ctranslate2", "--input", folders / "asks", "--input-format"]
    _, err = translate("ct2", *how, "jsonl", code=2)
    assert "asks:2: CTranslate2 cannot be asked how a translation begins" in err
    out, err = translate("ct2", *how, "tsv", code=2)
    assert not out and "leave --input-format tsv out" in err


def test_it_does_not_tell_where_it_looks(translate):
    line = json.loads(translate("ct2", "--engine", "ctranslate2", "--format", "jsonl")[0][0])
    assert line["tokens"] and len(line["token_log_probs"]) == len(line["tokens"]) and "alignment" not in line
    assert "--with-attention" in translate("ct2", "--engine", "ctranslate2", "--with-attention", code=2)[1]
