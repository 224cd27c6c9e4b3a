"""Redis or Valkey as a way for hints: imported only by stores that were given a URL of one.

A hint says that a queue has new runs. PostgreSQL alone decides who gets them, and workers poll it,
so whatever Redis loses, repeats or invents costs a look.
"""

from holdfast.store.redis.store import RedisHintedStore

__all__ = ["RedisHintedStore"]
