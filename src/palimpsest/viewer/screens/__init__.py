"""One module per screen of the viewer's page, as values that JSON can hold."""
