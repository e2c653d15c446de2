"""The published clients (`a2c-smcp`) against our gateways, in an environment of their own."""
