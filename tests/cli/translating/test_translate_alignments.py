"""nmt-translate --alignments: a line for each line, whole or not at all; what they are read off."""

import json

import pytest
from made_run import OPTIONS, SOURCE, make_run


def write(path, lines):
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8", newline="\n")
    return path


def read(path):
    return path.read_text(encoding="utf-8").split("\n")[:-1]


def links_of(pharaoh):
    return {tuple(map(int, pair.split("-"))) for pair in pharaoh.split()}


def words_of_json(lines):
    return [json.loads(line)["word_alignment"] for line in lines]


def test_each_line_has_a_line_that_is_the_field_of_json_and_a_blank_one_is_blank(translate, tmp_path):
    plain, _ = translate()
    assert translate("--alignments", tmp_path / "links")[0] == plain
    wanted = words_of_json(translate("--format", "jsonl")[0])
    assert read(tmp_path / "links") == wanted
    both = zip(SOURCE.decode().split("\n"), plain, strict=True)
    assert [bool(line) for line in wanted] == [bool(source.strip() and output.strip()) for source, output in both]
    for line, source, output in zip(wanted, SOURCE.decode().split("\n"), plain, strict=True):
        assert all(i < len(source.split()) and j < len(output.split()) for i, j in links_of(line))


@pytest.mark.parametrize("flags", [(), ("--format", "jsonl"), ("--format", "tsv", "--decode.n_best", 3)])
def test_the_format_of_the_translations_is_their_own_affair(translate, tmp_path, flags):
    translate("--alignments", tmp_path / "wanted")
    translate("--alignments", tmp_path / "links", *flags)
    assert read(tmp_path / "links") == read(tmp_path / "wanted")


def test_what_is_there_is_replaced_only_when_told_and_only_when_whole(translate, tmp_path, monkeypatch):
    links = tmp_path / "links"
    links.write_bytes(b"old\n")
    out, err = translate("--alignments", links, code=2)
    assert "--overwrite" in err and out == []
    with monkeypatch.context() as patch:
        patch.setattr("nmt.cli.translate_output.Report.add", lambda *_: 1 / 0)
        translate("--alignments", links, "--overwrite", code=1)
    assert links.read_bytes() == b"old\n" and [path.name for path in tmp_path.iterdir()] == ["links"]
    translate("--alignments", links, "--overwrite")
    assert len(read(links)) == 6


@pytest.mark.parametrize("when", ["written", "read"])
def test_a_line_that_was_split_has_the_links_of_its_pieces_in_their_places(translate, tmp_path, when):
    sentences = ["The old ship left.", "In May  the ship!", "Für Übung?"]
    flags = ("--decode.align_when", when, "--format", "jsonl")
    apart = [json.loads(line) for line in translate(*flags, source="\n".join(sentences).encode())[0]]
    whole = translate(*flags, "--decode.max_src_len", 16, source=" ".join(sentences).encode())[0]
    (one,) = map(json.loads, whole)
    assert "split" in one["flags"] and one["output"].split() == " ".join(each["output"] for each in apart).split()
    wanted, n_src, n_trg = set(), 0, 0
    for each, sentence in zip(apart, sentences, strict=True):
        wanted |= {(i + n_src, j + n_trg) for i, j in links_of(each["word_alignment"])}
        n_src, n_trg = n_src + len(sentence.split()), n_trg + len(each["output"].split())
    assert links_of(one["word_alignment"]) == wanted
    ends = [n for n, token in enumerate(one["tokens"]) if token == "</s>"]
    assert len(ends) == 3 and [one["alignment"][n] for n in ends] == [None] * 3
    origins = {one["source_tokens"][n] for n in one["alignment"] if n is not None}
    assert "</s>" not in origins


def test_words_that_stand_together_are_one_word_whatever_the_model_read_by_itself(translate):
    """Of a script without white space, or where a writer forgot it."""
    source = "你好。再见朋友。the ship left.In May".encode()
    (line,) = translate("--format", "jsonl", "--decode.split", "every", "--decode.max_src_len", 16, source=source)[0]
    one = json.loads(line)
    assert "split" in one["flags"] and one["source_tokens"].count("</s>") > 2
    pairs = links_of(one["word_alignment"])
    assert {i for i, _ in pairs} <= set(range(len(one["source"].split())))
    assert {j for _, j in pairs} == set(range(len(one["output"].split())))


def test_layer_and_head_are_chosen_by_name_for_all_that_is_written(translate, tmp_path):
    found = {}
    for layer, head, when in [(0, 0, "written"), (1, 0, "written"), (2, 1, "written"), (2, 2, "read")]:
        flags = ["--decode.align_layer", layer, "--decode.align_head", head, "--decode.align_when", when]
        lines, _ = translate("--format", "jsonl", "--alignments", tmp_path / "links", "--overwrite", *flags)
        assert read(tmp_path / "links") == words_of_json(lines)
        found[layer, head, when] = tuple(read(tmp_path / "links"))
    assert len(set(found.values())) > 1


# -- text without spaces -----------------------------------------------------------------------------------------------

JAPANESE = ["船は出た。", "", "古い船", "五月 に", "はい"]


@pytest.fixture
def japanese(tmp_path):
    return make_run(tmp_path / "ja", {**OPTIONS, "data.src_lang": "en", "data.trg_lang": "jpn"})


def test_characters_are_aligned_where_a_language_has_no_spaces_and_it_is_said(japanese, translate, tmp_path):
    target = write(tmp_path / "trg", JAPANESE)
    source = b"the ship left\n\nold ship\nin May\nyes\n"

    def links(*flags):
        out, err = translate("--score", target, "--format", "jsonl", *flags, run=str(japanese.folder), source=source)
        return words_of_json(out), err

    (by_character, err), (by_word, quiet) = links(), links("--decode.align_units", "words")
    assert "note: word alignments: of Japanese, written without spaces, characters are counted from 0" in err
    assert "word alignments" not in quiet
    places = [{j for _, j in links_of(line)} for line in by_character]
    assert places == [set(range(len("".join(line.split())))) for line in JAPANESE]  # every character comes from a word
    assert all(i < 3 for line in by_character for i, _ in links_of(line))
    assert [{j for _, j in links_of(line)} for line in by_word] == [set(range(len(line.split()))) for line in JAPANESE]
    file = tmp_path / "links"
    _, err = translate("--score", target, "--alignments", file, run=str(japanese.folder), source=source)
    assert read(file) == by_character and "of Japanese, written without spaces" in err
