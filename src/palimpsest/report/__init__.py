"""Tables, plots and pages of runs and evaluations."""
