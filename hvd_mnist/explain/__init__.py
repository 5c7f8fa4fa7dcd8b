"""What an exit status or a message means, how to check it, and what to type. Standard library only.

``statuses.py`` holds the exit statuses, ``launching.py``, ``running.py`` and ``software.py`` the messages;
``lookup.py`` finds the entry of a number, of a message, or of each line of a log. docs/troubleshooting.md is made from
them.
"""
