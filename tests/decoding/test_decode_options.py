"""Each option of decoding has its effect: with every other value of it something else is seen of the same lines."""

import itertools
import json
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch

import nmt
from nmt import api, checkpoint
from nmt.cli.translate import main
from nmt.data.placeholders import known_tags
from nmt.data.subwords import EOS, PAD, Subwords
from nmt.models.build import build_model
from nmt.ops import int8_product
from nmt.recipe.decode_options import DecodeConfig
from nmt.recipe.reader import read_recipe, write_recipe
from nmt.run import Run

OPTIONS = {
    "name": "tiny", "model.d_model": "16", "model.d_inner": "16", "model.n_head": "2", "model.n_enc_layer": "1",
    "model.n_dec_layer": "2", "model.trg_emb_prj_weight_sharing": "false", "subwords.vocab_size": "280",
    "decode.max_len_a": "1.0", "decode.max_len_b": "6", "data.trg_lang": "en",
    "data.train": '[{src: a, trg: b}, {src: c, trg: d, trg_lang: fr, tags: [news]}]',
}  # fmt: skip
LINES = ["the ship", "the old ship left", "in May", "für Übung und May"]
TWO, LONG = "The ship left. In May.", "the ship " * 12


class Lab(NamedTuple):
    """A run of two languages, and its model."""

    run: Run
    model: api.Model

    def translator(self, **options):
        return self.model.translator(self.model.decode(**options))

    def raw(self, **options):
        """All hypotheses that a search finds for each line, before any choice among them."""
        translator = self.translator(**options)
        batches = translator.batches(self.model.subwords.src.encode(LINES))
        return dict(sorted(pair for numbers, found in batches for pair in zip(numbers.tolist(), found, strict=True)))


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    run = Run(tmp_path_factory.mktemp("runs") / "tiny")
    run.folder.mkdir()
    recipe = read_recipe(None, list(OPTIONS.items()))
    write_recipe(recipe, run.recipe_file)
    lines = ["the old ship left in May"] * 9
    subwords = Subwords.train(lambda: lines, lambda: lines, recipe.subwords, tags=known_tags(recipe.data))
    subwords.save(run.subwords_file)
    torch.manual_seed(10)
    model = build_model(recipe.model, subwords.src.n_vocab, subwords.trg.n_vocab, PAD).eval()
    weight = model.trg_word_prj.weight
    with torch.no_grad():  # as sure of itself as a trained one
        for parameter in model.parameters():
            parameter.mul_(1.5)
        weight.mul_(6.0)
        likes = [i for one in api.Model(model, subwords, run).translate(LINES) for i in one.hypotheses[0].ids]
        # The end as likely as what it writes most: some hypotheses end by themselves, others at the cap.
        weight[EOS] = weight[Counter(likes).most_common(1)[0][0]]
    checkpoint.save(run.model_folder, {checkpoint.MODEL: checkpoint.weights_of(model)}, {"update": 1})
    (run.folder / "lines").write_text("\n".join(LINES), encoding="utf-8")
    return Lab(run, nmt.load(run.folder, device="cpu"))


# What can be seen: one thing or several, of which every one has to change.


def ids(lab, **options):
    return [[[one.ids for one in found] for found in lab.raw(**options).values()]]


def longest(lab, **options):
    return [[max(len(one.ids) for one in found) for found in lab.raw(**options).values()]]


def shortest(lab, **options):
    return [[min(len(one.ids) for one in found) for found in lab.raw(**options).values()]]


def n_raw(lab, **options):
    return [[len(found) for found in lab.raw(**options).values()]]


def chosen(lab, **options):
    return [[one.hypotheses[0].ids for one in lab.translator(**options).translate(LINES)]]


def text_without_letters(lab, **options):
    return [[one.text for one in lab.translator(**options).translate(["... !"])]]


def n_text(lab, **options):
    return [[len(one.texts) for one in lab.translator(**options).translate(LINES)]]


def scores(lab, **options):
    return [[one.score for one in lab.translator(**options).translate(LINES)]]


def scores_of_lines_and_pieces(lab, **options):
    (in_pieces,) = lab.translator(split="every", **options).translate([TWO])
    assert len(in_pieces.parts) == 2
    return [*scores(lab, **options), in_pieces.score]


def utilities_of_samples_and_hypotheses(lab, **options):
    drawn = lab.translator(samples=4, **options).translate(LINES)
    return [[one.utilities for one in some] for some in (drawn, lab.translator(**options).translate(LINES))]


def is_replayed_on_a_gpu(lab, **options):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(lab.model.model), "device", torch.device("cuda"))
        return [lab.translator(**options).fixed is not None]


def read(lab, **options):
    return [[one.src_ids for one in lab.translator(**options).translate(LINES)]]


def n_piece(lab, **options):
    return [[len(one.parts) for one in lab.translator(**options).translate([TWO, LONG])]]


def batches(lab, **options):
    translator, passes = lab.translator(**options), []
    with translator.model.register_forward_hook(lambda _model, args, _logits: passes.append(len(args[0]))):
        list(translator.score(LINES, LINES))
    return [[len(numbers) for numbers, _ in translator.batches(lab.model.subwords.src.encode(LINES))], passes]


def n_line_taken_at_once(lab, **options):
    coming = iter(LINES)
    next(lab.translator(**options).translate(coming))
    return [len(list(coming))]


def written(lab, *names, **options):
    """Fields that nmt-translate writes."""
    out = lab.run.folder / "out"
    flags = [f"--decode.{name}={value}" for name, value in options.items()]
    files = ["--input", str(lab.run.folder / "lines"), "--output", str(out), "--overwrite"]
    assert not main([str(lab.run.folder), *files, "--format", "jsonl", "--device", "cpu", "--threads", "1", *flags])
    told = [json.loads(line) for line in out.read_text(encoding="utf-8").split("\n")[:-1]]
    return [[one[name] for one in told] for name in names]


def flags(lab, **options):
    return written(lab, "flags", **options)


def alignments(lab, **options):
    return written(lab, "alignment", **options)


def word_alignments(lab, **options):
    return written(lab, "word_alignment", **options)


class Case(NamedTuple):
    """Values of an option, no two of which look the same beside other options that are given."""

    values: tuple[Any, ...]
    seen: Callable[..., list[Any]]
    given: dict[str, Any] | None = None


SAMPLES = {"samples": 4}
CASES = {
    "beam": Case((5, 2, 1), chosen),
    "length_penalty": Case(("wu", "average", "none"), scores_of_lines_and_pieces, {"beam": 1}),
    "alpha": Case((1.0, 0.5, 0.0), scores_of_lines_and_pieces, {"beam": 1}),
    "n_best": Case((1, 2, 3), n_text),
    "samples": Case((0, 2, 5), n_raw),
    "temperature": Case((1.0, 0.3, 3.0), ids, SAMPLES),
    "top_k": Case((0, 1, 5), ids, SAMPLES),
    "top_p": Case((1.0, 0.6, 0.1), ids, SAMPLES),
    "epsilon": Case((0.0, 0.05, 0.9), ids, SAMPLES),
    "seed": Case((1, 2, 3), ids, SAMPLES),
    "mbr": Case(("none", "chrf"), utilities_of_samples_and_hypotheses),
    "precision": Case(("fp32", "bf16", "int8") if int8_product() else ("fp32", "bf16"), scores),
    "cuda_graphs": Case((True, False), is_replayed_on_a_gpu),
    "low_score": Case((0.0, -0.01), flags),
    "align_layer": Case((0, 1, 2), alignments),
    "align_head": Case((0, 1, 2), alignments, {"align_layer": 1}),
    "align_units": Case(("words", "characters"), word_alignments),
    "trg_lang": Case(("", "fr"), read),
    "tags": Case(([], ["news"]), read),
    "max_len_a": Case((2.0, 1.0, 0.0), longest),
    "max_len_b": Case((20, 6, 1), longest),
    "min_len_a": Case((0.0, 0.5, 1.0), shortest),
    "min_len_b": Case((0, 3, 6), shortest),
    "no_repeat": Case((0, 1, 2), ids),
    "split": Case(("long", "every"), n_piece),
    "max_src_len": Case((0, 16, 32), n_piece),
    "max_tokens": Case((16384, 1), batches),
    "window": Case((1000, 2, 1), n_line_taken_at_once),
    "copy_letterless": Case((True, False), text_without_letters),
}


def test_every_option_of_decoding_is_tried():
    assert set(CASES) == set(DecodeConfig.model_fields)
    for name, case in CASES.items():
        assert len(case.values) > 1, name


@pytest.mark.parametrize("name", CASES)
def test_an_option_has_its_effect(lab, name):
    case = CASES[name]
    seen = [case.seen(lab, **{**(case.given or {}), name: value}) for value in case.values]
    for (one, parts), (other, others) in itertools.combinations(zip(case.values, seen, strict=True), 2):
        for part, another in zip(parts, others, strict=True):
            assert part != another, f"decode.{name} of {one} and of {other} are all the same"
