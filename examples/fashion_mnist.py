"""Fashion-MNIST, whole in one script: start ranks, train a network of one's own on each, read the result.

    python examples/fashion_mnist.py                                     two ranks on this machine, 3 epochs
    python examples/fashion_mnist.py --ranks 4 --epochs 10
    python examples/fashion_mnist.py --hosts host1:4,host2:4 --folder /shared/scratch      a folder that both hosts see

The data set has a name (`hvd-mnist data fetch fashion-mnist`): it is fetched once and checked by its sha256. The same,
typed: horovodrun -np 2 hvd-mnist train --data fashion-mnist --model examples.fashion_mnist:build --augment none
"""

import argparse

import hvd_mnist

CLASSES = "T-shirt, trousers, pullover, dress, coat, sandal, shirt, sneaker, bag, ankle boot".split(", ")


def build(input_shape, classes):
    """A keras.Model: pictures in 0..1 go in, logits come out."""
    from keras import Sequential, layers

    return Sequential(
        [
            layers.Input(input_shape),
            layers.RandomFlip("horizontal"),  # a shoe may look either way
            layers.Conv2D(32, 3, activation="relu", padding="same"),
            layers.MaxPooling2D(),
            layers.Conv2D(64, 3, activation="relu", padding="same"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dropout(0.4),
            layers.Dense(classes, dtype="float32"),
        ],
        name="fashion",
    )


def job(knobs):
    """What each rank does."""
    from hvd_mnist import TrainConfig, train

    return train(TrainConfig(**knobs))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--hosts", help="as host1:4,host2:4; default this machine")
    parser.add_argument("--folder", help="for several hosts: one that all of them see")
    parser.add_argument("--data", default="fashion-mnist")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--steps", type=int, help="stop after so many")
    parser.add_argument("--run-dir", help="default runs/...")
    chosen = parser.parse_args()
    knobs = {
        "data": chosen.data,
        "model": "examples.fashion_mnist:build",
        "augment": "none",
        "epochs": chosen.epochs,
        "steps": chosen.steps,
        "learning_rate": 0.001,
        "run_dir": chosen.run_dir,
    }
    summaries = hvd_mnist.run(job, [knobs], np=chosen.ranks, hosts=chosen.hosts, folder=chosen.folder)
    found = summaries[0]  # the accuracy is the same on every rank
    print(f"{found['world_size']} ranks: {found['test_accuracy']:.2%} of {found['test_examples']} test pictures")


if __name__ == "__main__":
    main()
