"""Who uses the system: Agents through our SDK and through a bare Socket.IO client, and observers."""
