"""Flows in memory: shapes, and runs that advance as their steps end.

`part` has the methods of the port. `starts`, `ends` and `losses` begin a change of runs, `cascade`
follows it up to the steps that begin and the runs that end: `judging` decides about steps that are
ready, `skips` and `begin` carry it out, `progress` is what one change gathers. `rows` finds what is
stored, `inputs` puts together what steps are given, `states` shows steps, `shapes` keeps graphs,
`retries` and `deletes` look after runs that have ended.
"""
