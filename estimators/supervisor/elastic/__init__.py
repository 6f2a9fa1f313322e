"""Control elastic jobs, whose hosts may join and leave during the training, in the supervisor."""
