"""Counters and histograms that cost less than a microsecond an observation.

They are written by one thread, and may be read by another at any time: a reading may lack what is
being written. A metric keeps a limited number of label sets, because labels may come from user
data: what comes later is counted under `other`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal, NamedTuple, TypeAlias

MOST_LABEL_SETS: Final = 1_000
MOST_EXTERNAL: Final = 100  # label sets of a metric whose labels others choose
OTHER: Final = "other"

_OTHERS_PART: Final = 10  # a tenth of the label sets is kept for those with the last label `other`

Labels: TypeAlias = tuple[str, ...]
Kind: TypeAlias = Literal["counter", "gauge", "histogram"]


class Sample(NamedTuple):
    """One line of a metric: what follows its name, its labels, and its value."""

    suffix: str
    labels: Mapping[str, str]
    value: float


class Family(NamedTuple):
    """A metric with all its lines. The name of a counter ends in `_total`."""

    name: str
    kind: Kind
    help: str
    samples: Sequence[Sample]


class _LabelSets:
    """Finds the label set under which to count, so that a metric keeps no more than `most`.

    If there are too many, the last label becomes `other`, and after that all of them.
    """

    def __init__(self, names: Labels, most: int) -> None:
        self.names, self._most = names, most
        self._last = most - max(most // _OTHERS_PART, 1)

    def place(self, labels: Labels, known: Mapping[Labels, object]) -> Labels:
        """Return the label set under which to count a new one."""
        if len(known) < self._last or not labels:
            return labels
        shorter = (*labels[:-1], OTHER)
        if shorter in known or len(known) < self._most - 1:
            return shorter
        return (OTHER,) * len(labels)

    def named(self, labels: Labels) -> dict[str, str]:
        """Return labels with their names."""
        return dict(zip(self.names, labels, strict=True))


class Counter:
    """A number that only grows, for each label set."""

    def __init__(
        self, name: str, text: str, labels: Labels = (), *, most: int = MOST_LABEL_SETS
    ) -> None:
        self.name, self.help = name, text
        self._sets = _LabelSets(labels, most)
        self._values: dict[Labels, float] = {} if labels else {(): 0}

    def add(self, labels: Labels = (), number: float = 1) -> None:
        """Count."""
        values = self._values
        if labels not in values:
            labels = self._sets.place(labels, values)
        values[labels] = values.get(labels, 0) + number

    def family(self) -> Family:
        """Return what was counted."""
        return Family(
            self.name,
            "counter",
            self.help,
            [Sample("", self._sets.named(labels), value) for labels, value in list(_items(self))],
        )

    @property
    def values(self) -> dict[Labels, float]:
        """What was counted, by label set."""
        return self._values


def _items(counter: Counter) -> Iterable[tuple[Labels, float]]:
    return counter.values.copy().items()


class Histogram:
    """How many observations were at most so large, for each label set.

    `bounds` are in the unit of the observations, `unit` is how many of them make one of the unit
    that is shown: a million for microseconds that are shown as seconds.
    """

    def __init__(
        self, name: str, text: str, labels: Labels, bounds: Sequence[float], *, unit: float = 1
    ) -> None:
        self.name, self.help = name, text
        self._bounds, self._unit = list(bounds), unit
        self._sets = _LabelSets(labels, MOST_LABEL_SETS)
        self._rows: dict[Labels, list[float]] = {}
        if not labels:
            self.row(())

    def observe(self, labels: Labels, value: float) -> None:
        """Count an observation."""
        row = self._rows.get(labels)
        if row is None:
            row = self.row(labels)
        row[bisect_left(self._bounds, value)] += 1
        row[-1] += value

    def add(self, labels: Labels, counts: Sequence[int], total: float) -> None:
        """Add what was counted elsewhere: how many observations each bucket has, and their sum."""
        row = self._rows.get(labels)
        if row is None:
            row = self.row(labels)
        for place, count in enumerate([*counts, total]):
            row[place] += count

    def row(self, labels: Labels) -> list[float]:
        """Return the counts of a label set: one more than there are bounds, then the sum."""
        labels = self._sets.place(labels, self._rows)
        return self._rows.setdefault(labels, [0] * (len(self._bounds) + 2))

    def family(self) -> Family:
        """Return what was counted."""
        limits = [*(repr(bound / self._unit) for bound in self._bounds), "+Inf"]
        samples: list[Sample] = []
        for labels, row in self._rows.copy().items():
            named, counts = self._sets.named(labels), row.copy()
            total = 0.0
            for limit, count in zip(limits, counts, strict=False):
                total += count
                samples.append(Sample("_bucket", {**named, "le": limit}, total))
            samples.append(Sample("_sum", named, counts[-1] / self._unit))
            samples.append(Sample("_count", named, total))
        return Family(self.name, "histogram", self.help, samples)


def gauge(name: str, text: str, value: float | Mapping[Labels, float], *labels: str) -> Family:
    """Return a value that was read now, or one for each label set."""
    values = value if isinstance(value, Mapping) else {(): value}
    return Family(
        name,
        "gauge",
        text,
        [Sample("", dict(zip(labels, key, strict=True)), each) for key, each in values.items()],
    )
