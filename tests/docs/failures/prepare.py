inputs = None
