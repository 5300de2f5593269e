"""The child process: one attempt of one handler. Standard library only, so that a fork shares nothing heavy."""
