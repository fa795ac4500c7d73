"""Jobs that play one agent: an episode, a question about files, a server, a recorded episode again."""
