"""What the parts of a corpus are called: its sides; train, test, and validation sets of which there may be several."""

SIDES = ("src", "trg")
VALID = "valid"


def split_of(set_name: str) -> str:
    """What the files of a validation set are called in the folder: "valid", or "valid-NAME" under another name."""
    return VALID if set_name == VALID else f"{VALID}-{set_name}"


def set_of(split: str) -> str | None:
    """The name of the validation set that a split is; None where it is none."""
    return split.removeprefix(f"{VALID}-") if split.partition("-")[0] == VALID else None
