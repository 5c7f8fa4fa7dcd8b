"""Builds Horovod for the TensorFlow that is installed: ``hvd-mnist build-horovod``.

``stack.py`` looks at what is here, ``recipe.py`` turns that into an environment, a command and a cache key
(pure functions), ``mends.py`` mends the source (what and why: ``mended_faults.py``, ``mended_speed.py``), ``build.py``
has it compiled and keeps the wheel, ``progress.py`` reads the log, ``verify.py`` tries the result. Nothing here
imports TensorFlow or Horovod: both are asked in child processes.
"""
