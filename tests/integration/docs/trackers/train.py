"""A script that prints a loss."""

for number in range(3, 0, -1):
    print("loss:", number)
