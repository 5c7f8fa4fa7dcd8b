"""From hosts to a running job. A launch command is a value; showing it and running it are two other places.

job.py           what is wanted (Job), what is here (Site), what will be run (Command)
plan.py          Job + Site -> Command, each choice with its reason; horovodrun.py, mpirun.py, srun.py write the words
show.py          a Command as shell text to copy, or as JSON; render.py as a file for Slurm, PBS or Kubernetes
run.py           starts a Command, the only place that does; guard.py stands beside each rank on its host
"""
