"""`make bench`: ClusterMutex, the floor beneath it and its peers, side by side in one run."""
