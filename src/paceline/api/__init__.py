"""What ``import paceline`` offers beside the types that one writes oneself: the functions behind the commands."""
