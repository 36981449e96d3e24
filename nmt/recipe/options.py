"""THE options: every name, type, default, bound and one-line help, written once.

The YAML reader, `--help-all`, the option tables and the JSON Schema are made from these models. Nearly every section
has a file of its own, such as `data_options.py`; here is the rest, and the recipe as a whole. Presets live in
`model_options.py`, reading in `reader.py`, tables in `fields.py`.
"""

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, PrivateAttr, model_validator

from nmt.recipe.contradictions import find_contradictions
from nmt.recipe.data_options import DataConfig, SubwordsConfig
from nmt.recipe.decode_options import DecodeConfig
from nmt.recipe.model_options import ModelConfig
from nmt.recipe.places import Origin, is_of_run, is_prepared
from nmt.recipe.section import Count, PlainName, PositiveInt, Section
from nmt.recipe.training_options import BatchConfig, OptimConfig, RegularizeConfig, TrainConfig


class ValidConfig(Section):
    """When the model is measured, by what, and when to stop."""

    every: PositiveInt | Literal["auto"] = 1000
    """Updates between two validations. auto: ten in a time budget, else a tenth of the updates, at most 500."""
    metric: Literal["bleu", "chrf", "ter", "comet", "loss", "accuracy"] = "bleu"
    """What the best checkpoint is best in."""
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

    def is_regular(self, update: int) -> bool:
        """Return whether a validation is due at an update by its number; by the clock there is none."""
        return self.every != "auto" and update % self.every == 0


class Recipe(Section):
    """One experiment, whole."""

    name: PlainName
    """Name of the experiment: letters, digits, dots, dashes; names its folders."""
    seed: Count = 1
    """Seed of everything that is drawn."""
    data: DataConfig = Field(default_factory=lambda: DataConfig())
    """Corpora and filters."""
    subwords: SubwordsConfig = Field(default_factory=lambda: SubwordsConfig())
    """The vocabulary."""
    model: ModelConfig = Field(default_factory=lambda: ModelConfig())
    """The model."""
    batch: BatchConfig = Field(default_factory=lambda: BatchConfig())
    """What an update is made of."""
    optim: OptimConfig = Field(default_factory=lambda: OptimConfig())
    """Optimizer and schedule."""
    train: TrainConfig = Field(default_factory=lambda: TrainConfig())
    """Length, precision, checkpoints."""
    regularize: RegularizeConfig = Field(default_factory=lambda: RegularizeConfig())
    """What the model must do without while it is trained."""
    valid: ValidConfig = Field(default_factory=lambda: ValidConfig())
    """Validation."""
    decode: DecodeConfig = Field(default_factory=lambda: DecodeConfig())
    """Translation."""

    _origin: Origin = PrivateAttr(default_factory=Origin)

    @property
    def origin(self) -> Origin:
        """Return where the recipe comes from, and so where the names in it are looked for."""
        return self._origin

    def coming_from(self, origin: Origin) -> Self:
        """The same recipe from elsewhere."""
        same = self.model_copy()
        same._origin = origin
        return same

    @property
    def data_name(self) -> str:
        """The folder of the prepared data as the recipe names it."""
        return self.data.out or f"prepared/{self.name}"

    @property
    def data_folder(self) -> Path:
        """Folder that nmt-preprocess writes and nmt-train reads."""
        if self._gives("data.out", self.data.out):
            return Path(self.data_name)
        own = self.origin.prepared or self.origin.data_of_run()
        return own or self.origin.find("data.out", self.data_name, is_prepared)

    @property
    def run_folder(self) -> Path:
        """Folder that nmt-train writes and nmt-translate reads."""
        name = self.train.out or f"runs/{self.name}"
        if self._gives("train.out", self.train.out):
            return Path(name)
        return self.origin.run or self.origin.find("train.out", name, is_of_run)

    def _gives(self, option: str, value: str) -> bool:
        """Return whether the command line names a folder, by its option or, where that is empty, by the name."""
        return option in self.origin.given or (not value and "name" in self.origin.given)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if found := find_contradictions(self):
            raise ValueError("\n".join(found))
        return self
