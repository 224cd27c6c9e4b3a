"""What the state machine draws."""

from __future__ import annotations

import hypothesis.strategies as st

from holdfast.types import AttributeValue, Event, Finish, RunFilter

QUEUES = ("fast", "slow")
HANDLERS = ("order@1", "order@2", "refund@1")

workers = st.sampled_from(["ann", "bob", "cy"])
some_queues = st.sampled_from([QUEUES, QUEUES, QUEUES, ("fast",)])
some_handlers = st.sampled_from([HANDLERS, HANDLERS, HANDLERS, ("refund@1", "order@2")])
payloads = st.sampled_from(["null", "1", '{"b":1,"a":[1e300,"ü"]}'])
rarely = st.sampled_from([False] * 7 + [True])
# Which of the runs, leases or commits so far, the newest being 0.
pick = st.integers(0, 7)
picks = st.lists(pick, min_size=1, max_size=3)
offsets = st.sampled_from([0] * 8 + [-1, 1])

middles = st.lists(
    st.sampled_from(
        [
            Event("StepCompleted", "charge", '{"name":"charge","result":1.50}', 0),
            Event("TimerScheduled", "t", '{"timer_id":"t","fire_at":5}', 0),
            Event("ValueSet", "phase", '{"value":{"n":1}}', 0),
            Event("ValueSet", "phase", '{"value":"two"}', 0),
            Event("AttributesSet", "a", '{"attributes":{"stage":"sent","n":null}}', 0),
            Event("WorkflowTaskYielded", None, None, 0),
        ]
    ),
    min_size=1,
    max_size=3,
)
ends = st.sampled_from(
    [
        (Event("WorkflowCompleted", None, None, 0), Finish("completed", output='{"z":1,"a":2}')),
        (Event("WorkflowFailed", None, None, 0), Finish("failed", error='{"kind":"x.Y"}')),
        (Event("WorkflowCanceled", None, None, 0), Finish("cancelled")),
    ]
)
attributes: st.SearchStrategy[dict[str, AttributeValue]] = st.sampled_from(
    [{}, {"stage": "new"}, {"stage": "new", "n": 1}]
)
changes: st.SearchStrategy[dict[str, AttributeValue | None]] = st.sampled_from(
    [{"stage": "sent"}, {"stage": None}, {"n": "1", "stage": "new"}]
)
filters = st.builds(
    RunFilter,
    states=st.sampled_from([(), ("queued",), ("waiting", "stuck"), ("completed",)]),
    names=st.sampled_from([(), ("order",)]),
    tags=st.sampled_from([(), ("fast", "order")]),
    attributes=st.sampled_from([{}, {"stage": "sent"}, {"n": 1, "stage": "new"}]),
    limit=st.sampled_from([2, 50]),
)
