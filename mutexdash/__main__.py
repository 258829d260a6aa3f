"""The program's entry; `python -m mutexdash` is the same as `mutexdash`."""

from __future__ import annotations

from lockclient.service.missing_extras import needing_services
from lockclient.text.log_format import log_uncaught


def main() -> None:
    """Run the service."""
    log_uncaught()
    with needing_services("mutexdash"):
        from mutexdash.cli import main as run
    run()


if __name__ == "__main__":
    main()
