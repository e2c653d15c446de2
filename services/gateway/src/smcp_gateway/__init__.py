"""Serves A2C-SMCP over Socket.IO, by any number of replicas: a replica holds no state that another one needs."""
