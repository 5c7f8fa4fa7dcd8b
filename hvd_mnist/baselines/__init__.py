"""How TensorFlow trained before ring-allreduce, each way as one file, on the data, networks and records of ``train``.

single            one device; the step's graph executed by dependency counts
towers            one process, several devices, gradients averaged on the CPU
in_graph          one client, towers on the devices of other tasks
parameter_server  every worker runs the same graph; the variables live in ps tasks
ring              this toolkit's trainer, under the same interface

The words "worker", "ps" and "chief" are used here alone.
"""

# The settings of `train` that a baseline has too; the others belong to Horovod, to launchers or to elastic jobs.
KNOBS = (
    *("data", "augment", "offline", "model", "dropout"),
    *("epochs", "steps", "target_accuracy", "evaluate_every"),
    *("batch_size", "global_batch", "optimizer", "learning_rate", "lr_scaling", "warmup_epochs", "warmup_steps"),
    *("schedule", "seed", "deterministic"),
    *("run_dir", "resume", "checkpoint_every", "keep", "log_every", "tensorboard", "threads", "stall_timeout"),
)
