"""`python -m rxloop` is the command `rxloop`."""

from rxloop.cli import main

if __name__ == "__main__":
    main()
