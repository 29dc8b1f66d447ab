"""`python -m gateway` is the console script `gatehouse`."""

from gateway.main import main

main()
