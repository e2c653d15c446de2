"""The A2C-SMCP contract as types: events, structures, errors, names and URIs. Pure."""
