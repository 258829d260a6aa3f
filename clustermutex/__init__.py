"""The library is called `lockclient`; by the name of its package on the index it is had, too."""

from lockclient import *  # noqa: F403
from lockclient import __version__ as __version__
