"""Importing this starts a thread for which an ordinary exit would wait."""

import threading

threading.Thread(target=threading.Event().wait, daemon=False).start()
