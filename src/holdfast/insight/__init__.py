"""What holdfast says about runs, queues, workflows and databases, as values with actions.

Nothing here prints or writes commands: the command line turns an action into a command, a page
turns it into a button. All of it reads through a store, and needs no client.
"""
