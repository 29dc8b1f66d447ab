"""The console script `gatehouse`, and `python -m gateway`: settles what signals do before it loads the rest, which takes a while."""

from gateway.app.first_signals import settle

settle()

from gateway.app.start import main  # noqa: E402 - an interruption from here on is no traceback

if __name__ == "__main__":
    main()
