"""For tests of programs that use locks: a store in memory, and what happens to locks there.

Nothing else of the library imports it. `lockclient.testing.plugin` is a plugin for pytest.
"""

from lockclient.testing.memory_locks import MemoryLocks
from lockclient.testing.memory_store import MemoryStore

__all__ = ["MemoryLocks", "MemoryStore"]
