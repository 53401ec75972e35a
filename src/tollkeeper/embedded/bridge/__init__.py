"""The bridge: a process beside the gateway that speaks the chat protocol on loopback and makes each
call through a library of many providers.

It imports the standard library, the library itself and `embedded.parent_watch`, so that it also runs
on an interpreter where nothing else of the gateway is installed.
"""
