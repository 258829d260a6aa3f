"""Options of `run`, `lock`, `alive` and `unlock`: which lock, how to wait for it and hold it."""

from __future__ import annotations

import click

from lockclient.cli.exit_status import CONFLICT
from lockclient.cli.options import Duration, LockName, store_options
from lockclient.cli.scripts.script_errors import checked_name
from lockclient.model.clocks import AUTO
from lockclient.service.service_flags import with_options

ANY_LOCK_NAME = LockName(checked_name)
lock_options = with_options(
    store_options,
    click.option(
        "--timeout",
        type=Duration(),
        help="How long to wait for the lock; 0 tries once.  [default: for ever]",
    ),
    click.option("--no-wait", is_flag=True, help="Try once: the same as --timeout 0."),
    click.option(
        "--expected-runtime",
        type=Duration(),
        default="5m",
        show_default=True,
        help="How long without a heartbeat until people are alerted.",
    ),
    click.option(
        "--auto-unlock-after",
        type=Duration(words={"never": None, AUTO: AUTO}),
        default=AUTO,
        metavar="TIME|never",
        help="How long without a heartbeat until the unlocker removes the lock.  "
        "[default: three times --expected-runtime]",
    ),
    click.option(
        "--max-hold",
        type=Duration(),
        help="How long the lock is held at most: beyond that people are alerted, whoever pushes.",
    ),
    click.option("--quiet", is_flag=True, help="Say nothing of what is waited for."),
    click.option("--reason", default="", help="What the lock is used for."),
    click.option(
        "--conflict-exit-code",
        type=click.IntRange(0, 255),
        default=CONFLICT,
        show_default=True,
        metavar="N",
        help="Exit status when somebody else has the lock.",
    ),
)
"""Where the lock is, how to wait for it and how to hold it."""
held_lock_arguments = with_options(
    store_options,
    click.argument("name", type=ANY_LOCK_NAME, envvar="CLUSTERMUTEX_NAME"),
    click.option(
        "--uuid",
        envvar="CLUSTERMUTEX_UUID",
        show_envvar=True,
        required=True,
        help="What `lock` printed.",
    ),
)
"""The name and the uuid of a lock that is held, from the environment where not given."""
