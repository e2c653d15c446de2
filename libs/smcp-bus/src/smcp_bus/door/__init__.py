"""The one door through which every request goes to its handler."""
