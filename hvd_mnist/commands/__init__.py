"""The words of ``hvd-mnist``: one module a command, options in, one call to the job out."""
