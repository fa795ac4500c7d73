"""How the shipped base models are made."""
