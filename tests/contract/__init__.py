"""The contract suite: what every store promises. docs/stores.md says how to run it."""

import pytest

# A failed assert in these helpers shows its operands, as one in a test does.
pytest.register_assert_rewrite(f"{__name__}.asking", f"{__name__}.following")
