"""The application: train, evaluate, play, quickstart, as functions of a configuration."""
