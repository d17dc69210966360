"""``python -m workers.cli``: the command `gyre`."""

from workers.cli.app import main

if __name__ == "__main__":
    main()
