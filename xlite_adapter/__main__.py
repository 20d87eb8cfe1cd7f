"""``python -m xlite_adapter`` is the ``xlite-adapter`` command."""

from xlite_adapter.cli.app import main

if __name__ == "__main__":
    main()
