"""Importing this opens a socket."""

import socket

CONNECTION = socket.socket()
