"""Makes `python -m tollkeeper` run the same program as the command `tollkeeper`."""

from tollkeeper.entry.commands.main import main

if __name__ == "__main__":
    main()
