"""Errors reach other processes as they were raised: a pool of processes pickles them."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from uuid import UUID

import pytest

from holdfast import errors
from holdfast.types import ErrorInfo

RUN = UUID("0a7da844-e63f-4b46-b3d8-ca55dacdaa4d")
CAUSE = ErrorInfo("builtins.ValueError", "no such customer", traceback="shop.py:7")


def pickled(error: BaseException) -> BaseException:
    again = pickle.loads(pickle.dumps(error))
    assert isinstance(again, BaseException)
    return again


@pytest.mark.parametrize("again", [pickled, copy.copy])
@pytest.mark.parametrize(
    "error",
    [
        errors.ConfigurationError("no"),
        errors.DatabaseUnavailable("away", unanswered=True),
        errors.RunEnded(RUN, "cancelled"),
        errors.RunFailed(RUN, CAUSE),
        errors.RunNotFound(RUN),
        errors.UpdateFailed(RUN, "pay", CAUSE, entity="cart/ann"),
        errors.ResultTimeout(RUN, 2),
        errors.ChildFailed("pay#1", CAUSE, "failed", RUN),
        errors.WebhookNotFound(),
        errors.DeterminismError("differs", line="shop.py:12 in order"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_is_the_same_in_another_process(
    error: BaseException, again: Callable[[BaseException], BaseException]
) -> None:
    copied = again(error)
    assert type(copied) is type(error)
    assert (str(copied), vars(copied)) == (str(error), vars(error))
