"""All options of a recipe: each name, type, default, bound and one-line help is declared once.

The YAML reader, `--help-all`, the option tables and the JSON Schema are generated from these models. Most sections have
a file of their own, such as `data_options.py`. This file has the other sections and the recipe as a whole. Presets live
in `model_options.py`, reading in `reader.py`, tables in `fields.py`.
"""

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, PrivateAttr, model_validator

from nmt.recipe.contradictions import find_contradictions
from nmt.recipe.data_options import DataConfig, SubwordsConfig
from nmt.recipe.decode_options import DecodeConfig
from nmt.recipe.model_options import ModelConfig
from nmt.recipe.places import Origin, has_runs, is_prepared
from nmt.recipe.section import Count, PlainName, PositiveInt, Section
from nmt.recipe.training_options import BatchConfig, OptimConfig, RegularizeConfig, TrainConfig


class ValidConfig(Section):
    """Interval and metric of validation, and early stopping."""

    every: PositiveInt | Literal["auto"] = 1000
    """Updates between two validations. auto: ten in a time budget, else a tenth of the updates, at most 500."""
    metric: Literal["bleu", "chrf", "ter", "comet", "loss", "accuracy"] = "bleu"
    """Metric that selects the best checkpoint."""
    comet: Annotated[str, Field(min_length=1)] = "Unbabel/wmt22-comet-da"
    """Of metric comet: the model, a name on Hugging Face or the path of a .ckpt. Weights are read, no code is run."""
    patience: Count = 0
    """Validations without a new best before training stops; 0: never."""
    beam: PositiveInt = 1
    """Beam of the validation translations; 1 is greedy."""
    max_sentences: Count = 0
    """Translate at most this many validation pairs, the first ones; 0: all."""
    translate: bool = True
    """Translate the validation set for BLEU and chrF."""
    max_tokens: PositiveInt = 8192
    """Bound on sentences x longest sentence in one validation batch."""


class Recipe(Section):
    """One complete experiment."""

    name: PlainName
    """Name of the experiment: letters, digits, dots, dashes; names its folders."""
    seed: Count = 1
    """Seed of all random draws."""
    data: DataConfig = Field(default_factory=lambda: DataConfig())
    """Corpora and filters."""
    subwords: SubwordsConfig = Field(default_factory=lambda: SubwordsConfig())
    """The vocabulary."""
    model: ModelConfig = Field(default_factory=lambda: ModelConfig())
    """The model."""
    batch: BatchConfig = Field(default_factory=lambda: BatchConfig())
    """Batches of an update."""
    optim: OptimConfig = Field(default_factory=lambda: OptimConfig())
    """Optimizer and schedule."""
    train: TrainConfig = Field(default_factory=lambda: TrainConfig())
    """Length, precision, checkpoints."""
    regularize: RegularizeConfig = Field(default_factory=lambda: RegularizeConfig())
    """Regularisers."""
    valid: ValidConfig = Field(default_factory=lambda: ValidConfig())
    """Validation."""
    decode: DecodeConfig = Field(default_factory=lambda: DecodeConfig())
    """Translation."""

    _origin: Origin = PrivateAttr(default_factory=Origin)

    @property
    def origin(self) -> Origin:
        """Return the origin of the recipe, which decides the folders for the lookup of its names."""
        return self._origin

    def with_origin(self, origin: Origin) -> Self:
        """Return a copy of the recipe with another origin."""
        copied = self.model_copy()
        copied._origin = origin
        return copied

    def with_options(self, **sections: dict[str, Any]) -> Self:
        """Return a copy with other options in some sections, not validated: with_options(train={"updates": 100})."""
        changed = {name: getattr(self, name).model_copy(update=options) for name, options in sections.items()}
        return self.model_copy(update=changed)

    @property
    def data_name(self) -> str:
        """Name of the folder of prepared data, as the recipe has it."""
        return self.data.out or f"prepared/{self.name}"

    @property
    def data_folder(self) -> Path:
        """Folder that nmt-preprocess writes and nmt-train reads."""
        if self._is_given("data.out", self.data.out):
            return Path(self.data_name)
        prepared = self.origin.prepared or self.origin.data_of_run()
        return prepared or self.origin.find("data.out", self.data_name, is_prepared)

    @property
    def run_folder(self) -> Path:
        """Folder that nmt-train writes and nmt-translate reads."""
        name = self.train.out or f"runs/{self.name}"
        if self._is_given("train.out", self.train.out):
            return Path(name)
        return self.origin.run or self.origin.find("train.out", name, has_runs)

    def _is_given(self, option: str, value: str) -> bool:
        """Return whether the command line gives a folder: by its option or, if that is empty, by `name`."""
        return option in self.origin.given or (not value and "name" in self.origin.given)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if contradictions := [*find_contradictions(self)]:
            raise ValueError("\n".join(contradictions))
        return self
