"""Details that nmt-translate reports of each line: JSON, alignments, attention, quality flags, retries."""

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


def test_jsonl_output_has_documented_and_consistent_fields(translate, objects):
    fields = documented("JSONL output")[""]
    records = objects("--decode.n_best", 3)
    assert [record["id"] for record in records] == [1, 2, 3, 4, 5, 6]
    assert [record["source"] for record in records] == SOURCE.decode().split("\n")
    assert records[1]["output"] == "" and records[1]["flags"] == ["blank"] and records[1]["n_best"] == []
    for record in records:
        assert set(record) == {name for name, condition in fields.items() if condition == "always"}
        if "blank" in record["flags"]:
            assert (record["source_tokens"], record["alignment"], record["word_alignment"]) == ([], [], "")
            continue
        assert record["output"] == record["n_best"][0]["output"] and record["score"] == record["n_best"][0]["score"]
        assert record["log_prob"] == pytest.approx(record["n_best"][0]["log_prob"], abs=1e-5)
        assert "cap" in record["flags"]  # an untrained model does not stop
        assert (
            len(record["alignment"]) == len(record["tokens"]) == len(record["token_log_probs"])
            and record["tokens"][-1] == "</s>"
        )
        assert record["source_tokens"][-1] == "</s>" and record["alignment"][-1] is None
        assert all(0 <= i < len(record["source_tokens"]) - 1 for i in record["alignment"][:-1])
        pairs = links_of(record["word_alignment"])
        assert {j for _, j in pairs} == set(range(len(record["output"].split())))
        assert {i for i, _ in pairs} <= set(range(len(record["source"].split())))
    (record,) = objects("--retry-suspect", source=b"the ship")
    assert set(record) == set(fields) - {"items"}


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_log_probability_of_a_line_is_the_sum_over_its_tokens(objects, precision):
    for record in objects("--decode.precision", precision, "--device", "cpu"):
        assert record["log_prob"] == math.fsum(record["token_log_probs"])


def test_pairs_format_has_three_fields_and_needs_no_second_pass(translate, objects, monkeypatch):
    flags = ("--decode.split", "every", "--decode.beam", 2)
    records = objects(*flags)
    monkeypatch.setattr(Translator, "forced", None)
    pairs = [json.loads(line) for line in translate(*flags, "--format", "pairs")[0]]
    assert pairs == [{name: record[name] for name in ("source", "output", "flags")} for record in records]
    assert any("low" in pair["flags"] for pair in pairs), "a model that nobody trained is sure of nothing"


# A failure in additional output must not cost a translation, neither of its own line nor of another one.

# Any code point of a text, except those that end a line of the input.
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


def fail(*args, **named):
    raise ValueError("on purpose")


@pytest.mark.parametrize(
    ("owner", "name", "lost"),
    [
        (evidence, "word_alignment", {"word_alignment"}),
        (translator, "subword_alignment", {"token_log_probs", "alignment", "word_alignment"}),
        (Evidence, "reasons", {"flags"}),
    ],
)
def test_failing_field_alone_is_lost_and_reported_with_its_line(translate, objects, monkeypatch, owner, name, lost):
    intact = objects()
    monkeypatch.setattr(owner, name, fail)
    lines, err = translate("--format", "jsonl")
    for number, (record, expected) in enumerate(zip(map(json.loads, lines), intact, strict=True), start=1):
        changed = {key for key in expected if record[key] != expected[key] and key not in ("flags", "log_prob")}
        if expected["output"]:
            assert changed == lost - {"flags"} and all(record[key] is None for key in changed)
            assert record["log_prob"] == pytest.approx(expected["log_prob"], abs=1e-4)
            assert err.count(f"<stdin>:{number}: ") == 1
    assert "internal error (ValueError: on purpose)" in err and all(field in err for field in lost)


def test_failing_line_leaves_the_other_lines_of_its_batch_intact(translate, objects, monkeypatch):
    source = b"the ship\nthe old ship\nin May"
    intact = objects(source=source)
    subword_alignment, n_source = translator.subword_alignment, [len(record["source_tokens"]) for record in intact]
    assert n_source.count(n_source[1]) == 1

    def fail_on_the_second(weights, *args):
        return fail() if weights.size(-1) == n_source[1] else subword_alignment(weights, *args)

    monkeypatch.setattr(translator, "subword_alignment", fail_on_the_second)
    lines, err = translate("--format", "jsonl", "--decode.max_tokens", 4096, source=source)
    records = [json.loads(line) for line in lines]
    assert [record["alignment"] is None for record in records] == [False, True, False]
    assert [record["word_alignment"] for record in records if record["alignment"]] == [
        intact[n]["word_alignment"] for n in (0, 2)
    ]
    assert err.count("internal error") == 1 and "<stdin>:2: " in err


def test_line_longer_than_training_lines_is_split_and_flagged(translate, objects):
    source = "\t".join(SENTENCES).encode() + b"\nin May\n"
    flags = ("--format", "jsonl", "--decode.max_src_len", 16)
    lines, err = translate(*flags, source=source)
    long_record, short_record = map(json.loads, lines)
    assert "split" in long_record["flags"] and "split" not in short_record["flags"]
    assert "1 of 2 lines were translated in pieces (" in err
    sentence_records = objects(*flags, source="\n".join(SENTENCES).encode())
    assert long_record["output"] == "\t".join(record["output"] for record in sentence_records)
    lines, err = translate("--decode.split", "every", source=source)
    assert lines[0] == long_record["output"] and "in pieces" not in err
    assert "split" not in objects(source=source)[0]["flags"]


def test_alignment_layer_and_head_apply_to_every_output(translate, objects, tmp_path):
    alignments = {}
    for layer, head in [(0, 0), (1, 0), (2, 1), (2, 2)]:
        flags = ["--decode.align_layer", layer, "--decode.align_head", head]
        records = objects("--alignments", tmp_path / "links", "--overwrite", *flags)
        assert read(tmp_path / "links") == [record["word_alignment"] for record in records]
        alignments[layer, head] = tuple(read(tmp_path / "links"))
    assert len(set(alignments.values())) > 1


def test_language_without_spaces_is_aligned_by_character_with_a_note(translate, tmp_path):
    japanese, trg, file = ["船は出た。", "", "古い船", "五月 に", "はい"], tmp_path / "trg", tmp_path / "links"
    by_name = {"characters": ["".join(line.split()) for line in japanese], "words": [line.split() for line in japanese]}
    trg.write_text("".join(f"{line}\n" for line in japanese), encoding="utf-8")
    run = make_run(tmp_path / "ja", {**OPTIONS, "data.src_lang": "en", "data.trg_lang": "jpn"})
    kwargs = {"run": str(run.folder), "source": b"the ship left\n\nold ship\nin May\nyes\n"}

    for flags, units in ([], by_name["characters"]), (["--decode.align_units", "words"], by_name["words"]):
        out, err = translate("--score", trg, "--format", "jsonl", "--alignments", file, "--overwrite", *flags, **kwargs)
        assert [json.loads(line)["word_alignment"] for line in out] == read(file)
        assert [{j for _, j in links_of(line)} for line in read(file)] == [set(range(len(tokens))) for tokens in units]
        note = "note: word alignments number the characters of languages written without spaces"
        assert (note in err) == ("alignments" in err) == (not flags)


def test_alignment_units_follow_the_language_of_the_line(translate, tmp_path):
    run = make_run(tmp_path / "both", {**OPTIONS, "data.src_lang": "de", "data.trg_lang": "en"}, ["<2en>", "<2ja>"])
    lines = [{"source": "das Schiff", "trg_lang": code} for code in ("en", "ja")]
    target = tmp_path / "trg"
    target.write_text("古い船\n" * 2, encoding="utf-8")
    flags = ("--input-format", "jsonl", "--score", target, "--format", "jsonl")
    source = "".join(f"{json.dumps(line)}\n" for line in lines).encode()
    out, _ = translate(*flags, source=source, run=str(run.folder))
    assert [{j for _, j in links_of(json.loads(line)["word_alignment"])} for line in out] == [{0}, {0, 1, 2}]


def page_data(path):
    """Return the data that an attention page shows."""
    return json.loads(re.search(r'id="data">(.*?)</script>', path.read_text(encoding="utf-8"), re.S).group(1))


def test_attention_of_chosen_lines_layers_heads_and_kinds_is_drawn(translate, tmp_path):
    plain, _ = translate()
    flags = ("--lines", "1,4", "--layer", "all", "--head", "1,2", "--attention")
    assert translate(*flags, tmp_path / "a.html")[0] == translate(*flags, tmp_path / "a.png")[0] == plain
    data = page_data(tmp_path / "a.html")
    assert [sentence["title"] for sentence in data["sentences"]] == [f"1: {plain[0]}", f"4: {plain[3]}"]
    assert data["shown"] == {"kind": "cross", "layer": 1, "head": "all"} and data["langs"]["trg"] == "en"
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    for kind in ("cross", "encoder", "decoder"):
        flags = ("--attention-of", kind, "--layer", 1, "--lines", 1, "--overwrite", "--attention")
        translate(*flags, tmp_path / "a.svg", "--head", "all")
        svg, text = (tmp_path / "a.svg").read_text(encoding="utf-8"), "the ship" if kind == "encoder" else plain[0]
        assert svg.startswith("<?xml") and f"<!-- 1: {text[:119]}" in svg
        translate(*flags, tmp_path / "a.html")
        assert page_data(tmp_path / "a.html")["shown"] == {"kind": kind, "layer": 0, "head": "mean"}
    translate("--overwrite", "--attention", tmp_path / "a.html")  # the first lines that are not blank
    data = page_data(tmp_path / "a.html")
    assert [sentence["title"].partition(":")[0] for sentence in data["sentences"]] == ["1", "3", "4"]
    assert data["shown"] == {"kind": "cross", "layer": 1, "head": "mean"}
    kinds = {kind: tuple(size.values()) for kind, size in data["kinds"].items()}
    assert kinds == {"cross": (2, 2), "encoder": (1, 2), "decoder": (2, 2)}


def test_split_line_is_drawn_by_pieces_but_a_blank_one_is_not(translate, objects, tmp_path):
    source, flags = b"The old ship left. In May the ship! A ship. In May.\n", ["--decode.max_src_len", 16]
    translate("--attention", tmp_path / "a.html", *flags, source=source)
    drawn, (record,) = page_data(tmp_path / "a.html")["sentences"], objects(*flags, source=source)
    assert "split" in record["flags"] and len(drawn) > 1
    for side, tokens in (("src", record["source_tokens"]), ("trg", record["tokens"])):
        assert sum(len(sentence[side]["pieces"]) for sentence in drawn) == len(tokens)
    lines, err = translate("--attention", tmp_path / "b.html", source=b"\n", code=2)
    assert len(lines) == 1 and "--attention: cannot be drawn: the input has 1 lines" in err


def test_values_of_an_earlier_translation_are_not_copied(objects):
    (earlier,) = objects(source=b"the ship\n")
    source = json.dumps({**earlier, "mean_log_prob": -9.0, "n": 7}).encode() + b"\n"
    assert objects("--input-format", "jsonl", source=source) == [{**earlier, "n": 7}]


def test_warnings_about_wrapped_input_name_the_line_of_the_output(translate):
    _, err = translate("--input-format", "wrapped", source=b"the old\nship.\n\xff ship.\n")
    assert "warning: <stdin>, output line 2: invalid UTF-8" in err


def test_forced_scoring_ignores_the_n_best_option_of_the_run(translate, tmp_path):
    run = make_run(tmp_path / "several", {**OPTIONS, "decode.n_best": "2"})
    (tmp_path / "trg").write_text("x\n" * SOURCE.count(b"\n") + "x\n", encoding="utf-8")
    lines, _ = translate("--score", tmp_path / "trg", "--format", "pairs", run=str(run.folder))
    assert len(lines) == 6


def test_suspicious_translations_are_counted_by_reason(translate, monkeypatch):
    monkeypatch.setattr("nmt.data.subwords.Codec.decode", lambda *_: "ha ha ha ha ha ha")
    lines, err = translate("--format", "jsonl")
    assert [json.loads(line)["flags"][-1] for line in lines] == ["low", "blank", "low", "low", "blank", "low"]
    assert all("repeated" in line for line in lines if "blank" not in line)
    assert "suspicious translations, of 6: repeated 4, low 4 (" in err
    _, err = translate("--decode.low_score", 0)  # 0 turns the flag low off
    assert "suspicious translations, of 6: repeated 4 (" in err


def test_suspicious_translations_are_retried_and_counted(translate, objects, monkeypatch):
    def varying_reasons(evidence, request, translation):  # an untrained model gives no reasons that vary
        return ["odd", "wrong"][: sum(map(ord, translation.text)) % 3] if translation.hypotheses else []

    monkeypatch.setattr(Evidence, "reasons", varying_reasons)
    source = "\n".join(["", "the ship", "old", "in May", "left", "the old ship", "May", "ship", "für Übung"]).encode()
    flags = ("--format", "jsonl", "--decode.n_best", 2, "--decode.samples", 4, "--decode.max_len_a", 1)
    first_records = objects(*flags, source=source)
    lines, err = translate(*flags, "--retry-suspect", source=source)
    retried_records, counts = list(map(json.loads, lines)), Counter()
    for first, retried in zip(first_records, retried_records, strict=True):
        assert "retry" not in first
        if retried["retry"] in ("beam", "mbr"):
            assert retried["output"] == retried["n_best"][0]["output"] != first["output"]
            counts["better but still suspicious" if retried["flags"] else "mended"] += 1
        else:
            assert (retried["output"], retried["flags"]) == (first["output"], first["flags"])
            counts["unchanged"] += retried["retry"] == "first"
        assert sum(retried["token_log_probs"]) == pytest.approx(retried["log_prob"], abs=1e-4)  # of the output
    assert len([n for n in counts.values() if n]) > 1
    outcomes = [f"{counts[name]} {name}" for name in ("mended", "better but still suspicious", "unchanged")]
    assert f"{counts.total()} suspicious translations were tried again: {', '.join(outcomes)}" in err


ITEMS = 'the ship <b class="x">left</b> in 2014\n\nsee http://a.org/b\n⟨url1⟩ and 5\npart AB-1234'


def test_protected_items_are_restored_in_every_format(translate, objects, tmp_path):
    protect = {"data.protect": "[url, number, tag, '/[A-Z]{2}-[0-9]{4}/']", "subwords.vocab_size": "330"}
    options = {"run": str(make_run(tmp_path / "protected", {**OPTIONS, **protect}).folder), "source": ITEMS.encode()}
    (texts, err), records = translate(**options), objects(**options)
    assert [record["output"] for record in records] == texts
    assert [line.split("\t")[-1] for line in translate("--format", "tsv", **options)[0]] == texts
    assert [translation.text for translation in nmt.load(options["run"]).translate(ITEMS.split("\n"))] == texts
    assert translate("--decode.n_best", 3, **options)[0][0].split(" ||| ")[1] == texts[0]
    assert records[0]["items"] == [{"tag1": '<b class="x">', "tag2": "</b>", "number1": "2014"}]
    assert [records[n]["items"] for n in (1, 3, 4)] == [[{}], [{"number1": "5"}], [{"pattern1": "AB-1234"}]]
    assert records[4]["source_tokens"][-2] == "⟨pattern1⟩" and ("missing" in records[4]["flags"]) == (
        "AB-1234" not in texts[4]
    )
    assert "⟨tag1⟩" in records[0]["source_tokens"] and records[0]["source"] == ITEMS.split("\n")[0]
    for name in ("missing", "doubled"):
        n = sum(name in record["flags"] for record in records)
        assert (f"{name} {n}" in err) == bool(n)
    assert any("missing" in record["flags"] for record in records)  # the weights are drawn by chance
    (tmp_path / "given").write_text(ITEMS + "\n", encoding="utf-8")
    for scored, record in zip(objects("--score", tmp_path / "given", **options), records, strict=True):
        assert scored["items"] == record["items"] and scored["source_tokens"][:-1] == scored["tokens"][:-1]
    translate("--attention", tmp_path / "a.html", **options)  # shows what the model read
    assert json.dumps("⟨tag1⟩")[1:-1] in (tmp_path / "a.html").read_text("utf-8")
