"""The application: train, evaluate, play, serve, as functions of a configuration. Prints nothing."""
