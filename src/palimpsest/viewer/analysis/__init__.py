"""What became of memories and evidence in an episode or a group, without any file or page."""
