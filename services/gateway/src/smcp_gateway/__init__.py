"""The Socket.IO face of A2C-SMCP: any number of replicas, none of which keeps what another would miss."""
