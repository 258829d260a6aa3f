"""`python -m lockclient.testing.contract --store …` is pytest over the contract suites."""

import sys

import pytest

from lockclient.testing.contract import HELPERS

if __name__ == "__main__":
    pytest.register_assert_rewrite(*HELPERS)
    plugin, suites = "lockclient.testing.contract.plugin", "lockclient.testing.contract"
    sys.exit(pytest.main(["-p", plugin, "--pyargs", suites, *sys.argv[1:]]))
