"""`python -m posterase`: the command line."""

from posterase.cli.main import main

if __name__ == "__main__":
    main()
