"""A script without a main guard: importing it ends the program."""

import sys

sys.exit("usage: exits FILE")
