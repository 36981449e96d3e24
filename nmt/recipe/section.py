"""Base class of the sections of a recipe, and types of their options: bounded numbers, durations, names, languages."""

from types import GenericAlias
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from nmt.languages import canonical

MOST_THREADS = 1024  # in one process: with several thousand threads OpenMP ends the process without a message
PositiveInt = Annotated[int, Field(ge=1)]
Count = Annotated[int, Field(ge=0)]
Rate = Annotated[float, Field(ge=0.0, lt=1.0)]
PositiveFloat = Annotated[float, Field(gt=0.0)]
NonNegativeFloat = Annotated[float, Field(ge=0.0)]
# A length of time: days, hours, minutes and seconds in this order, none of them zero; or an empty text.
_DURATION = r"^(([1-9][0-9]*d)?([1-9][0-9]*h)?([1-9][0-9]*m)?([1-9][0-9]*s)?)$"
Duration = Annotated[str, Field(pattern=_DURATION, max_length=20, examples=["90s", "20m", "1h30m", "2d"])]
PlainName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=100)]
# The canonical code of a language. Empty text stays: the default of some options.
LanguageCode = Annotated[str, AfterValidator(lambda code: code and canonical(code))]


class Section(BaseModel):
    """A part of a recipe: frozen, strict about types, unknown keys and infinities refused."""

    # Validators are built at their first use (defer_build), since --help needs none of them.
    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, defer_build=True, use_attribute_docstrings=True
    )


def one_or_many(kind: Any) -> BeforeValidator:
    """Return a validator for a list of this kind that also takes one item without a list, and None as an empty list."""
    return BeforeValidator(
        lambda value: value if isinstance(value, list) else [] if value is None else [value],
        json_schema_input_type=kind | GenericAlias(list, kind),
    )
