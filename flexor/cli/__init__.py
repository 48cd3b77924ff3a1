"""The command line: `flexor info`, `simulate`, `certify`, `identify`, `demo`."""
