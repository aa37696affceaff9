"""The soak: rounds of random tasks, calls and faults on random stacks, and a judge who knows no lock."""
