"""Screens of the viewer's page as JSON values, one module per screen."""
