"""Words of a file, a recipe or a flag, as they may be shown in a terminal."""


def printable(text: str) -> str:
    """Text with every control character escaped: words of a file may be printed, its terminal commands may not."""
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape", "backslashreplace").decode("ascii") for c in text
    )
