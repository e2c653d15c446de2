"""The handlers of the events that clients may send; the dispatcher calls them."""
