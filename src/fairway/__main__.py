"""`python -m fairway` is the `fairway` command."""

from fairway.cli import main

if __name__ == "__main__":
    main()
