"""How should I spread this training over several workers, and how fast will it go?"""

__version__ = "0.1.0"
