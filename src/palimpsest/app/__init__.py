"""The application: train, evaluate, play, serve, as functions of a configuration. It prints nothing."""
