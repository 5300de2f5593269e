"""The supervisor process: exec'd clean, single-threaded, standard library only.

It preloads handler modules, forks children, holds their deadlines, climbs the stop ladder, kills trees, reaps, and
reports. It never runs a handler and never sees arguments or results.
"""
