"""Plans: what happens to each saved storage, and when. Nothing here runs a step."""
