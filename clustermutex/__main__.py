"""`python -m clustermutex` is the command."""

from lockclient.cli import main

if __name__ == "__main__":
    main()
