"""This process, now: its place in the job (world.py), its GPU and its cores (devices.py).

The only package that imports Horovod's native half.
"""
