"""`python -m mutexdash` is the same as `mutexdash`."""

from mutexdash.cli import main

main()
