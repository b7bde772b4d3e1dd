"""Entry point of `python -m rxloop`."""

from rxloop.cli import main

if __name__ == "__main__":
    main()
