"""Lines translated and scored by CTranslate2, from a folder that nmt-export wrote, through our own front end.

What is read, batched, ranked and written is what it always is; the search inside is another one.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from nmt.data.text.tags import Tagging, known_tags
from nmt.data.vocabulary.subwords import BOS, EOS, PAD, Subwords
from nmt.decoding.batch_search import Row
from nmt.decoding.long_lines import limits_of
from nmt.decoding.scoring.scorer import Look, length_divisor
from nmt.decoding.search.beam import Hypothesis, impossible
from nmt.decoding.translator import Translator
from nmt.errors import MachineError, RecipeError, RunError
from nmt.evaluation.pairwise import expected_utility
from nmt.export.ctranslate2 import entries, library
from nmt.export.parity import greedy, greedy_config
from nmt.export.positions import N_POSITION
from nmt.export.safetensors import beside
from nmt.files import refuse_links_out, sha256_of
from nmt.recipe.decode_options import DecodeConfig
from nmt.run import Run

CANNOT_ASK = (
    "CTranslate2 cannot be asked how a translation begins or what it contains: translate with the run that was "
    "exported."
)
_ITS_FILES = ("config.json", "shared_vocabulary.json", "source_vocabulary.json", "target_vocabulary.json")
# What is done here or by the front end. Any other option of the section has to be as it is by default.
_OF_SEARCH = {"beam", "length_penalty", "alpha", "n_best", "mbr", "max_len_a", "max_len_b"}
_KNOWN = _OF_SEARCH | {"low_score", "max_tokens", "window", "split", "max_src_len", "copy_letterless"}
_KNOWN |= {"trg_lang", "tags"}  # subwords of the source
# Which a run may have stored, and nothing here asks for.
_KNOWN |= {"align_layer", "align_head", "align_when", "align_units"}


def has_model(folder: Path) -> bool:
    """Whether a folder holds a model of CTranslate2."""
    return Run(folder).ctranslate2_file.is_file()


def is_exported(folder: Path) -> bool:
    """Whether a folder is one of those that nmt-export writes, with nothing of others in it."""
    there = Run(folder)
    ours = {there.ctranslate2_file, there.recipe_file, there.subwords_file}
    return ours <= set(folder.iterdir()) <= ours | {folder / name for name in _ITS_FILES} | beside(folder)


def exported_run(folder: str | Path) -> Run:
    """An exported folder. Raises RunError for what is none, or lacks our recipe or subwords."""
    run = Run(folder)
    refuse_links_out(run.folder)
    if not run.folder.is_dir():
        raise RunError(f"{folder}: no such folder. Make it: nmt-export runs/NAME --to ctranslate2 --output {folder}")
    if not has_model(run.folder):
        raise RunError(
            f"{folder} is no model of CTranslate2: there is no {run.ctranslate2_file.name} in it. Export the run "
            f"first: nmt-export {folder} --to ctranslate2 --output FOLDER, and name that folder."
        )
    if not run.exists or not run.subwords_file.is_file():
        raise RunError(
            f"{folder}: {run.recipe_file.name} or {run.subwords_file.name} is missing, which nmt-export writes beside "
            "the model. Export the run again."
        )
    return run


def fingerprint(folder: str | Path) -> str:
    """What stands for the weights and the vocabulary in an exported folder."""
    run = exported_run(folder)
    return f"{sha256_of(run.ctranslate2_file)} {sha256_of(run.subwords_file)}"


class CTranslate2Model:
    """A model of CTranslate2, ids in and ids out. It may be used by several threads at once."""

    def __init__(self, folder: Path, subwords: Subwords, device: torch.device) -> None:
        where: dict[str, Any] = {"device": device.type, "device_index": device.index or 0}
        try:
            self._theirs: Any = library().Translator(
                str(folder), compute_type="default", intra_threads=torch.get_num_threads(), **where
            )
        except (RuntimeError, ValueError) as error:
            raise MachineError(f"{folder}: CTranslate2 cannot load it on {device}: {_first_line(error)}.") from None
        self._src, self._trg = entries(subwords.src), entries(subwords.trg)
        self._number = {entry: i for i, entry in enumerate(self._trg)}
        self._never = [[self._trg[i]] for i in impossible(PAD, BOS, subwords.trg.n_text, len(self._trg))]

    def search(self, src_ids: Sequence[list[int]], config: DecodeConfig, n_best: int) -> list[list[Hypothesis]]:
        """The n_best translations of each row of ids, best first; all rows are one batch.

        A length penalty matters only when hypotheses have ended: there it is ours. All rows may become as long as the
        longest source allows. Raises MachineError for scores that are not finite, and when memory is too small.
        """
        cap = max(int(config.max_len_a * len(row)) + config.max_len_b for row in src_ids)
        cap = min(cap, N_POSITION - 2)
        alpha = 0.0 if config.length_penalty == "none" else config.alpha
        done = self._call(
            self._theirs.translate_batch,
            [[self._src[i] for i in row] for row in src_ids],
            beam_size=config.beam,
            num_hypotheses=config.beam,
            length_penalty=alpha,
            min_decoding_length=0,  # to find nothing to say is a translation, too
            max_decoding_length=cap,
            suppress_sequences=self._never,
            return_end_token=True,
            return_scores=True,
        )
        found = [self._ranked(one, alpha, config, n_best) for one in done]
        # Their log-probabilities are shares of what is not suppressed; ours, as in training, of all there is.
        pairs = [(row, ids) for row, its in zip(src_ids, found, strict=True) for ids, _ in its]
        told = iter(self.score([row for row, _ in pairs], [ids for _, ids in pairs], config.max_tokens))
        exact = [[_hypothesis(ids, next(told), finished, config) for ids, finished in its] for its in found]
        return [sorted(its, key=lambda one: -one.normalised)[:n_best] for its in exact]

    def score(
        self, src_ids: Sequence[Sequence[int]], trg_ids: Sequence[Sequence[int]], max_tokens: int
    ) -> list[list[float]]:
        """Log-probability of each token of given translations, EOS included."""
        source = [[self._src[i] for i in row] for row in src_ids]
        target = [[self._trg[i] for i in row] for row in trg_ids]
        done = self._call(self._theirs.score_batch, source, target, max_batch_size=max_tokens, batch_type="tokens")
        return [list(one.log_probs) for one in done]

    def _ranked(self, found: Any, alpha: float, config: DecodeConfig, n_best: int) -> list[tuple[list[int], bool]]:
        """What was found for a line, best first: ids without EOS, and whether that was there.

        The n_best; or all, if any was cut at the cap, whose score lacks the end that it has not come to.
        """
        its: list[tuple[float, list[int], bool]] = []
        for entry, score in zip(found.hypotheses, found.scores, strict=True):
            ids = [self._number[each] for each in entry]
            finished = ids[-1:] == [EOS]
            total = score * len(ids) ** alpha  # theirs is over the length to this power
            its.append((total / _divisor(len(ids), config), ids[:-1] if finished else ids, finished))
        its.sort(key=lambda one: -one[0])
        keep = n_best if all(finished for *_, finished in its) else len(its)
        return [(ids, finished) for _, ids, finished in its[:keep]]

    @staticmethod
    def _call(method: Callable[..., Any], *args: Any, **known: Any) -> Any:
        try:
            return method(*args, **known)
        except RuntimeError as error:
            raise MachineError(f"CTranslate2 could not go on: {_first_line(error)}.") from None


def _hypothesis(ids: Sequence[int], told: list[float], finished: bool, config: DecodeConfig) -> Hypothesis:
    score = math.fsum(told)
    if not math.isfinite(score):
        raise MachineError("the scores of CTranslate2 are not finite, so nothing can be translated: export it in fp32.")
    return Hypothesis(list(ids), score, score / _divisor(len(ids) + 1, config), finished)


def _divisor(n_token: int, config: DecodeConfig) -> float:
    return float(length_divisor(torch.tensor(n_token), config.length_penalty, config.alpha))


def _first_line(error: Exception) -> str:
    return str(error).split("\n")[0].rstrip(".")


class CTranslate2Search:
    """What it does for a `Translator`, as options say. Raises RecipeError for those that CTranslate2 has not."""

    model = None  # of ours: CTranslate2 keeps to itself where it looks

    def __init__(self, exported: CTranslate2Model, config: DecodeConfig) -> None:
        if found := list(refused(config)):
            raise RecipeError(
                f"CTranslate2 has nothing like {', '.join(found)}: leave that as it is by default, or translate with "
                "the run that was exported."
            )
        self._exported, self._config = exported, config

    def search(self, rows: Sequence[Row]) -> list[list[Hypothesis]]:
        """The hypotheses of each row, best first. Raises RecipeError where anything is asked of a translation."""
        if any(request.asks for _, request in rows):
            raise RecipeError(CANNOT_ASK)
        config, ids = self._config, [ids for ids, _ in rows]
        return self._exported.search(ids, config, config.n_best if config.mbr == "none" else config.beam)

    def log_probs(
        self, src_ids: Sequence[list[int]], trg_ids: Sequence[list[int]], look: Look | None = None
    ) -> list[list[float]]:
        """Log-probability of each token of given translations, EOS included."""
        assert look is None
        return self._exported.score(src_ids, trg_ids, self._config.max_tokens)


def refused(config: DecodeConfig) -> Iterator[str]:
    """Options of the section decode that would have no effect, each with its value and its default."""
    for name, field in type(config).model_fields.items():
        value = getattr(config, name)
        if name not in _KNOWN and value != (usual := field.get_default(call_default_factory=True)):
            hint = ", as nmt-export --quantization decides that" if name == "precision" else ""
            yield f"decode.{name}: {value} (by default {usual}{hint})"


class Loaded:
    """An exported folder, ready to translate: what `nmt.load` gives of a run."""

    def __init__(self, folder: str | Path, device: torch.device) -> None:
        self.run = exported_run(folder)
        self.recipe, self.subwords = self.run.recipe(), self.run.subwords()
        self.model = CTranslate2Model(self.run.folder, self.subwords, device)

    def translator(self, decode: DecodeConfig) -> Translator:
        """What translates with these options. Raises RecipeError for those that CTranslate2 has not."""
        utility = None
        data = self.recipe.data
        tags_of = Tagging(decode, self.subwords.src.tags, data.trg_lang, known_tags(data))
        if decode.mbr != "none":
            utility = partial(expected_utility, utility=decode.mbr, trg_lang=self.recipe.data.trg_lang)
        limits = limits_of(decode, max_len=self.recipe.data.max_len, usual_src_len=self.run.usual_src_len())
        languages = self.recipe.data.src_lang, self.recipe.data.trg_lang
        search = CTranslate2Search(self.model, decode)
        return Translator(search, self.subwords, decode, utility, limits, tags_of, languages)


class Compared:
    """An exported folder, on the CPU, to be compared with the model that was exported."""

    def __init__(self, folder: Path, subwords: Subwords) -> None:
        self._model, self._subwords = CTranslate2Model(folder, subwords, torch.device("cpu")), subwords

    def greedy(self, lines: Sequence[str], most: int) -> list[str]:
        """The translation of each line by greedy search, which ends it after `most` tokens."""
        config = greedy_config(most)
        translator = Translator(CTranslate2Search(self._model, config), self._subwords, config)
        return [self._subwords.trg.decode(ids) for ids in greedy(translator, self._subwords.src.encode(lines))]

    def score(self, lines: Sequence[str], trg_ids: Sequence[list[int]]) -> list[list[float]]:
        """Log-probability of each token of given translations of the lines, EOS included."""
        return self._model.score(self._subwords.src.encode(lines), trg_ids, DecodeConfig().max_tokens)
