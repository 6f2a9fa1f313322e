from estimators.backends.fake import FakeOutcome as FakeOutcome
