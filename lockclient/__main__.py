"""`python -m lockclient` is the command `clustermutex`."""

from lockclient.cli import main

if __name__ == "__main__":
    main()
