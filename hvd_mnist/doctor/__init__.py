"""``hvd-mnist doctor``: can this machine, or can these hosts, train?

``gather.py`` looks (and ``stack.py`` imports TensorFlow and Horovod in a child process) and fills a ``HostFacts``;
``local.py`` and ``compare.py`` turn facts into checks, without looking at anything; ``agent.py`` is the same look
on another host, at the far end of ``session.py``'s ssh; ``hosts.py`` puts all hosts together; ``report.py`` shows.
``exchange.py`` runs a real sum; every child process is started by ``child.py``, and ends with this one.
Nothing here imports TensorFlow or Horovod.
"""
