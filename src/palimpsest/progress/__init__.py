"""What work shows while it is done: the contract, and the displays of a terminal, a log and a notebook."""
