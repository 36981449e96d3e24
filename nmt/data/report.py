"""The account of the training pairs: how many were read, kept and dropped, why, and where; what else was noticed."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from nmt.data.clean import REASONS
from nmt.data.learn import LINE_CAP, WORD_CAP
from nmt.data.ratio import UsualRatio

N_SHOWN = 5


@dataclass
class DataReport:
    """What became of the training pairs, line by line accountable."""

    n_read: int = 0
    n_kept: int = 0
    n_leaked: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    first: dict[str, list[str]] = field(default_factory=dict)
    notes: Counter[str] = field(default_factory=Counter)
    learnt_ratios: dict[str, UsualRatio] = field(default_factory=dict)  # of each source file that is filtered so
    noted: dict[str, list[str]] = field(default_factory=dict)

    def note(self, key: str, place: str) -> None:
        """Count what is odd but harmless. place: as for `drop`."""
        self.notes[key] += 1
        places = self.noted.setdefault(key, [])
        if len(places) < N_SHOWN:
            places.append(place)

    def drop(self, reason: str, place: str) -> None:
        """Count a pair that is not kept. place: file and line, of which the first few are remembered."""
        self.dropped[reason] += 1
        places = self.first.setdefault(reason, [])
        if len(places) < N_SHOWN:
            places.append(place)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "read": self.n_read,
            "kept": self.n_kept,
            "dropped": {
                reason: {"count": self.dropped[reason], "first": self.first[reason]}
                for reason in REASONS
                if self.dropped[reason]
            },
            "source_in_valid_or_test": self.n_leaked,
            "usual_ratio": {name: usual._asdict() for name, usual in self.learnt_ratios.items()},
            "notes": {key: self.notes[key] for key in sorted(self.notes)},
            "noted": {key: self.noted[key] for key in sorted(self.noted)},
        }

    def table(self) -> list[str]:
        """For people: a line on the whole, one for each reason, one for each note."""
        n_dropped = sum(self.dropped.values())
        lines = [f"training pairs: {self.n_read:,} read, {n_dropped:,} dropped, {self.n_kept:,} kept"]
        for reason in REASONS:
            if self.dropped[reason]:
                lines.append(f"  {self.dropped[reason]:>9,}  {reason:<18}  {_shortened(self.first[reason])}")
        lines += [
            f"  {name}: the target has {usual.median:.2f} times the bytes of its source, as a rule; kept: "
            f"{usual.low:.2f} to {usual.high:.2f}"
            for name, usual in self.learnt_ratios.items()
        ]
        for key in _NOTES:
            if self.notes[key]:
                places = f": {_shortened(self.noted[key])}" if key in self.noted else ""
                lines.append(f"  note: {_NOTES[key].format(n=f'{self.notes[key]:,}')}{places}")
        if self.n_leaked:
            lines.append(
                f"  warning: training pairs whose source occurs in the validation or test files too: {self.n_leaked:,} "
                "(scores on such lines flatter the model)"
            )
        return lines


_NOTES = {
    "crlf": "{n} lines ended with a carriage return, which was removed",
    "line_feed": "{n} texts had line feeds inside, which became spaces",
    "bom": "{n} files began with a byte order mark, which was removed",
    "bom_inside": "{n} lines have a byte order mark inside (files put together?), which was kept",
    "line_cap": f"{{n}} lines are longer than {LINE_CAP:,} characters: subwords were not learnt from their ends",
    "word_cap": f"{{n}} words are longer than {WORD_CAP:,} characters: subwords were learnt from their parts",
    "control": "{n} lines have control characters or Unicode line breaks inside, which were kept",
}


def _shortened(places: Iterable[str]) -> str:
    """`a.de:3, a.de:8` with the file named once: `a.de:3, 8`."""
    shown: list[str] = []
    last = None
    for place in places:
        file, _, line = place.rpartition(":")
        shown.append(line if file == last else place)
        last = file
    return ", ".join(shown)
