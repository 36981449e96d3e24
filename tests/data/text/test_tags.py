"""Tags: ids before a source for its target language or its corpus, which no text can produce."""

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
    """German to English, or to French where trg_lang says so. train: options of each corpus beside its files."""
    src = write(folder / "t.de", SRC)
    english, french = write(folder / "t.en", ENGLISH), write(folder / "t.fr", FRENCH)
    corpora = [{"src": src, "trg": french if each.get("trg_lang") == "fr" else english, **each} for each in train]
    valid = {"src": src, "trg": english, **(valid or {})}
    base = {"src_lang": "de", "trg_lang": "en", "train": corpora, "valid": valid, "alarms": "warn", "workers": 1}
    return Recipe.model_validate(
        {
            "name": "test",
            "data": {"out": str(folder / "out"), **base, **data},
            "subwords": {"vocab_size": 300, "joint": joint},
            "model": {"d_model": 16, "d_inner": 16, "n_head": 2, "n_enc_layer": 1, "n_dec_layer": 1}
            | ({} if joint else {"emb_src_trg_weight_sharing": False}),
            "decode": {"max_len_a": 1.0, "max_len_b": 4},
        }
    )


def prepared(recipe):
    messages = []
    prepare(recipe, recipe.data_folder, talk=messages.append)
    return Prepared.open(recipe.data_folder), messages


def run_of(recipe, folder):
    """A run with random weights."""
    subwords = prepared(recipe)[0].subwords
    model = build_model(recipe.model, subwords.src.n_vocab, subwords.trg.n_vocab, PAD)
    return nmt.load(save_run(folder / "run", recipe, subwords, model).folder, device="cpu")


def test_language_tags_occur_only_with_several_target_languages(tmp_path):
    def tags(*train, **options):
        data = recipe_in(tmp_path, *train, **options).data
        return list(map(data.tags_of, data.train)), data.known_tags

    assert tags({}, {}) == ([(), ()], ())
    for code in ("en", "eng", "eng_Latn", "English"):
        assert tags({}, {"trg_lang": code}) == ([(), ()], ())
    assert tags({}, {"trg_lang": "fr"}) == ([("<2en>",), ("<2fr>",)], ("<2en>", "<2fr>"))
    assert tags({}, {"tags": ["bt", "news"]}) == ([(), ("<bt>", "<news>")], ("<bt>", "<news>"))
    assert tags({"tags": ["bt"]}, {"trg_lang": "fr"})[0] == [("<2en>", "<bt>"), ("<2fr>",)]


@pytest.mark.parametrize("joint", [True, False])
def test_sources_begin_with_their_tags_and_text_never_becomes_a_tag(tmp_path, joint):
    recipe = recipe_in(tmp_path, {"tags": ["bt"]}, {"trg_lang": "fr"}, valid={"tags": ["bt"]}, joint=joint)
    data, _ = prepared(recipe)
    codec = data.subwords.src
    assert (data.subwords.trg is codec) == joint and data.subwords.trg.tags == (codec.tags if joint else ())
    src, trg = data.train.pairs(range(8))
    assert [codec.decode(ids) for ids in src] == SRC * 2  # tags have no text
    tags = [codec.pieces([i for i in ids if i >= codec.n_text]) for ids in src]
    assert tags == [["<2en>", "<bt>"]] * 4 + [["<2fr>"]] * 4
    assert all(i < data.subwords.trg.n_text for ids in trg for i in ids)
    assert [list(ids) for ids in src[:4]] == [[*codec.tag_ids(["<2en>", "<bt>"]), *ids] for ids in codec.encode(SRC)]
    held_out, _ = data.valid.pairs(range(4))
    assert [list(ids) for ids in held_out] == [list(ids) for ids in src[:4]]


def test_tags_are_stored_with_the_subwords(tmp_path):
    data, _ = prepared(recipe_in(tmp_path, {}, {"trg_lang": "fr"}))
    loaded = Subwords.load(tmp_path / "out" / "subwords.json")
    assert loaded.src.tags == ("<2en>", "<2fr>") and loaded.sha256 == data.subwords.sha256
    tagged = loaded.tagged(["<2fr>"])
    assert tagged.src.encode(["ein Haus"]) == [[*loaded.src.tag_ids(["<2fr>"]), *loaded.src.encode(["ein Haus"])[0]]]
    assert tagged.trg.encode(["a"]) == loaded.trg.encode(["a"]) and tagged.sha256 == loaded.sha256
    text, path = (tmp_path / "out" / "subwords.json").read_text(encoding="utf-8"), tmp_path / "wrong.json"
    assert '["<2en>","<2fr>"]' in text
    for wrong in ('["<2fr>", "<2fr>"]', '["2fr"]', '["<>"]', '"<2fr>"', "[1]"):
        path.write_text(text.replace('["<2en>","<2fr>"]', wrong), encoding="utf-8")
        with pytest.raises(DataError, match="tag"):
            Subwords.load(path)


def test_changed_tags_need_new_data_and_untrained_tags_are_refused(tmp_path):
    prepared(recipe_in(tmp_path, {}))
    assert "nothing to do" in prepared(recipe_in(tmp_path, {}))[1][0]
    with pytest.raises(DataError, match=r"data\.tags"):
        prepared(recipe_in(tmp_path, {"tags": ["bt"]}))
    for valid in ({"tags": ["bt"]}, {"trg_lang": "it", "tags": []}):
        with pytest.raises(ValidationError, match=r"data\.valid\.0: the tag <(bt|2it)> .*there are <2en>, <2fr>"):
            recipe_in(tmp_path, {}, {"trg_lang": "fr"}, valid=valid)


@pytest.mark.parametrize("lang", ["en", "it"])
def test_a_single_language_model_can_reuse_multilingual_subwords(tmp_path, lang):
    (tmp_path / "several").mkdir()
    several, _ = prepared(recipe_in(tmp_path / "several", {}, {"trg_lang": "fr"}))
    single = recipe_in(tmp_path, {}, trg_lang=lang).with_options(subwords={"vocab_from": str(several.folder)})
    model = run_of(single, tmp_path)
    trained = Prepared.open(single.data_folder).train.pairs(range(1))[0][0].tolist()
    codec = model.subwords.src
    assert codec.tags == ("<2en>", "<2fr>")
    for options in ({}, {"trg_lang": lang}):
        assert model.translate(SRC[:1], **options)[0].src_ids == trained
    with pytest.raises(RecipeError, match=r"translates into .*: choose one"):
        model.translate(["ein Haus"], trg_lang="es")
    # Tags of the multilingual model are still accepted.
    assert codec.pieces(model.translate(SRC[:1], trg_lang="fr")[0].src_ids)[0] == "<2fr>"


def test_tags_need_room_in_the_vocabulary(tmp_path):
    """Otherwise the vocabulary would exceed the requested size."""
    tags = {"tags": [f"t{n}" for n in range(37)]}
    with pytest.raises(ValidationError, match=r"no room for .* tags \(make it 301 or more"):
        recipe_in(tmp_path, tags)
    tags["tags"].pop()
    assert prepared(recipe_in(tmp_path, tags))[0].subwords.src.size <= 300


def test_a_language_is_requested_by_any_of_its_codes():
    tags = ("<2en>", "<2fr>")
    tagging = Tagging(DecodeConfig(trg_lang="fra"), tags, "en", tags)
    assert tagging() == ("<2fr>",) and tagging("eng_Latn") == ("<2en>",)
    with pytest.raises(RecipeError, match="trg_lang: it, but the model translates into en, fr"):
        tagging("ita")
