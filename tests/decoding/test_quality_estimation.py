"""decode.qe: the choice among hypotheses by their quality, estimated by a stand-in; COMET is in cli/test_comet.py."""

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


def worth(source, text):
    """A rule without reason, from -100 to 100."""
    return 100 * math.sin(sum(map(ord, source)) + 7 * sum(map(ord, text.strip())))


class Judge:
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
        assert all("ref" not in one for one in batch)
        self.scores = torch.tensor([worth(one["src"], one["mt"]) / 100 for one in batch], dtype=torch.float64)
        return self


@pytest.fixture
def translator(monkeypatch):
    subwords = subwords_of(" ".join(LINES))
    model = HashModel(subwords.trg.n_vocab, seed=2, sharpness=3.0).eval()
    monkeypatch.setattr("nmt.decoding.translator.comet_model", lambda option, name, device: Comet(Judge(), name))
    return lambda limits=None, **how: Translator(
        model, subwords, DecodeConfig(max_len_a=0.5, max_len_b=4, **how), limits
    )


def found_for(translator, line):
    """Texts of all hypotheses of a line, before any choice."""
    ((_, (found,)),) = translator.batches(translator.subwords.src.encode([line]))
    return [translator.subwords.trg.decode(one.ids).replace("\n", " ").replace("\r", " ") for one in found]


def by_worth(translator, line):
    return sorted(found_for(translator, line), key=lambda text: -worth(line, text))


@pytest.mark.parametrize("how", [{"beam": 6}, {"samples": 7}])
def test_what_was_found_is_ranked_by_its_quality_or_its_better_half_by_its_utility(translator, how):
    by_quality, usual = (list(translator(**how, n_best=6, **qe).translate(LINES)) for qe in ({"qe": "x"}, {}))
    by_utility = list(translator(**how, n_best=6, qe="x", mbr="chrf").translate(LINES))
    assert [one.text for one in by_quality] != [one.text for one in usual]
    for line, one, other in list(zip(LINES, by_quality, by_utility, strict=True))[:-1]:
        texts = by_worth(translator(**how, n_best=6), line)
        assert one.texts == list(dict.fromkeys(texts))[:6]
        assert one.qualities == pytest.approx([worth(line, text) for text in one.texts])
        assert [part["qe"] for part in one.n_best] == one.qualities and not one.utilities
        half = texts[: math.ceil(len(texts) / 2)]
        utility = dict(zip(half, expected_utility(half), strict=True))
        assert other.texts == sorted(dict.fromkeys(half), key=lambda text: -utility[text])
        assert other.utilities == [utility[text] for text in other.texts]


def test_the_best_is_that_of_all_hypotheses_and_of_a_line_in_pieces_the_mean_is_told(translator):
    whole = translator(Limits(every=True), beam=6, qe="x")
    (line,) = whole.translate(["The ship left. In May."])
    assert [one.text for one in line.parts] == [by_worth(whole, piece)[0] for piece in ("The ship left.", "In May.")]
    assert line.qualities == [sum(one.qualities[0] for one in line.parts) / 2]


def test_a_model_that_needs_references_is_refused(translator, monkeypatch):
    monkeypatch.setattr(Judge, "needs", True)
    with pytest.raises(RecipeError, match=r"^decode\.qe: x needs references"):
        list(translator(qe="x").translate(LINES))
