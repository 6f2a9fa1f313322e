inputs = {"train": "data/digits/train", "validation": "data/digits/validation"}
