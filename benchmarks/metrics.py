"""What metrics cost a worker: its CPU time on W50, with metrics off and on.

`python -m benchmarks.metrics [--rounds N] [--before FOLDER]`; see `benchmarks.paired`.
"""

from __future__ import annotations

from benchmarks.paired import OFF, Variant, arguments, compare

VARIANTS = (Variant(OFF), Variant("off again"), Variant("on", ["--metrics", "127.0.0.1:0"]))


def main() -> None:
    compare(VARIANTS, arguments(__doc__).parse_args())


if __name__ == "__main__":
    main()
