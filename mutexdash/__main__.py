"""The program's entry; `python -m mutexdash` is the same as `mutexdash`."""

from __future__ import annotations

from lockclient.extras import needing_services


def main() -> None:
    """Run the service."""
    with needing_services("mutexdash"):
        from mutexdash.cli import main as run
    run()


if __name__ == "__main__":
    main()
