"""Jobs that run one agent: an episode, a question about files, a server, a replay."""
