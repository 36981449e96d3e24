"""Tags: what a source is told apart by, as ids before it that no text can become."""

import pytest
from pydantic import ValidationError

import nmt
from nmt.data.corpus import Prepared
from nmt.data.placeholders import Tagging
from nmt.data.prepare import prepare
from nmt.data.subwords import PAD, Subwords
from nmt.errors import DataError, RecipeError
from nmt.models.build import build_model
from nmt.recipe.decode_options import DecodeConfig
from nmt.recipe.options import Recipe
from tests.cli.made_run import save_run
from tests.data.test_prepare import write

SRC = ["ein Haus", "zwei Häuser", "<2fr> ein <bt> Satz", "noch einer"]
ENGLISH = ["a house", "two houses", "a sentence", "one more"]
FRENCH = ["une maison", "deux maisons", "une phrase", "un"]


def recipe_in(folder, *train, valid=None, joint=True, **data):
    """Corpora by their options beside the files: German to English, or French where trg_lang says so."""
    src = write(folder / "t.de", SRC)
    english, french = write(folder / "t.en", ENGLISH), write(folder / "t.fr", FRENCH)
    corpora = [{"src": src, "trg": french if each.get("trg_lang") == "fr" else english, **each} for each in train]
    valid = {"src": src, "trg": english, **(valid or {})}
    given = {"src_lang": "de", "trg_lang": "en", "train": corpora, "valid": valid, "alarms": "warn", "workers": 1}
    return Recipe.model_validate(
        {
            "name": "test",
            "data": {"out": str(folder / "out"), **given, **data},
            "subwords": {"vocab_size": 300, "joint": joint},
            "model": {"d_model": 16, "d_inner": 16, "n_head": 2, "n_enc_layer": 1, "n_dec_layer": 1}
            | ({} if joint else {"emb_src_trg_weight_sharing": False}),
            "decode": {"max_len_a": 1.0, "max_len_b": 4},
        }
    )


def made(recipe):
    said = []
    prepare(recipe, recipe.data_folder, talk=said.append)
    return Prepared.open(recipe.data_folder), said


def run_of(recipe, folder):
    """A run of weights as they are drawn."""
    subwords = made(recipe)[0].subwords
    model = build_model(recipe.model, subwords.src.n_vocab, subwords.trg.n_vocab, PAD)
    return nmt.load(save_run(folder / "run", recipe, subwords, model).folder, device="cpu")


def test_the_language_is_told_where_there_are_several_and_tags_where_there_are_any(tmp_path):
    def tags(*train, **options):
        data = recipe_in(tmp_path, *train, **options).data
        return list(map(data.tags_of, data.train)), data.known_tags

    assert tags({}, {}) == ([(), ()], ())
    for same in ("en", "eng", "eng_Latn", "English"):
        assert tags({}, {"trg_lang": same}) == ([(), ()], ())
    assert tags({}, {"trg_lang": "fr"}) == ([("<2en>",), ("<2fr>",)], ("<2en>", "<2fr>"))
    assert tags({}, {"tags": ["bt", "news"]}) == ([(), ("<bt>", "<news>")], ("<bt>", "<news>"))
    assert tags({"tags": ["bt"]}, {"trg_lang": "fr"})[0] == [("<2en>", "<bt>"), ("<2fr>",)]


@pytest.mark.parametrize("joint", [True, False])
def test_sources_begin_with_the_tags_of_their_corpus_and_text_becomes_none(tmp_path, joint):
    recipe = recipe_in(tmp_path, {"tags": ["bt"]}, {"trg_lang": "fr"}, valid={"tags": ["bt"]}, joint=joint)
    data, _ = made(recipe)
    codec = data.subwords.src
    assert (data.subwords.trg is codec) == joint and data.subwords.trg.tags == (codec.tags if joint else ())
    src, trg = data.train.pairs(range(8))
    assert [codec.decode(ids) for ids in src] == SRC * 2  # tags have no text
    told = [codec.pieces([i for i in ids if i >= codec.n_text]) for ids in src]
    assert told == [["<2en>", "<bt>"]] * 4 + [["<2fr>"]] * 4
    assert all(i < data.subwords.trg.n_text for ids in trg for i in ids)
    assert [list(ids) for ids in src[:4]] == [[*codec.tag_ids(["<2en>", "<bt>"]), *ids] for ids in codec.encode(SRC)]
    held_out, _ = data.valid.pairs(range(4))
    assert [list(ids) for ids in held_out] == [list(ids) for ids in src[:4]]


def test_tags_are_stored_with_the_subwords(tmp_path):
    data, _ = made(recipe_in(tmp_path, {}, {"trg_lang": "fr"}))
    there = Subwords.load(tmp_path / "out" / "subwords.json")
    assert there.src.tags == ("<2en>", "<2fr>") and there.sha256 == data.subwords.sha256
    tagged = there.tagged(["<2fr>"])
    assert tagged.src.encode(["ein Haus"]) == [[*there.src.tag_ids(["<2fr>"]), *there.src.encode(["ein Haus"])[0]]]
    assert tagged.trg.encode(["a"]) == there.trg.encode(["a"]) and tagged.sha256 == there.sha256
    text, path = (tmp_path / "out" / "subwords.json").read_text(encoding="utf-8"), tmp_path / "wrong.json"
    assert '["<2en>","<2fr>"]' in text
    for wrong in ('["<2fr>", "<2fr>"]', '["2fr"]', '["<>"]', '"<2fr>"', "[1]"):
        path.write_text(text.replace('["<2en>","<2fr>"]', wrong), encoding="utf-8")
        with pytest.raises(DataError, match="tag"):
            Subwords.load(path)


def test_other_tags_are_other_data_and_a_set_whose_tag_nothing_is_trained_with_is_refused(tmp_path):
    made(recipe_in(tmp_path, {}))
    assert "nothing to do" in made(recipe_in(tmp_path, {}))[1][0]
    with pytest.raises(DataError, match=r"data\.tags"):
        made(recipe_in(tmp_path, {"tags": ["bt"]}))
    for valid in ({"tags": ["bt"]}, {"trg_lang": "it", "tags": []}):
        with pytest.raises(ValidationError, match=r"data\.valid\.0: the tag <(bt|2it)> .*there are <2en>, <2fr>"):
            recipe_in(tmp_path, {}, {"trg_lang": "fr"}, valid=valid)


@pytest.mark.parametrize("lang", ["en", "it"])
def test_a_model_for_one_language_reads_what_it_was_trained_on_with_the_subwords_of_one_for_several(tmp_path, lang):
    (tmp_path / "several").mkdir()
    several, _ = made(recipe_in(tmp_path / "several", {}, {"trg_lang": "fr"}))
    one = recipe_in(tmp_path, {}, trg_lang=lang)
    one = one.model_copy(update={"subwords": one.subwords.model_copy(update={"vocab_from": str(several.folder)})})
    model = run_of(one, tmp_path)
    trained = Prepared.open(one.data_folder).train.pairs(range(1))[0][0].tolist()
    codec = model.subwords.src
    assert codec.tags == ("<2en>", "<2fr>")
    for options in ({}, {"trg_lang": lang}):
        assert model.translate(SRC[:1], **options)[0].src_ids == trained
    with pytest.raises(RecipeError, match=r"translates into .*: choose one"):
        model.translate(["ein Haus"], trg_lang="es")
    # What the other model knew can still be asked for.
    assert codec.pieces(model.translate(SRC[:1], trg_lang="fr")[0].src_ids)[0] == "<2fr>"


def test_tags_need_room_in_the_vocabulary(tmp_path):
    """With less than they need it would be larger than was asked for."""
    tags = {"tags": [f"t{n}" for n in range(37)]}
    with pytest.raises(ValidationError, match=r"no room for .* 37 tags .*make it 301 or more"):
        recipe_in(tmp_path, tags)
    tags["tags"].pop()
    assert made(recipe_in(tmp_path, tags))[0].subwords.src.size <= 300


def test_a_vocabulary_with_the_tag_of_a_language_by_another_code_is_told_it_all_the_same(tmp_path):
    data, _ = made(recipe_in(tmp_path, {}, {"trg_lang": "fr"}))
    codec = data.subwords.src
    by_another_code = ("<2eng>", "<2fra_Latn>")
    ids = codec.tag_ids(["<2en>", "<2fr>"])
    codec.tags = by_another_code
    assert codec.tag_ids(["<2en>", "<2fr>"]) == codec.tag_ids(by_another_code) == ids
    tagging = Tagging(DecodeConfig(trg_lang="fra"), by_another_code, "en", by_another_code)
    assert codec.tag_ids(tagging()) == ids[1:] and codec.tag_ids(tagging("eng_Latn")) == ids[:1]
    with pytest.raises(RecipeError, match="trg_lang: it, but the model translates into en, fr"):
        tagging("ita")
