"""The command line. The only place that imports typer and rich."""
