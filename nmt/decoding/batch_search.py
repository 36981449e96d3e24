"""Search for one batch, by `beam.py`, `fixed_search.py` or `sample.py`; on out-of-memory split it in half and retry."""

from collections.abc import Sequence

import torch

from nmt.data.arrays import Ragged
from nmt.data.batches import pad
from nmt.data.subwords import BOS, EOS, PAD, Subwords
from nmt.decoding.beam import BeamSettings, Hypothesis, search
from nmt.decoding.candidates import characters_of
from nmt.decoding.fixed_search import FixedSearch
from nmt.decoding.phrases import pieces_of
from nmt.decoding.request import Request
from nmt.decoding.rules import Rules
from nmt.decoding.sample import Narrowing, fingerprint, sample
from nmt.decoding.scorer import Look, score_tokens
from nmt.errors import OutOfMemory, RecipeError, is_out_of_memory
from nmt.models.base import SearchModel, evaluating
from nmt.recipe.decode_options import DecodeConfig

Row = tuple[list[int], Request]  # the ids of a source, without EOS, and what is asked of its translation
BARE = Request("")  # of ids of which nothing else is known


class BatchSearch:
    """Searches with one model, as options say.

    fixed: the beam search, for the same model, where nothing is asked of a translation.
    whole_characters: False to let a model write bytes that are no UTF-8, as other engines do.
    """

    def __init__(
        self,
        model: SearchModel,
        subwords: Subwords,
        config: DecodeConfig,
        *,
        fixed: FixedSearch | None = None,
        whole_characters: bool = True,
    ) -> None:
        self.model, self.fixed = model, fixed
        self._subwords, self._config = subwords, config
        raw = subwords.trg.raw(range(subwords.trg.n_text))
        self._characters = characters_of(raw) if whole_characters else None
        n_best = config.n_best if config.mbr == "none" else config.beam  # mbr chooses among all that a beam has found
        self._how = BeamSettings.of(config, bos=BOS, eos=EOS, pad=PAD, n_real=subwords.trg.n_text, n_best=n_best)

    def log_probs(
        self, src_ids: Sequence[list[int]], trg_ids: Sequence[list[int]], look: Look | None = None
    ) -> list[list[float]]:
        """Log-probability of each token of given translations, EOS included. look: told where the model looked."""
        with evaluating(self.model):
            return score_tokens(self.model, src_ids, trg_ids, max_tokens=self._config.max_tokens, look=look)

    def search(self, rows: Sequence[Row]) -> list[list[Hypothesis]]:
        """Search for one batch; where the memory of the device is too small, for its halves. Raises OutOfMemory for one
        sentence, and RecipeError where phrases are required of samples."""
        try:
            return self._search_whole(rows)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            if len(rows) == 1:
                n_src, n_hypothesis = len(rows[0][0]), self._config.n_candidate
                instead = "" if self.model.device.type == "cpu" else ", or translate on the CPU: --device cpu"
                raise OutOfMemory(
                    f"the memory of {self.model.device} is too small for one sentence of {n_src} subwords and "
                    f"{n_hypothesis} hypotheses of it. Make decode.beam or decode.samples smaller{instead}."
                ) from None
        half = len(rows) // 2
        return self.search(rows[:half]) + self.search(rows[half:])

    def _search_whole(self, rows: Sequence[Row]) -> list[list[Hypothesis]]:
        config, ids, kinds = self._config, [ids for ids, _ in rows], self._subwords.src.protects
        requests = [request.in_placeholders(kinds) for _, request in rows]
        src_seq = pad(Ragged.of(ids), after=(EOS,)).to(self.model.device)
        n_src = torch.tensor([len(row) for row in ids])
        min_len = (config.min_len_a * n_src).long() + config.min_len_b
        max_len = (config.max_len_a * n_src).long() + config.max_len_b
        max_len += torch.tensor([self._n_asked(request) for request in requests])
        # Bare ids ask nothing of placeholders: they may be those of any text.
        is_bare = any(request is BARE for _, request in rows)
        placeholders = {} if is_bare else self._subwords.trg.placeholder_ids()
        rules = None
        if placeholders or config.no_repeat or int(min_len.max()) or any(request.asks for request in requests):
            rules = Rules(
                pieces_of(self._subwords.trg),
                requests,
                min_len=min_len.to(self.model.device),
                no_repeat=config.no_repeat,
                eos=EOS,
                placeholders=placeholders,
                n=config.samples or 1,
            )
        with evaluating(self.model):
            if not config.samples:
                if self.fixed and rules is None:
                    return self.fixed(src_seq, self._how, max_len, self._characters)
                return search(self.model, src_seq, self._how, max_len, rules=rules, characters=self._characters)
            if any(request.requires for request in requests):
                raise RecipeError("phrases can be required of beam search only: set decode.samples to 0.")
            narrowing = Narrowing(config.temperature, config.top_k, config.top_p, config.epsilon)
            return sample(
                self.model,
                src_seq,
                self._how,
                max_len,
                n=config.samples,
                seeds=[[config.seed, *fingerprint(row)] for row in ids],
                narrowing=narrowing,
                rules=rules,
                characters=self._characters,
            )

    def _n_asked(self, request: Request) -> int:
        """Subwords that are asked for, which a translation may have beside its own."""
        if not request.asks:
            return 0
        asked = [text for one in request.wanted for text in [one.phrase] * one.times]
        return sum(map(len, self._subwords.trg.encode([request.prefix, *asked] if request.prefix else asked)))
