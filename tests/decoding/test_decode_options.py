"""Each decoding option has an effect: any two of its values give different outputs for the same lines."""

import itertools
import json
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import pytest
import torch

import nmt
from nmt import api, checkpoint
from nmt.cli.translate import main
from nmt.data.subwords import EOS, PAD
from nmt.models.build import build_model
from nmt.ops import int8_product
from nmt.recipe.decode_options import DecodeConfig
from nmt.recipe.reader import read_recipe, write_recipe
from nmt.run import Run
from tests.learnt import learnt_subwords

OPTIONS = {
    "name": "tiny", "model.d_model": "16", "model.d_inner": "16", "model.n_head": "2", "model.n_enc_layer": "1",
    "model.n_dec_layer": "2", "model.trg_emb_prj_weight_sharing": "false", "subwords.vocab_size": "280",
    "decode.max_len_a": "1.0", "decode.max_len_b": "6", "data.trg_lang": "en",
    "data.train": '[{src: a, trg: b}, {src: c, trg: d, trg_lang: fr, tags: [news]}]',
}  # fmt: skip
LINES = ["the ship", "the old ship left", "in May", "für Übung und May"]
TWO_SENTENCES, LONG = "The ship left. In May.", "the ship " * 12


class Lab(NamedTuple):
    """A run of two languages, and its model."""

    run: Run
    model: api.Model

    def translator(self, **options):
        return self.model.translator(self.model.decode(**options))


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    run = Run(tmp_path_factory.mktemp("runs") / "tiny")
    run.folder.mkdir()
    recipe = read_recipe(None, list(OPTIONS.items()))
    write_recipe(recipe, run.recipe_file)
    lines = ["the old ship left in May"] * 9
    subwords = learnt_subwords(lines, lines, recipe.subwords, tags=recipe.data.known_tags)
    subwords.save(run.subwords_file)
    torch.manual_seed(10)
    model = build_model(recipe.model, subwords.src.n_vocab, subwords.trg.n_vocab, PAD).eval()
    weight = model.trg_word_prj.weight
    with torch.no_grad():  # sharper logits, as in a trained model
        for parameter in model.parameters():
            parameter.mul_(1.5)
        weight.mul_(6.0)
        written_ids = [
            i for out in api.Model(model, subwords, [run], ["model"]).translate(LINES) for i in out.hypotheses[0].ids
        ]
        # EOS is as likely as the most frequent token: some hypotheses end by themselves, others at the cap.
        weight[EOS] = weight[Counter(written_ids).most_common(1)[0][0]]
    checkpoint.save(run.model_folder, {checkpoint.MODEL: checkpoint.weights_of(model)}, {"update": 1})
    (run.folder / "lines").write_text("\n".join(LINES), encoding="utf-8")
    return Lab(run, nmt.load(run.folder, device="cpu"))


# Observations: each returns a list, and every element must change with the option.


def translations(lab, lines=LINES, **options):
    return [list(lab.translator(**options).translate(lines))]


def translations_of_lines_and_pieces(lab, **options):
    return translations(lab, **options) + translations(lab, [TWO_SENTENCES], split="every", **options)


def piece_counts(lab, **options):
    return [[len(translation.parts) for translation in lab.translator(**options).translate([TWO_SENTENCES, LONG])]]


def hypotheses(lab, **options):
    """All hypotheses of each line, before any choice among them."""
    batches = lab.translator(**options).batches(lab.model.subwords.src.encode(LINES))
    return [[(numbers.tolist(), found) for numbers, found in batches]]


def utilities_of_samples_and_hypotheses(lab, **options):
    sampled = lab.translator(samples=4, **options).translate(LINES)
    return [[out.utilities for out in outs] for outs in (sampled, lab.translator(**options).translate(LINES))]


def is_replayed_on_a_gpu(lab, **options):
    model = nmt.load(lab.run.folder, device="cpu")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(model.model), "device", torch.device("cuda"))
        return [model.translator(model.decode(**options)).fixed is not None]


def batch_sizes(lab, **options):
    """Sizes of the searched batches and of the scored ones."""
    translator, scored = lab.translator(**options), []
    with translator.model.register_forward_hook(lambda _model, args, _logits: scored.append(len(args[0]))):
        list(translator.score(LINES, LINES))
    return [[len(numbers) for numbers, _ in translator.batches(lab.model.subwords.src.encode(LINES))], scored]


def n_lines_read_ahead(lab, **options):
    lines = iter(LINES)
    next(lab.translator(**options).translate(lines))
    return [len(list(lines))]


def jsonl_fields(lab, **options):
    """Fields that nmt-translate writes."""
    out = lab.run.folder / "out"
    flags = [f"--decode.{name}={value}" for name, value in options.items()]
    files = ["--input", str(lab.run.folder / "lines"), "--output", str(out), "--overwrite"]
    assert not main([str(lab.run.folder), *files, "--format", "jsonl", "--device", "cpu", "--threads", "1", *flags])
    return [[json.loads(line) for line in out.read_text(encoding="utf-8").split("\n")[:-1]]]


class Case(NamedTuple):
    """Values of an option with pairwise different observations, and other options that stay fixed."""

    values: tuple[Any, ...]
    observe: Callable[..., list[Any]] = translations
    fixed_options: dict[str, Any] | None = None


SAMPLES = {"samples": 4}
CASES = {
    "beam": Case((5, 2, 1)),
    "length_penalty": Case(("wu", "average", "none"), translations_of_lines_and_pieces, {"beam": 1}),
    "alpha": Case((1.0, 0.5, 0.0), translations_of_lines_and_pieces, {"beam": 1}),
    "n_best": Case((1, 2, 3)),
    "samples": Case((0, 2, 5), hypotheses),
    "temperature": Case((1.0, 0.3, 3.0), hypotheses, SAMPLES),
    "top_k": Case((0, 1, 5), hypotheses, SAMPLES),
    "top_p": Case((1.0, 0.6, 0.1), hypotheses, SAMPLES),
    "epsilon": Case((0.0, 0.05, 0.9), hypotheses, SAMPLES),
    "seed": Case((1, 2, 3), hypotheses, SAMPLES),
    "mbr": Case(("none", "chrf"), utilities_of_samples_and_hypotheses),
    "precision": Case(("fp32", "bf16", "int8") if int8_product() else ("fp32", "bf16")),
    "cuda_graphs": Case((True, False), is_replayed_on_a_gpu),
    "low_score": Case((0.0, -0.01), jsonl_fields),
    "align_layer": Case((0, 1, 2), jsonl_fields),
    "align_head": Case((0, 1, 2), jsonl_fields, {"align_layer": 1}),
    "align_units": Case(("words", "characters"), jsonl_fields),
    "trg_lang": Case(("", "fr")),
    "tags": Case(([], ["news"])),
    "max_len_a": Case((2.0, 1.0, 0.0), hypotheses),
    "max_len_b": Case((20, 6, 1), hypotheses),
    "min_len_a": Case((0.0, 0.5, 1.0), hypotheses),
    "min_len_b": Case((0, 3, 6), hypotheses),
    "no_repeat": Case((0, 1, 2), hypotheses),
    "split": Case(("long", "every"), piece_counts),
    "max_src_len": Case((0, 16, 32), piece_counts),
    "max_tokens": Case((16384, 1), batch_sizes),
    "window": Case((1000, 2, 1), n_lines_read_ahead),
    "copy_letterless": Case((True, False), partial(translations, lines=["... !"])),
}


def test_every_decoding_option_has_a_case():
    assert set(CASES) == set(DecodeConfig.model_fields) - {"qe"}  # see test_quality_estimation.py
    assert all(len(case.values) > 1 for case in CASES.values())


@pytest.mark.parametrize("name", CASES)
def test_each_value_of_an_option_changes_the_output(lab, name):
    case = CASES[name]
    observed = [case.observe(lab, **{**(case.fixed_options or {}), name: value}) for value in case.values]
    for (a, a_parts), (b, b_parts) in itertools.combinations(zip(case.values, observed, strict=True), 2):
        for a_part, b_part in zip(a_parts, b_parts, strict=True):
            assert a_part != b_part, f"decode.{name} of {a} and of {b} are all the same"
