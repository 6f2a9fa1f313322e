from container import distributed

cluster = distributed.init()
dataset = range(3)
seen = []
train_step = seen.append


def save():
    raise AssertionError("nothing was to be ended")


# DOCUMENTED
assert seen == [0, 1, 2]
