"""The tests. With HOLDFAST_TEST_REDIS=1, all of them that use PostgreSQL use Redis as well."""

import os

if os.environ.get("HOLDFAST_TEST_REDIS"):
    from tests.with_redis import use_redis

    use_redis()
