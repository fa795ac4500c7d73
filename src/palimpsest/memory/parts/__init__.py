"""What several memory policies share."""
