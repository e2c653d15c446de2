"""The handlers of requests to a Computer: typed functions behind the dispatcher."""
