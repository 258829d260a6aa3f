"""What `ClusterMutex` and `AsyncClusterMutex` promise alike, on each store."""

from lockclient.testing.contract.test_drivers import *  # noqa: F403
