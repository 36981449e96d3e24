"""decode.qe: choice among hypotheses by a fake quality estimator; tests/cli/test_comet.py uses COMET itself."""

import math

import pytest
import torch
from fake_model import HashModel
from small_search import subwords_of

from nmt.decoding.long_lines import Limits
from nmt.decoding.translator import Translator
from nmt.errors import RecipeError
from nmt.evaluation.metrics import Comet, expected_utility
from nmt.recipe.decode_options import DecodeConfig

LINES = ["the old ship", "in May", "the ship left", "the old ship", ""]


def quality(source, text):
    """An arbitrary but deterministic quality from -100 to 100."""
    return 100 * math.sin(sum(map(ord, source)) + 7 * sum(map(ord, text.strip())))


class FakeComet:
    hparams, device, needs = {}, torch.device("cpu"), False

    def eval(self):
        return self

    def requires_references(self):
        return self.needs

    def prepare_for_inference(self, samples):
        return samples

    def transfer_batch_to_device(self, batch, device, number):
        return batch

    def predict_step(self, batch):
        assert all("ref" not in row for row in batch)
        self.scores = torch.tensor([quality(row["src"], row["mt"]) / 100 for row in batch], dtype=torch.float64)
        return self


@pytest.fixture
def translator(monkeypatch):
    subwords = subwords_of(" ".join(LINES))
    model = HashModel(subwords.trg.n_vocab, seed=2, sharpness=3.0).eval()
    monkeypatch.setattr("nmt.decoding.translator.comet_model", lambda option, name, device: Comet(FakeComet(), name))
    return lambda limits=None, **options: Translator(
        model, subwords, DecodeConfig(max_len_a=0.5, max_len_b=4, **options), limits
    )


def all_texts(translator, line):
    """Texts of all hypotheses of a line, before any choice."""
    ((_, (found,)),) = translator.batches(translator.subwords.src.encode([line]))
    return [translator.subwords.trg.decode(h.ids).replace("\n", " ").replace("\r", " ") for h in found]


def ranking(translator, line):
    return sorted(all_texts(translator, line), key=lambda text: -quality(line, text))


@pytest.mark.parametrize("options", [{"beam": 6}, {"samples": 7}])
def test_qe_ranks_hypotheses_and_mbr_reranks_their_better_half(translator, options):
    by_quality, unranked = (list(translator(**options, n_best=6, **qe).translate(LINES)) for qe in ({"qe": "x"}, {}))
    by_utility = list(translator(**options, n_best=6, qe="x", mbr="chrf").translate(LINES))
    assert [translation.text for translation in by_quality] != [translation.text for translation in unranked]
    for line, ranked, reranked in list(zip(LINES, by_quality, by_utility, strict=True))[:-1]:
        texts = ranking(translator(**options, n_best=6), line)
        assert ranked.texts == list(dict.fromkeys(texts))[:6]
        assert ranked.qualities == pytest.approx([quality(line, text) for text in ranked.texts])
        assert [entry["qe"] for entry in ranked.n_best] == ranked.qualities and not ranked.utilities
        half = texts[: math.ceil(len(texts) / 2)]
        utility = dict(zip(half, expected_utility(half), strict=True))
        assert reranked.texts == sorted(dict.fromkeys(half), key=lambda text: -utility[text])
        assert reranked.utilities == [utility[text] for text in reranked.texts]


def test_split_line_takes_the_best_pieces_and_their_mean_quality(translator):
    split = translator(Limits(every=True), beam=6, qe="x")
    (line,) = split.translate(["The ship left. In May."])
    assert [part.text for part in line.parts] == [ranking(split, piece)[0] for piece in ("The ship left.", "In May.")]
    assert line.qualities == [sum(part.qualities[0] for part in line.parts) / 2]


def test_metric_that_needs_references_is_refused(translator, monkeypatch):
    monkeypatch.setattr(FakeComet, "needs", True)
    with pytest.raises(RecipeError, match=r"^decode\.qe: x needs references"):
        list(translator(qe="x").translate(LINES))
