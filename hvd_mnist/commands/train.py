"""``hvd-mnist train``."""

from __future__ import annotations

import click

from hvd_mnist.commands.options import GroupedHelp, config_from, config_options


@click.command(cls=GroupedHelp)
@config_options
@click.pass_context
def train(ctx, **_):
    """Train MNIST on every rank of this job, or alone.

    \b
    hvd-mnist train                                       one process
    horovodrun -np 2 -H localhost:2 hvd-mnist train       two ranks here
    horovodrun -np 8 -H host1:4,host2:4 hvd-mnist train   two machines

    Every option can also be set by an environment variable (--batch-size: HVD_MNIST_BATCH_SIZE) or in the file
    of --config; a flag wins over the environment, the environment over the file.
    """
    config, sources = config_from(ctx)
    from hvd_mnist import api

    api.train(config, sources)
