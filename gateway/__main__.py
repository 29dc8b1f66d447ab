"""`python -m gateway` is the console script `gatehouse`."""

from gateway.start import main

main()
