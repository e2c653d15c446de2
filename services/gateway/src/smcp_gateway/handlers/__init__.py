"""What the gateway does with each event: typed handlers behind the dispatcher."""
