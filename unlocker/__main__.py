"""`python -m unlocker` is the same as `unlocker`."""

from unlocker.cli import main

main()
