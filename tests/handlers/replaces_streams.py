"""Importing this puts other objects in the places of the standard streams, as older programs do."""

import codecs
import sys

sys.stdout = codecs.getwriter("utf-8")(sys.stdout.buffer)
sys.stderr = None
