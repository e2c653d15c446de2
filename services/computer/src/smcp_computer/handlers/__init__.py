"""What the Computer answers: typed functions behind the door, one file each."""
