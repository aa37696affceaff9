"""For tests: the conformance kit for stores."""
