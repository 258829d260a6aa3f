"""The dashboard as a WSGI application, put together from its parts."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

from flask import Flask, Response, current_app, request
from werkzeug.exceptions import HTTPException
from werkzeug.routing import BaseConverter

from lockclient.errors import InvalidLockName
from lockclient.store import ServiceStore
from mutexdash import api, guard, metrics, pages
from mutexdash.parts import EXTENSION, Dashboard
from mutexdash.query import BadParameter
from mutexdash.snapshot import Live

log = logging.getLogger(__name__)
