"""Commands that set things up: `up`, `demo`, `setup-auth`, `completion`."""
