"""The command line. One light file per command group; what a command does lies in `app/`, imported when it runs."""
