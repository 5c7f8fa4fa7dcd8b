"""Messages of a job that runs, and then waits, fails or is wrong."""

from __future__ import annotations

from hvd_mnist.explain.entry import Entry

RUNNING = (
    Entry(
        "One or more tensors were submitted to be reduced, gathered or broadcasted by subset of ranks and are waiting "
        "for remainder of ranks for more than 60 seconds.",
        "Horovod",
        "Some ranks wait in a collective that the ranks under `Missing ranks:` have not entered: they are slow, dead, "
        "hang, or took another path (an `if rank == 0`, fewer batches, other tensors).",
        "RUN/logs/rank-N.log of the missing ranks: its stack says where it stands",
        "the same collectives in the same order on every rank; equal steps per epoch. A rank that needs long: "
        "--stall-timeout SECONDS",
        pattern=r"submitted to be reduced, gathered or broadcasted by subset of ranks",
    ),
    Entry(
        'One or more rank (marked by "!") is stalled for longer than 300 seconds. Will shutdown.',
        "Horovod",
        "The waiting was given up; every rank now ends with an error.",
        "the line `stalled: rank N on HOST did not come` and that rank's log",
        "mend that rank; then --resume auto",
        pattern=r"is stalled for longer than \d+ seconds",
    ),
    Entry(
        "stalled: rank 1 on host2 did not come: rank 0 waited in 'HorovodAllreduce' at train.py:231 in train",
        "hvd_mnist",
        "Rank 1 stood still while the others waited in a collective. Its Python stack was printed and is in its log.",
        "RUN/logs/rank-1.log, last lines",
        "mend what it stood in (data, disk, a deadlock); the same command with --resume auto",
        pattern=r"stalled: .*did not come|ranks waited for each other in different places",
    ),
    Entry(
        "Timeout (0:00:30)!",
        "hvd_mnist",
        "In a rank's log: it stood still for that long, and its Python stacks follow. Where `goes on after 53 s` comes "
        "later, it was only slow: a busy machine, a slow disk, or a wait for another rank.",
        "the stack below it, last thread: a collective waits for others; anything else is the cause",
        "nothing, if it went on; else mend the rank whose stack is in no collective",
        pattern=r"Timeout \(\d+:\d\d:\d\d\)!|\bgoes on after \d+ s$",
    ),
    Entry(
        "straggler: rank 1 on host2 takes 1.8 times as long as the others for its own part of a step, and they wait "
        "for it; for 30 steps now",
        "hvd_mnist",
        "One rank is slower than the others, and every step takes as long as the slowest.",
        "what else runs on that host; its clock speed, its disk, its share of the data; hvd-mnist report of a run with "
        "--step-times shows in which part of the step it is slow",
        "end what else runs there, or leave the host out",
        pattern=r"straggler: rank \d+ on",
    ),
    Entry(
        "lost rank 1 (process 4711 on host1 is gone)",
        "hvd_mnist",
        "That rank's process is gone: killed, crashed, or ended by an error that stands above.",
        "the last lines of rank 1; dmesg | grep -i 'killed process'",
        "mend that; the same command with --resume auto",
        pattern=r"lost rank \d+ \(process|lost the other ranks",
    ),
    Entry(
        "Horovod has been shut down. This was caused by an exception on one of the ranks or an attempt to allreduce, "
        "allgather or broadcast a tensor after one of the ranks finished execution.",
        "Horovod",
        "A consequence: another rank failed, or left the training earlier than this one (fewer steps, early stopping "
        "on one rank).",
        "the first rank that failed, above",
        "mend that rank; stop decisions must be the same on every rank",
        pattern=r"Horovod has been shut down",
    ),
    Entry(
        "Mismatched allreduce tensor shapes: One rank sent a tensor of shape [10, 128], but another rank sent a tensor "
        "of shape [10, 64].",
        "Horovod",
        "Ranks built different models, or met in different collectives: the order of calls is not the same.",
        "print the layout on each rank: model.summary(), or hvd-mnist's agreement at the start names it",
        "the same code, options and data set on every rank; nothing that depends on the rank in the model",
        pattern=r"Mismatched \w+ tensor shapes",
    ),
    Entry(
        "Mismatched data types: One rank had type float32, but another rank had type float16.",
        "Horovod",
        "Ranks compute in different precision, or met in different collectives.",
        "the precision policy on each rank",
        "the same --precision and --compression everywhere",
        pattern=r"Mismatched data types",
    ),
    Entry(
        "Mismatched operations: One rank did an allreduce, but another rank did an allgather.",
        "Horovod",
        "Ranks stand in different collectives at the same time.",
        "a collective under `if rank == 0`, or in a callback that not every rank has",
        "every rank calls every collective, in one order",
        pattern=r"Mismatched (operations|reduction operation|prescale)|ranks met in different (collectives|places)",
    ),
    Entry(
        "Requested to allreduce, allgather, or broadcast a tensor with the same name as another tensor that is "
        "currently being processed.",
        "Horovod",
        "Two tensors of one name are in flight: a fixed name= in a loop, or tf.while_loop with parallel iterations.",
        "the name= arguments of your collectives",
        "leave name= out, or tf.while_loop(..., parallel_iterations=1)",
        pattern=r"tensor with the same name as another tensor",
    ),
    Entry(
        "Wait timeout after 30 seconds for key(s): 0. You may want to increase the timeout via "
        "HOROVOD_GLOO_TIMEOUT_SECONDS",
        "Gloo",
        "Not all ranks reached the meeting place in time: one is slow to import TensorFlow, or failed first.",
        "the other ranks' last lines",
        "HOROVOD_GLOO_TIMEOUT_SECONDS=300 (hvd_mnist sets 120)",
        pattern=r"Wait timeout after \d+ seconds for key|HOROVOD_GLOO_TIMEOUT_SECONDS",
    ),
    Entry(
        "[enforce fail at transport/tcp/pair.cc:446] Connection closed by peer [10.0.0.2]:41234",
        "Gloo",
        "A consequence: the rank at that address ended, or its network did.",
        "that host's ranks, above",
        "mend that; the same command with --resume auto",
        pattern=r"[Cc]onnection (closed|reset) by peer|transport/tcp/pair",
    ),
    Entry(
        "connect [127.0.0.1]:43127: Connection refused",
        "Gloo",
        "A rank advertised an address that others cannot reach (a loopback or a container's bridge), or has just died.",
        "ip -br addr on each host: in which subnet do they meet?",
        "hvd-mnist launch --network-interface NAME (by hand: HOROVOD_GLOO_IFACE=NAME)",
        pattern=r"connect \[[\d.:a-f]+\]:\d+: Connection refused",
    ),
    Entry(
        "replicas differ in variables after step 5: first in 'dense/kernel'; rank 1 on host2 against rank 0 (largest "
        "difference 0.01)",
        "hvd_mnist",
        "The ranks' weights are not the same any more. Training was stopped before anything wrong was saved.",
        "is the optimizer wrapped on every rank? does a rank alone assign to a variable?",
        "hvd.DistributedOptimizer(optimizer); the same start by BroadcastGlobalVariablesCallback; resume",
        pattern=r"replicas differ in",
    ),
    Entry(
        "setting: rank 1 on host2 has seed=1, rank 0 has seed=0",
        "hvd_mnist",
        "Ranks were started with different options, versions, code, data or models. Nothing was trained.",
        "rank 0's table above: what, value, where",
        "the same command, packages and files on every host",
        pattern=r"(setting|code|data|model|steps): rank \d+ on \S+ has |^ranks differ:",
    ),
    Entry(
        "rank 1 on host2 has another model than rank 0: variable 3 is (10, 64), expected (10, 128)",
        "hvd_mnist",
        "Ranks built different models.",
        "what in the model depends on the rank, the host or the data?",
        "build the same model on every rank",
        pattern=r"has another model than rank 0",
    ),
    Entry(
        "loss is not finite on rank 1, host2, at step 5; first variable that is not: 'dense/kernel'",
        "hvd_mnist",
        "The loss, a gradient or a weight became NaN or infinite. Nothing that is not finite was saved.",
        "RUN/logs/nan-rank-N.json: step, tensor, samples of the batch",
        "lower --learning-rate, raise --warmup-epochs; look at those samples; then --resume auto",
        pattern=r"is not finite on rank \d+|the test loss of rank \d+ on \S+ is",
    ),
    Entry(
        "ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error.",
        "NCCL",
        "NCCL could not open a socket or shared memory: a wrong interface, a firewall, or a small /dev/shm.",
        "NCCL_DEBUG=INFO hvd-mnist train ...; df -h /dev/shm",
        "NCCL_SOCKET_IFNAME=eth0 (hvd-mnist launch --network-interface sets it); docker run --shm-size=1g --ulimit "
        "memlock=-1",
        pattern=r"ncclSystemError|NCCL.*unhandled system error|unhandled system error",
    ),
    Entry(
        "ncclCommInitRank failed: invalid usage (run with NCCL_DEBUG=WARN for details)",
        "NCCL",
        "Two ranks use one GPU: more ranks than GPUs on that host, or each rank was given the same "
        "CUDA_VISIBLE_DEVICES.",
        "hvd-mnist doctor -np N; echo $CUDA_VISIBLE_DEVICES on each rank; NCCL_DEBUG=WARN names both ranks",
        "as many slots as GPUs; unset CUDA_VISIBLE_DEVICES; pin by local rank before the first TensorFlow call",
        # The second is NCCL 2.32's own line, the first that of older ones; Horovod shows the third alone.
        pattern=r"Duplicate GPU detected|Multiple Ranks are using the same GPU|[Ii]nvalid ?[Uu]sage.*NCCL_DEBUG"
        r"|ncclInvalidUsage|ranks \S.* all claim GPU",
    ),
    Entry(
        "NCCL async error: remote process exited or there was a network error",
        "NCCL",
        "Another rank is gone, or the connection to it is. This line is a consequence.",
        "which rank failed first, and on which host?",
        "mend that; the same command with --resume auto",
        pattern=r"remote process exited or there was a network error|ncclRemoteError",
    ),
    Entry(
        "ncclAllReduce failed: internal error - please report this issue to the NCCL developers",
        "NCCL",
        "NCCL failed inside; its own log says at what. A possible cause: another NCCL is loaded than the one that "
        "Horovod was built with.",
        "NCCL_DEBUG=WARN hvd-mnist train ...; hvd-mnist doctor",
        "hvd-mnist build-horovod --gpu",
        pattern=r"(nccl\w+ failed|NCCL async error): (internal error|invalid argument)",
    ),
    Entry(
        "ncclUnhandledCudaError: Call to CUDA function failed.",
        "NCCL",
        "The GPU or its driver refused a call: out of memory, a lost GPU, or a driver older than the library.",
        "nvidia-smi; dmesg | grep -i xid",
        "hvd-mnist doctor; restart the host after an Xid error",
        pattern=r"ncclUnhandledCudaError|unhandled cuda error",
    ),
    Entry(
        "NCCL WARN Error while creating shared memory segment /dev/shm/nccl-abc (size 9637888)",
        "NCCL",
        "/dev/shm is full or small (Docker gives 64 MiB).",
        "df -h /dev/shm",
        "docker run --shm-size=1g ..., or --ipc=host",
        pattern=r"creating shared memory segment|/dev/shm.*No space left",
    ),
    Entry(
        "host host1: 4 ranks but 2 visible GPUs (0, 1); local rank 2 has none",
        "hvd_mnist",
        "More ranks than GPUs on a host; two ranks on one GPU would train at half the speed or hang.",
        "nvidia-smi -L on that host; echo $CUDA_VISIBLE_DEVICES",
        "-H host1:2",
        pattern=r"ranks? but \d+ visible GPU",
    ),
    Entry(
        "TensorFlow used a device before its GPU was chosen",
        "hvd_mnist",
        "Something called TensorFlow before the GPU of this rank was made the only visible one.",
        "what runs before train(), hvd.init() or devices.pin()?",
        "pin the GPU before any other TensorFlow call",
        pattern=r"used a device before its GPU was chosen|Visible devices cannot be modified after being initialized",
    ),
    Entry(
        "ResourceExhaustedError: OOM when allocating tensor with shape[128,512,512,64]",
        "TensorFlow",
        "The device has no memory left; several ranks on one GPU are a common cause.",
        "nvidia-smi while it runs; free -m on a CPU",
        "a smaller --batch-size with --accumulate 2, --precision mixed_bfloat16, one rank a GPU",
        pattern=r"OOM when allocating|CUDA_ERROR_OUT_OF_MEMORY|[Oo]ut of memory|std::bad_alloc|Cannot allocate",
    ),
    Entry(
        "OSError: [Errno 28] No space left on device",
        "the system",
        "The disk, or the quota, is full. The last complete checkpoint is kept.",
        "df -h RUN; df -i RUN; quota -s",
        "make room, or lower --keep; then --resume auto",
        pattern=r"No space left on device|Disk quota exceeded",
    ),
    Entry(
        "OSError: [Errno 24] Too many open files",
        "the system",
        "The limit on open files is low for so many ranks or data files.",
        "ulimit -n",
        "ulimit -n 65536 (for services: LimitNOFILE)",
        pattern=r"Too many open files",
    ),
    Entry(
        "Read -1, expected 12582912, errno = 1",
        "Open MPI",
        "A container forbids process_vm_readv, the fast way between ranks of one host. Harmless but slow and loud.",
        "is this a container?",
        "docker run --cap-add=SYS_PTRACE, or OMPI_MCA_btl_vader_single_copy_mechanism=none",
        pattern=r"Read -1, expected \d+, errno = \d+",
    ),
    Entry(
        "RUN holds a run already",
        "hvd_mnist",
        "The folder has checkpoints of an earlier run, which are never overwritten.",
        "hvd-mnist checkpoint list RUN",
        "--resume auto to go on with it, or another --run-dir",
        pattern=r"holds a run already",
    ),
    Entry(
        "run folder RUN is in use by process 4711 on host1",
        "hvd_mnist",
        "Another job is writing there; two would spoil each other's checkpoints.",
        "is that process still running on that host?",
        "wait for it, stop it, or use another --run-dir",
        pattern=r"run folder .* is in use by|cannot lock run folder",
    ),
    Entry(
        "skipped checkpoint RUN/checkpoints/step-00000100: model.keras does not match its checksum",
        "hvd_mnist",
        "A checkpoint is damaged; the one before was taken.",
        "hvd-mnist checkpoint verify RUN",
        "nothing, or delete it; look at the disk when it happens again",
        pattern=r"skipped (the best )?checkpoint|none of \d+ checkpoints in",
    ),
    Entry(
        "mnist is not at /root/.cache/hvd_mnist/data/mnist.npz on host2 (no such file), and going to the network is "
        "forbidden",
        "hvd_mnist",
        "The host has no copy of the data, and --offline (or HVD_MNIST_OFFLINE) is set.",
        "hvd-mnist data path mnist, on that host",
        "hvd-mnist data fetch mnist where there is a network; copy the file to that path",
        pattern=r"going to the network is forbidden",
    ),
    Entry(
        "stopped after step 120 of 4690: SIGTERM; saved at step 120",
        "hvd_mnist",
        "The job was asked to stop and saved first. This is no failure (status 200).",
        "hvd-mnist checkpoint list RUN",
        "the same command with --resume auto --run-dir RUN",
        pattern=r"stopped after step \d+ of \d+",
    ),
    Entry(
        "ranks were lost or changed 11 times, more than --reset-limit 10",
        "hvd_mnist",
        "An elastic job lost ranks too often.",
        "which hosts fail? RUN/metrics.jsonl, lines of kind reset",
        "leave that host out; --resume auto, or a larger --reset-limit",
        pattern=r"ranks were lost or changed \d+ time",
    ),
)
