"""The installed commands. What each of them imports, it imports after `begin`, which sees to Ctrl-C meanwhile; `ended`
does when the work is over.
"""

from nmt.cli.begin import begin, ended


def preprocess() -> int:
    """nmt-preprocess."""
    begin()
    from nmt.cli.preprocess import main

    return ended(main())


def train() -> int:
    """nmt-train."""
    begin()
    from nmt.cli.train import main

    return ended(main())


def translate() -> int:
    """nmt-translate."""
    begin()
    from nmt.cli.translate import main

    return ended(main())


def export() -> int:
    """nmt-export."""
    begin()
    from nmt.cli.export import main

    return ended(main())
