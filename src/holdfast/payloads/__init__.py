"""Payloads that are compressed, encrypted or signed before they are stored.

```python
from holdfast.payloads import AesGcm, Zlib

app = App("shop", payload_codec=[Zlib(), AesGcm({"k2": new_key, "k1": old_key})])
```
"""

from holdfast.payloads.aes import AesGcm
from holdfast.payloads.compression import Zlib
from holdfast.payloads.encoding import Codecs, PayloadCodec, Payloads, payloads_of
from holdfast.payloads.labels import READABLE
from holdfast.payloads.store import seal_run, with_payloads

__all__ = [
    "READABLE",
    "AesGcm",
    "Codecs",
    "PayloadCodec",
    "Payloads",
    "Zlib",
    "payloads_of",
    "seal_run",
    "with_payloads",
]
