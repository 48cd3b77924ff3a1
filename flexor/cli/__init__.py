"""The command line: `flexor info`, `simulate`, `certify`, `demo`."""
