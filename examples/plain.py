"""A plain Keras script of one process; examples/distributed.py is what it becomes.

cp $(hvd-mnist data path sample) digits.npz && python examples/plain.py
"""

import keras
import numpy as np

digits = np.load("digits.npz")
x, y = digits["x_train"], digits["y_train"]
layers = [
    keras.layers.Input(x.shape[1:]),
    keras.layers.Rescaling(1 / 255),
    keras.layers.Flatten(),
    keras.layers.Dense(100, activation="relu"),
    keras.layers.Dense(10, activation="softmax"),
]
model = keras.Sequential(layers)
optimizer = keras.optimizers.Adam(0.001)
model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
model.fit(x, y, batch_size=50, epochs=2, verbose=2)
print("mean of the last layer's weights:", model.get_weights()[-2].mean())
