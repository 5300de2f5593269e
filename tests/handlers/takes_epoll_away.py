"""A module that, when imported, takes away what an event loop needs, as gevent's monkey patches do."""

import select

vars(select).pop("epoll")
