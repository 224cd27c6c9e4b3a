"""Values to JSON text and back: payloads, errors, containment.

Everything that a run keeps passes through here, live as well as on replay, so that a workflow
sees the same value both times.
"""

from holdfast.codec._aliases import without_aliases
from holdfast.codec._changed_fields import MOST_ADDED, removed_fields, texts_before_fields
from holdfast.codec._contains import contains
from holdfast.codec._envelope import ENVELOPE, is_sealed, seal_label, shown_words, with_reason
from holdfast.codec._failures import (
    decode_error,
    describe,
    encode_error,
    storable,
    summarize,
    text_of,
)
from holdfast.codec._models import is_model_type, lost_field
from holdfast.codec._references import (
    REFERENCE_MARK,
    Reference,
    find_references,
    replace_references,
    unread_reference,
)
from holdfast.codec._values import (
    CODE_ERRORS,
    MAX_DEPTH,
    MAX_PAYLOAD,
    SHALLOW,
    Decode,
    check_depth,
    check_open,
    decoder,
    depth,
    encode,
    encode_sorted,
    fingerprint,
    has_nul,
    raw,
    why_not_json,
    without_nul,
)

__all__ = [
    "CODE_ERRORS",
    "ENVELOPE",
    "MAX_DEPTH",
    "MAX_PAYLOAD",
    "MOST_ADDED",
    "REFERENCE_MARK",
    "SHALLOW",
    "Decode",
    "Reference",
    "check_depth",
    "check_open",
    "contains",
    "decode_error",
    "decoder",
    "depth",
    "describe",
    "encode",
    "encode_error",
    "encode_sorted",
    "find_references",
    "fingerprint",
    "has_nul",
    "is_model_type",
    "is_sealed",
    "lost_field",
    "raw",
    "removed_fields",
    "replace_references",
    "seal_label",
    "shown_words",
    "storable",
    "summarize",
    "text_of",
    "texts_before_fields",
    "unread_reference",
    "why_not_json",
    "with_reason",
    "without_aliases",
    "without_nul",
]
