"""`python -m tollkeeper` is the same program as `tollkeeper`."""

from tollkeeper.cli.main import main

if __name__ == "__main__":
    main()
