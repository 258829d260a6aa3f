"""The program's entry; `python -m unlocker` is the same as `unlocker`."""

from __future__ import annotations

from lockclient.service.missing_extras import needing_services
from lockclient.text.log_format import log_uncaught


def main() -> None:
    """Run the service."""
    log_uncaught()
    with needing_services("unlocker"):
        from unlocker.cli import main as run
    run()


if __name__ == "__main__":
    main()
