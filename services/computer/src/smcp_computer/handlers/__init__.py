"""What the Computer answers: typed functions behind the dispatcher, one file each."""
