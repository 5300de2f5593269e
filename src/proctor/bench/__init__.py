"""The benchmarks behind ``proctor bench``: probes measure, figures judge, the report shows.

Each probe is a fresh interpreter that measures one thing and is gone afterwards, so probes cannot disturb each other.
Statistics, figures and report are pure; processes are started and swept up in `running`.
"""
