"""The options of the filters: which pairs of a training corpus are not learnt from. 0 or false turns a filter off.

Validation and test pairs are never filtered. What the filters do is in `nmt/data/filters/`.
A corpus may have each of these options for itself; they are made from the declarations here.
"""

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, create_model

from nmt.recipe.section import Count, NonNegativeFloat, Rate, Section


class FilterConfig(Section):
    """What drops a training pair, beside a side that is empty or longer than data.max_len."""

    max_ratio: NonNegativeFloat = Field(
        4.0,
        description="Largest factor by which the ratio of the two sides' characters may differ from the median of its "
        "corpus; short pairs (under 40 characters both) are exempt; 0: any ratio.",
    )
    max_ratio_spread: NonNegativeFloat = Field(
        0.0,
        description="The same, in robust standard deviations of the logarithm of that ratio (6 is mild); where both "
        "are given, the narrower one counts; 0: any.",
    )
    drop_identical: bool = Field(True, description="Drop training pairs whose two sides are the same text.")
    drop_control: bool = Field(
        True, description="Drop pairs with control characters inside, such as NUL; tabs and line breaks are none."
    )
    drop_damaged: bool = Field(
        True, description="Drop pairs with U+FFFD, or with UTF-8 that was read as another encoding (fÃ¼r, donâ€™t)."
    )
    min_script: Rate = Field(
        0.2,
        description="Least share of a side's letters, in bytes, that are of a script of its language, from 15 bytes of "
        "other letters on; a language that is not known has any script; 0: any share.",
    )
    max_symbols: Rate = Field(
        0.9,
        description="Largest share of digits, punctuation and symbols in a side of 20 characters or more, a row of "
        "dots counted as one; 0: any.",
    )
    max_repeats: Literal[0] | Annotated[int, Field(ge=3)] = Field(
        5,
        description="Most times in a row that a piece of text, with letters and 48 bytes or more in all, may stand; 0: "
        "any number.",
    )
    max_other_language: Rate = Field(
        0.0,
        description="Drop pairs with a side that is in another language with a higher probability than this, says "
        "py3langid (extra langid); 0: do not ask.",
    )
    drop_duplicates: bool = Field(False, description="Keep a training pair that occurs again only once.")
    drop_near_duplicates: bool = Field(
        False, description="The same for pairs that differ in case, digits, punctuation, spaces or width alone."
    )
    max_translations: Count = Field(
        0, description="Keep at most this many pairs with the same source, and with the same target; 0: all."
    )


def _own_fields() -> dict[str, Any]:
    """Each filter once more, which may be left out: then it is as the section has it."""
    found = {}
    for name, field in FilterConfig.model_fields.items():
        kind: Any = field.annotation
        bounded = Annotated[kind, *field.metadata] if field.metadata else kind
        about = f"data.{name} of this corpus alone; empty: as there. {field.description}"
        found[name] = (bounded | None, Field(None, description=about))
    return found


if TYPE_CHECKING:

    class OwnFilters(Section):
        """For mypy only: the class below is made at run time."""

else:
    OwnFilters = create_model(
        "OwnFilters", __base__=Section, __doc__="What drops a pair of one corpus.", **_own_fields()
    )
