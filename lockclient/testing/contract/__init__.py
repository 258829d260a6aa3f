"""The contract suites: what every store promises, for whoever writes one.

`pytest --pyargs lockclient.testing.contract --store …`: see docs/stores-of-your-own.md.
"""

import sys

if "pytest" in sys.modules:  # programs that tests start use the helpers, too, and need no pytest
    sys.modules["pytest"].register_assert_rewrite(f"{__name__}.asking", f"{__name__}.following")
