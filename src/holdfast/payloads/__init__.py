"""Payloads that are compressed, encrypted or signed before they are stored.

```python
from holdfast.payloads import AesGcm, Zlib

app = App("shop", payload_codec=[Zlib(), AesGcm({"k2": new_key, "k1": old_key})])
```
"""

from holdfast.payloads.aes import AesGcm
from holdfast.payloads.compression import Zlib
from holdfast.payloads.encoding import Codecs, PayloadCodec, Payloads, payloads_of
from holdfast.payloads.labels import READABLE, readable
from holdfast.payloads.large import LargePayloads, large_payloads_of
from holdfast.payloads.store import outside_of, payload_store, with_payloads
from holdfast.payloads.unneeded import delete_unneeded, refers, with_objects

__all__ = [
    "READABLE",
    "AesGcm",
    "Codecs",
    "LargePayloads",
    "PayloadCodec",
    "Payloads",
    "Zlib",
    "delete_unneeded",
    "large_payloads_of",
    "outside_of",
    "payload_store",
    "payloads_of",
    "readable",
    "refers",
    "with_objects",
    "with_payloads",
]
