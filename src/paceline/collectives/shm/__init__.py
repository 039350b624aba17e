"""Collectives through memory that the processes of one host share."""
