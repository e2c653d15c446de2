"""The mutation tester over what decides and does nothing else: the contract, and who gets a place."""
