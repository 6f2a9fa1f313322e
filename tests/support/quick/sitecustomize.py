"""Has programs of the tests look for garbage seldom: TensorFlow makes many objects, and looking takes long."""

import gc

gc.set_threshold(100_000)
