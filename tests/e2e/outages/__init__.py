"""What is cut, killed, filled or paused in containers while calls go on, and what everybody may notice of it."""
