"""`python -m posterase`: the command line."""

from posterase.interfaces.cli import main

if __name__ == "__main__":
    main()
