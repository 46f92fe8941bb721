"""The command line. The only place that imports typer; of the others, `warming` alone imports rich."""
