"""`python -m inferno`."""

from inferno.cli import main

main()
