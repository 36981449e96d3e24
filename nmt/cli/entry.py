"""The installed commands. What each of them imports, it imports after `begin`, which sees to Ctrl-C meanwhile."""

from nmt.cli.begin import begin


def preprocess() -> int:
    """nmt-preprocess."""
    begin()
    from nmt.cli.preprocess import main

    return main()


def train() -> int:
    """nmt-train."""
    begin()
    from nmt.cli.train import main

    return main()


def translate() -> int:
    """nmt-translate."""
    begin()
    from nmt.cli.translate import main

    return main()


def export() -> int:
    """nmt-export."""
    begin()
    from nmt.cli.export import main

    return main()
