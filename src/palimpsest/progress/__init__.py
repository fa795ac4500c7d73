"""Progress of long work: what a job reports, how far it is, and the displays of a terminal, a log and a notebook."""
