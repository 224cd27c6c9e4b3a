"""The workloads by name, in the order they are run."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from benchmarks import (
    across,
    graphs,
    lasting,
    latency,
    limits,
    retention,
    schedules,
    storms,
    throughput,
    topics,
)
from benchmarks.bench import Bench
from benchmarks.engine import Measurement

WORKLOADS: dict[str, Callable[[Bench], Awaitable[list[Measurement]]]] = {
    "W1": throughput.w1,
    "W1-10": throughput.w1_ten,
    "W1-p2": throughput.w1_two,
    "W5": throughput.w5,
    "W50": throughput.w50,
    "W50-p2": throughput.w50_two,
    "E": throughput.starts,
    "L": latency.idle_latency,
    "S": latency.signals,
    "F": latency.fan_out,
    "T": latency.sleeps,
    "R": lasting.long_run,
    "Z": storms.signal_storm,
    "A-trip": across.activity_trip,
    "A1000": across.a1000,
    "A10000": across.a10000,
    "C1000": across.c1000,
    "C10000": across.c10000,
    "X1000": across.cancel_tree,
    "K": across.forks,
    "FL1": graphs.one_step,
    "FLC": graphs.chains,
    "FLM1000": graphs.map_1000,
    "FLM10000": graphs.map_10000,
    "FLM100000": graphs.map_100000,
    "FLD": graphs.diamonds,
    "FLI": graphs.idle_flow,
    "SCH": schedules.one_worker,
    "SCH4": schedules.four_workers,
    "SCHL": schedules.idle_lateness,
    "TP": topics.publish,
    "TPW": topics.beside_waiting,
    "LK": limits.many_keys,
    "LB": limits.beside_a_blocked_key,
    "LF": limits.small_tenant,
    "D": retention.delete,
    "D-archive": retention.archive,
    "D-W5": retention.beside,
    "idle": lasting.idle_worker,
    "memory": lasting.memory,
    "million": lasting.million_waiting,
}
