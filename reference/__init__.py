"""What is made of docstrings, help texts and documents: `make reference` and `make runbook`."""
