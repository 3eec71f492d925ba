"""The book's own tools: export of saved cells, runs, checks and the API index.

`python -m booktools --help` lists the commands; the Makefile calls them. Nothing here imports
`agentrl`, so a library that does not load can still be exported again, tested and repaired.
"""
