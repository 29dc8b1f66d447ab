"""`python -m gateway` is the console script `gatehouse`."""

from gateway.app.start import main

main()
