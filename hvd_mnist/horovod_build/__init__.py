"""Builds Horovod for the TensorFlow that is installed: ``hvd-mnist build-horovod``.

``stack.py`` looks at what is here, ``recipe.py`` turns that into an environment, a command and a cache key
(pure functions), ``build.py`` runs it, ``progress.py`` reads its log, ``verify.py`` tries the result.
Nothing here imports TensorFlow or Horovod: both are asked in child processes.
"""
