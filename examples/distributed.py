"""examples/plain.py on every rank: two lines more, three changed.

cp $(hvd-mnist data path sample) digits.npz && horovodrun -np 2 python examples/distributed.py
"""

import keras
import numpy as np

import hvd_mnist.keras as hvd

hvd.init()
digits = np.load("digits.npz")
x, y = digits["x_train"][hvd.rank() :: hvd.size()], digits["y_train"][hvd.rank() :: hvd.size()]
layers = [
    keras.layers.Input(x.shape[1:]),
    keras.layers.Rescaling(1 / 255),
    keras.layers.Flatten(),
    keras.layers.Dense(100, activation="relu"),
    keras.layers.Dense(10, activation="softmax"),
]
model = keras.Sequential(layers)
optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(0.001 * hvd.size()))
model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
model.fit(x, y, batch_size=50, epochs=2, verbose=2, callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)])
print("mean of the last layer's weights:", model.get_weights()[-2].mean())
