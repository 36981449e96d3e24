"""nmt-translate on how each line came about: JSON, alignments, pictures, quality flags, second tries."""

import json
import math
import re
from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from made_run import OPTIONS, SOURCE, make_run

import nmt
from nmt.decoding import evidence, translator
from nmt.decoding.evidence import Evidence
from nmt.decoding.translator import Translator
from tests.documented import documented

SENTENCES = ["The old ship left.", "In May  the ship!", "Für Übung?"]


def read(path):
    return path.read_text(encoding="utf-8").split("\n")[:-1]


def links_of(pharaoh):
    return {tuple(map(int, pair.split("-"))) for pair in pharaoh.split()}


def test_json_lines_have_the_documented_fields_and_agree_with_themselves(translate, objects):
    page = documented("JSONL output")[""]
    found = objects("--decode.n_best", 3)
    assert [one["id"] for one in found] == [1, 2, 3, 4, 5, 6]
    assert [one["source"] for one in found] == SOURCE.decode().split("\n")
    assert found[1]["output"] == "" and found[1]["flags"] == ["blank"] and found[1]["n_best"] == []
    for one in found:
        assert set(one) == {name for name, when in page.items() if when == "always"}
        if "blank" in one["flags"]:
            assert (one["source_tokens"], one["alignment"], one["word_alignment"]) == ([], [], "")
            continue
        assert one["output"] == one["n_best"][0]["output"] and one["score"] == one["n_best"][0]["score"]
        assert one["log_prob"] == pytest.approx(one["n_best"][0]["log_prob"], abs=1e-5)
        assert "cap" in one["flags"]  # an untrained model does not stop
        assert (
            len(one["alignment"]) == len(one["tokens"]) == len(one["token_log_probs"]) and one["tokens"][-1] == "</s>"
        )
        assert one["source_tokens"][-1] == "</s>" and one["alignment"][-1] is None
        assert all(0 <= i < len(one["source_tokens"]) - 1 for i in one["alignment"][:-1])
        pairs = links_of(one["word_alignment"])
        assert {j for _, j in pairs} == set(range(len(one["output"].split())))
        assert {i for i, _ in pairs} <= set(range(len(one["source"].split())))
    (one,) = objects("--retry-suspect", source=b"the ship")
    assert set(one) == set(page) - {"items"}


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_log_probability_of_a_line_is_that_of_its_tokens(objects, precision):
    for one in objects("--decode.precision", precision, "--device", "cpu"):
        assert one["log_prob"] == math.fsum(one["token_log_probs"])


def test_pairs_are_three_fields_of_json_and_need_no_second_pass(translate, objects, monkeypatch):
    flags = ("--decode.split", "every", "--decode.beam", 2)
    whole = objects(*flags)
    monkeypatch.setattr(Translator, "forced", None)
    found = [json.loads(line) for line in translate(*flags, "--format", "pairs")[0]]
    assert found == [{name: one[name] for name in ("source", "output", "flags")} for one in whole]
    assert any("low" in one["flags"] for one in found), "a model that nobody trained is sure of nothing"


# Nothing that is told beside a translation costs a translation: its own line's, or that of another line.

# Any code point that a text can have, but those that end a line of the input.
_POINTS = st.characters(exclude_categories=["Cs"], exclude_characters="\n\r\0")
_LINES = st.one_of(
    st.text(_POINTS, max_size=40),
    st.builds(lambda piece, n: (piece * n)[:n], st.text(_POINTS, min_size=1, max_size=5), st.integers(1, 50_000)),
    st.builds(" ".join, st.lists(st.text(_POINTS, max_size=9), max_size=60)),
)


@settings(max_examples=6, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(lines=st.lists(_LINES, max_size=4))
def test_every_format_has_the_same_texts_whatever_the_lines(translate, tmp_path_factory, lines):
    links = tmp_path_factory.mktemp("links") / "links"
    source = "".join(f"{line}\n" for line in lines).encode()
    call = ("--decode.beam", 1, "--decode.max_src_len", 64, "--decode.max_len_a", 0.3)
    wanted, _ = translate(*call, source=source)
    assert len(wanted) == len(lines)
    told = [json.loads(line) for line in translate(*call, "--format", "jsonl", source=source)[0]]
    assert [one["output"] for one in told] == wanted
    tsv, _ = translate(*call, "--format", "tsv", "--alignments", links, source=source)
    assert [line.split("\t", 4)[4] for line in tsv] == [line.replace("\t", " ") for line in wanted]
    assert links.read_text(encoding="ascii").split("\n")[:-1] == [one["word_alignment"] for one in told]


def fails(*args, **named):
    raise ValueError("on purpose")


@pytest.mark.parametrize(
    ("owner", "name", "lost"),
    [
        (evidence, "word_alignment", {"word_alignment"}),
        (translator, "subword_alignment", {"token_log_probs", "alignment", "word_alignment"}),
        (Evidence, "reasons", {"flags"}),
    ],
)
def test_a_field_that_fails_is_lost_alone_and_said_with_its_line(translate, objects, monkeypatch, owner, name, lost):
    whole = objects()
    monkeypatch.setattr(owner, name, fails)
    lines, err = translate("--format", "jsonl")
    for number, (found, wanted) in enumerate(zip(map(json.loads, lines), whole, strict=True), start=1):
        changed = {key for key in wanted if found[key] != wanted[key] and key not in ("flags", "log_prob")}
        if wanted["output"]:
            assert changed == lost - {"flags"} and all(found[key] is None for key in changed)
            assert found["log_prob"] == pytest.approx(wanted["log_prob"], abs=1e-4)
            assert err.count(f"<stdin>:{number}: ") == 1
    assert "internal error (ValueError: on purpose)" in err and all(field in err for field in lost)


def test_a_line_that_fails_in_its_batch_leaves_the_others_what_they_have(translate, objects, monkeypatch):
    source = b"the ship\nthe old ship\nin May"
    whole = objects(source=source)
    subword_alignment, n_source = translator.subword_alignment, [len(one["source_tokens"]) for one in whole]
    assert n_source.count(n_source[1]) == 1

    def fail_on_the_second(weights, *by):
        return fails() if weights.size(-1) == n_source[1] else subword_alignment(weights, *by)

    monkeypatch.setattr(translator, "subword_alignment", fail_on_the_second)
    lines, err = translate("--format", "jsonl", "--decode.max_tokens", 4096, source=source)
    told = [json.loads(line) for line in lines]
    assert [one["alignment"] is None for one in told] == [False, True, False]
    assert [one["word_alignment"] for one in told if one["alignment"]] == [whole[n]["word_alignment"] for n in (0, 2)]
    assert err.count("internal error") == 1 and "<stdin>:2: " in err


def test_a_line_longer_than_training_saw_is_translated_in_pieces_and_flagged(translate, objects):
    source = "\t".join(SENTENCES).encode() + b"\nin May\n"
    flags = ("--format", "jsonl", "--decode.max_src_len", 16)
    lines, err = translate(*flags, source=source)
    whole, other = map(json.loads, lines)
    assert "split" in whole["flags"] and "split" not in other["flags"]
    assert "1 of 2 lines were translated in pieces, because they have more than 16 subwords: line 1 (" in err
    apart = objects(*flags, source="\n".join(SENTENCES).encode())
    assert whole["output"] == "\t".join(one["output"] for one in apart)
    text, err = translate("--decode.split", "every", source=source)
    assert text[0] == whole["output"] and "1 of 2 lines were translated sentence by sentence" in err
    assert "split" not in objects(source=source)[0]["flags"]


def test_layer_and_head_are_chosen_by_name_for_all_that_is_written(translate, objects, tmp_path):
    found = {}
    for layer, head in [(0, 0), (1, 0), (2, 1), (2, 2)]:
        flags = ["--decode.align_layer", layer, "--decode.align_head", head]
        told = objects("--alignments", tmp_path / "links", "--overwrite", *flags)
        assert read(tmp_path / "links") == [one["word_alignment"] for one in told]
        found[layer, head] = tuple(read(tmp_path / "links"))
    assert len(set(found.values())) > 1


def test_characters_are_aligned_where_a_language_has_no_spaces_and_it_is_said(translate, tmp_path):
    japanese, target, file = ["船は出た。", "", "古い船", "五月 に", "はい"], tmp_path / "trg", tmp_path / "links"
    by = {"characters": ["".join(line.split()) for line in japanese], "words": [line.split() for line in japanese]}
    target.write_text("".join(f"{line}\n" for line in japanese), encoding="utf-8")
    made = make_run(tmp_path / "ja", {**OPTIONS, "data.src_lang": "en", "data.trg_lang": "jpn"})
    how = {"run": str(made.folder), "source": b"the ship left\n\nold ship\nin May\nyes\n"}

    for flags, units in ([], by["characters"]), (["--decode.align_units", "words"], by["words"]):
        out, err = translate("--score", target, "--format", "jsonl", "--alignments", file, "--overwrite", *flags, **how)
        assert [json.loads(line)["word_alignment"] for line in out] == read(file)
        assert [{j for _, j in links_of(line)} for line in read(file)] == [set(range(len(its))) for its in units]
        told = "note: word alignments: for Japanese, written without spaces, characters are numbered from 0"
        assert (told in err) == ("alignments" in err) == (not flags)


def test_characters_are_aligned_where_the_language_of_the_line_has_no_spaces(translate, tmp_path):
    made = make_run(tmp_path / "both", {**OPTIONS, "data.src_lang": "de", "data.trg_lang": "en"}, ["<2en>", "<2ja>"])
    lines = [{"source": "das Schiff", "trg_lang": code} for code in ("en", "ja")]
    target = tmp_path / "trg"
    target.write_text("古い船\n" * 2, encoding="utf-8")
    flags = ("--input-format", "jsonl", "--score", target, "--format", "jsonl")
    source = "".join(f"{json.dumps(line)}\n" for line in lines).encode()
    out, _ = translate(*flags, source=source, run=str(made.folder))
    assert [{j for _, j in links_of(json.loads(line)["word_alignment"])} for line in out] == [{0}, {0, 1, 2}]


def data_of(path):
    """What a page of attention shows."""
    return json.loads(re.search(r'id="data">(.*?)</script>', path.read_text(encoding="utf-8"), re.S).group(1))


def test_attention_of_chosen_lines_layers_heads_and_kinds_is_drawn(translate, tmp_path):
    plain, _ = translate()
    flags = ("--lines", "1,4", "--layer", "all", "--head", "1,2", "--attention")
    assert translate(*flags, tmp_path / "a.html")[0] == translate(*flags, tmp_path / "a.png")[0] == plain
    data = data_of(tmp_path / "a.html")
    assert [one["title"] for one in data["sentences"]] == [f"1: {plain[0]}", f"4: {plain[3]}"]
    assert data["shown"] == {"kind": "cross", "layer": 1, "head": "all"} and data["langs"]["trg"] == "en"
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    for kind in ("cross", "encoder", "decoder"):
        flags = ("--attention-of", kind, "--layer", 1, "--lines", 1, "--overwrite", "--attention")
        translate(*flags, tmp_path / "a.svg", "--head", "all")
        drawn, looks = (tmp_path / "a.svg").read_text(encoding="utf-8"), "the ship" if kind == "encoder" else plain[0]
        assert drawn.startswith("<?xml") and f"<!-- 1: {looks[:119]}" in drawn
        translate(*flags, tmp_path / "a.html")
        assert data_of(tmp_path / "a.html")["shown"] == {"kind": kind, "layer": 0, "head": "mean"}
    translate("--overwrite", "--attention", tmp_path / "a.html")  # the first lines that are not blank
    data = data_of(tmp_path / "a.html")
    assert [one["title"].partition(":")[0] for one in data["sentences"]] == ["1", "3", "4"]
    assert data["shown"] == {"kind": "cross", "layer": 1, "head": "mean"}
    kinds = {kind: tuple(one.values()) for kind, one in data["kinds"].items()}
    assert kinds == {"cross": (2, 2), "encoder": (1, 2), "decoder": (2, 2)}


def test_a_line_in_pieces_is_drawn_but_one_with_too_much_attention(translate, objects, tmp_path, monkeypatch):
    source, flags = b"The old ship left. In May the ship! A ship. In May.\n", ["--decode.max_src_len", 16]
    translate("--attention", tmp_path / "a.html", *flags, source=source)
    (drawn,), (line,) = data_of(tmp_path / "a.html")["sentences"], objects(*flags, source=source)
    assert "split" in line["flags"] and len(drawn["src"]["pieces"]) == len(line["source_tokens"])
    assert len(drawn["trg"]["pieces"]) == len(line["tokens"])
    monkeypatch.setattr("nmt.cli.translate_output.MOST_SHOWN", 60)
    flags, source = ["--attention", tmp_path / "b.html", *flags, "--overwrite"], b"the old ship left in May " * 9
    _, err = translate(*flags, source=b"the ship\n" + source)
    assert "warning: <stdin>:2: not drawn" in err and (tmp_path / "b.html").exists()
    lines, err = translate(*flags, source=source, code=2)
    assert len(lines) == 1 and "none of its 1 lines can be drawn" in err


def test_given_translations_are_scored_though_the_run_writes_several_of_each_line(translate, tmp_path):
    made = make_run(tmp_path / "several", {**OPTIONS, "decode.n_best": "2"})
    (tmp_path / "trg").write_text("x\n" * SOURCE.count(b"\n") + "x\n", encoding="utf-8")
    lines, _ = translate("--score", tmp_path / "trg", "--format", "pairs", run=str(made.folder))
    assert len(lines) == 6


def test_the_count_of_what_looks_wrong_is_told(translate, monkeypatch):
    monkeypatch.setattr("nmt.data.subwords.Codec.decode", lambda *_: "ha ha ha ha ha ha")
    lines, err = translate("--format", "jsonl")
    assert [json.loads(line)["flags"][-1] for line in lines] == ["low", "blank", "low", "low", "blank", "low"]
    assert all("repeated" in line for line in lines if "blank" not in line)
    assert "suspicious translations, of 6: repeated 4, low 4 (" in err
    _, err = translate("--decode.low_score", 0)  # which no score is below
    assert "suspicious translations, of 6: repeated 4 (" in err


def test_what_looks_wrong_is_tried_again_and_counted(translate, objects, monkeypatch):
    def odd(line, translation, *_):  # reasons that differ from try to try, as an untrained model gives none
        return ["odd", "wrong"][: sum(map(ord, translation.text)) % 3] if translation.hypotheses else []

    monkeypatch.setattr("nmt.decoding.evidence.complaints", odd)
    source = "\n".join(["", "the ship", "old", "in May", "left", "the old ship", "May", "ship", "für Übung"]).encode()
    flags = ("--format", "jsonl", "--decode.n_best", 2, "--decode.samples", 4, "--decode.max_len_a", 1)
    once = objects(*flags, source=source)
    lines, err = translate(*flags, "--retry-suspect", source=source)
    again, kinds = list(map(json.loads, lines)), Counter()
    for first, one in zip(once, again, strict=True):
        assert "retry" not in first
        if one["retry"] in ("beam", "mbr"):
            assert one["output"] == one["n_best"][0]["output"] != first["output"]
            kinds["better but still suspicious" if one["flags"] else "mended"] += 1
        else:
            assert (one["output"], one["flags"]) == (first["output"], first["flags"])
            kinds["unchanged"] += one["retry"] == "first"
        assert sum(one["token_log_probs"]) == pytest.approx(one["log_prob"], abs=1e-4)  # of what is written
    assert len([n for n in kinds.values() if n]) > 1
    told = [f"{kinds[name]} {name}" for name in ("mended", "better but still suspicious", "unchanged")]
    assert f"{kinds.total()} suspicious translations were tried again: {', '.join(told)}" in err


ITEMS = 'the ship <b class="x">left</b> in 2014\n\nsee http://a.org/b\n⟨url1⟩ and 5\npart AB-1234'


def test_every_format_has_the_restored_text_of_protected_items(translate, objects, tmp_path):
    protect = {"data.protect": "[url, number, tag, '/[A-Z]{2}-[0-9]{4}/']", "subwords.vocab_size": "330"}
    how = {"run": str(make_run(tmp_path / "protected", {**OPTIONS, **protect}).folder), "source": ITEMS.encode()}
    (texts, err), told = translate(**how), objects(**how)
    assert [one["output"] for one in told] == texts
    assert [line.split("\t")[-1] for line in translate("--format", "tsv", **how)[0]] == texts
    assert [one.text for one in nmt.load(how["run"]).translate(ITEMS.split("\n"))] == texts
    assert translate("--decode.n_best", 3, **how)[0][0].split(" ||| ")[1] == texts[0]
    assert told[0]["items"] == [{"tag1": '<b class="x">', "tag2": "</b>", "number1": "2014"}]
    assert [told[n]["items"] for n in (1, 3, 4)] == [[{}], [{"number1": "5"}], [{"pattern1": "AB-1234"}]]
    assert told[4]["source_tokens"][-2] == "⟨pattern1⟩" and ("missing" in told[4]["flags"]) == (
        "AB-1234" not in texts[4]
    )
    assert "⟨tag1⟩" in told[0]["source_tokens"] and told[0]["source"] == ITEMS.split("\n")[0]
    for name in ("missing", "doubled"):
        n = sum(name in one["flags"] for one in told)
        assert (f"{name} {n}" in err) == bool(n)
    assert any("missing" in one["flags"] for one in told)  # the weights are drawn by chance
    (tmp_path / "given").write_text(ITEMS + "\n", encoding="utf-8")
    for one, other in zip(objects("--score", tmp_path / "given", **how), told, strict=True):
        assert one["items"] == other["items"] and one["source_tokens"][:-1] == one["tokens"][:-1]
    translate("--attention", tmp_path / "a.html", **how)  # which shows what the model read
    assert json.dumps("⟨tag1⟩")[1:-1] in (tmp_path / "a.html").read_text("utf-8")
