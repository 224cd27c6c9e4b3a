"""Random workflow programs: nested lists, run by an interpreter inside the workflow.

Every node that begins, ends or learns something writes it to a trace, which is the run's output:
two executions agree only if they did the same in the same order.
"""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from holdfast import Context
from holdfast.definitions.workflows import Workflow
from tests.runtime.interpreter import Interpreter, Program

_names = st.sampled_from("abc")
_signals = st.sampled_from("xy")
_delays = st.sampled_from([0, 1, 2, 3, 5, 8])
_matches = st.sampled_from([None, {"kind": 0}, {"kind": 2}])
_leaf = st.one_of(
    st.tuples(st.just("step"), _names),
    st.tuples(st.just("step"), _names),
    st.tuples(st.just("adhoc"), _names),
    st.tuples(st.just("sleep"), _delays),
    st.tuples(st.just("sleep_until"), _delays),
    st.tuples(st.just("signal"), _signals, _matches, st.none() | _delays),
    st.tuples(st.just("time")),
    st.tuples(st.just("chance")),
    st.tuples(st.just("set"), _names),
    st.tuples(st.just("yield")),
    st.tuples(st.just("activity"), _names),
    st.tuples(st.just("activity"), _names),
    st.tuples(st.just("by_name"), _names),
    st.tuples(st.just("let_go"), _names),
    st.tuples(st.just("call_first"), _names, _delays),
    st.tuples(st.just("child"), st.none() | _names),
    st.tuples(st.just("handle"), st.none() | _names, _delays),
    st.tuples(st.just("approve"), st.none() | _delays),
    st.tuples(st.just("patch"), _names),
    st.tuples(st.just("send"), _signals),
    st.tuples(st.just("put")),
    st.tuples(st.just("get"), _delays),
    st.tuples(st.just("fail")),
)
_MORE_BRANCHES = ["as_completed", "coroutines", "semaphore", "gatherings"]
_BRANCHES = ["gather", "gather_all", "group", "first", "first_cancel", "all_or_error"]


def _grow(children: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    block = st.lists(children, min_size=1, max_size=3)
    blocks = st.lists(block, min_size=1, max_size=3)
    return st.one_of(
        st.tuples(st.sampled_from([*_BRANCHES, *_MORE_BRANCHES]), blocks),
        st.tuples(st.sampled_from(["timeout", "wait_for", "cancel_later"]), _delays, block),
        st.tuples(st.just("wait"), _delays, blocks),
        st.tuples(st.sampled_from(["shield", "spawn", "generator", "callback"]), block),
        st.tuples(st.sampled_from(["answer_u", "answer_v"]), block),
        st.tuples(
            st.sampled_from(["finally", "except", "except_base", "swallow", "if"]), block, block
        ),
    )


_patterns = st.sampled_from(["p", "q.#"])
_event = st.one_of(
    st.tuples(st.just("event"), _patterns, st.none() | _delays),
    st.tuples(st.just("subscribe"), _patterns),
    st.tuples(st.just("hook"), st.none() | _delays),
    st.tuples(st.just("step"), _names),
)


def _programs(leaf: st.SearchStrategy[Any]) -> st.SearchStrategy[Program]:
    return st.lists(st.recursive(leaf, _grow, max_leaves=20), min_size=2, max_size=7)


programs = _programs(_leaf)
programs_with_events = _programs(st.one_of(_event, _leaf))


def workflow(program: Program) -> Workflow[Any, Any]:
    """Make the workflow that runs a program."""

    async def run(ctx: Context) -> object:
        interpreter = Interpreter(ctx)
        try:
            await interpreter.block(program, "r")
        except Exception as error:
            interpreter.trace.append(f"failed {error!r}")
        return interpreter.trace

    return Workflow(run, name="program")
