"""The contract suites: what every store promises, for whoever writes one.

`python -m lockclient.testing.contract --store …`: see docs/stores-of-your-own.md.
"""

import sys

HELPERS = (f"{__name__}.asking", f"{__name__}.following")
"""Whose asserts are to say what was compared, as those of tests do."""

if "pytest" in sys.modules:  # programs that tests start use the helpers, too, and need no pytest
    sys.modules["pytest"].register_assert_rewrite(*HELPERS)
