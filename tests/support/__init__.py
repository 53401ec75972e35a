"""What tests use together, one file for each thing.

A gateway:
    gateway            a real gateway on a real socket, and tenants with keys
    scripted_gateway   the same in front of a scripted upstream, with money and the ledger's entries
    two_replicas       the same in front of two replicas that play the same, for each wire
    judged_gateway     the same with a scripted judge, and policies in one line
    gateway_processes  the real program in processes of its own, in front of a scripted upstream
    program            the command line as a process (`warm_program`: quickly)
    releases           later versions of the program, with further migrations
    engine             the real embedded engine

What a gateway talks to:
    upstream           a model server that does what its script says (`upstream_wire`: its texts,
                       `upstream_responses`, `upstream_messages`, `upstream_gemini`,
                       `upstream_converse`: the same for other protocols)
    paused_answer      an upstream whose answer ends when the test says so
    otlp_collector     a collector of OpenTelemetry's spans and measurements
    backend_calls      a backend without a gateway

What talks to a gateway:
    balancer           a transport over several gateways, which goes elsewhere where one cannot serve
    raw_caller         a client on a raw socket, which may leave or read slowly
    responses_answers  Responses requests, and their streams read back (`responses_published`: the
                       published form that every result has to have)
    token_counts       requests that count tokens
    request_receiver   the connection of a request parser, without a socket

The ledger and its database:
    databases          a database of its own for tests that verify all of it
    ledger             a ledger process without a gateway, and rows by SQL
    ledger_months      a ledger with months that are over: closed, exported, dropped
    large_books        many calls at once, by SQL
    books              one tenant's holds, settlements and balance, through the services
    activity_records   records of activity
    known_costs        an organization whose costs are known

Documents:
    documents          their blocks, commands and links
    command_lines      command lines in documents and deployment files, parsed and not run

And `proof`: how far a proof goes, with and without `--prove`; `compiled_files`: a place for what
Python compiles. Files that end in `_fixtures` hold pytest fixtures over these.
"""
