"""The published contract and the rules: that the documents are current, and that each rule has a test."""
