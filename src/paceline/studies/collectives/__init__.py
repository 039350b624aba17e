"""How fast all-reduces are here, by every way there is, beside what the prices say."""
