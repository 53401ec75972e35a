"""What tests use together, one file for each thing.

A gateway:
    gateway            a real gateway on a real socket, and tenants with keys
    scripted_gateway   the same in front of a scripted upstream, with money and the ledger's entries
    two_replicas       the same in front of two replicas that play the same, for each wire
    judged_gateway     the same with a scripted judge, and policies in one line
    gateway_processes  the real program in processes of its own, in front of a scripted upstream
    cluster            gateways on `machines` of their own, which share a PostgreSQL
    releases           later versions of the program, with further migrations

What a gateway talks to:
    upstream           a model server that does what its script says (`upstream_wire`: its texts,
                       `upstream_responses`, `upstream_messages`, `upstream_gemini`,
                       `upstream_converse`: the same for other protocols)
    paused_answer      an upstream whose answer ends when the test says so
    backend_calls      a backend without a gateway
    engine             the real embedded engine
    stream_server      one coroutine for each connection, and nothing left open at its end
    otlp_collector     a collector of OpenTelemetry's spans and measurements
    certificates       certificates for servers of tests

What talks to a gateway:
    http_client        a client with a quick transport, for everything that is not about the client
    balancer           a transport over several gateways, which goes elsewhere where one cannot serve
    raw_caller         a client on a raw socket, which may leave or read slowly
    sdks               the SDKs of OpenAI and Anthropic, imported on first use
    responses_answers  Responses requests, and their streams read back (`responses_published`: the
                       published form that every result has to have)
    messages_answers   Messages requests, and their results and streams read back
    token_counts       requests that count tokens
    request_receiver   the connection of a request parser, without a socket

What operators use:
    processes          what another process has started
    program            the command line as a process (`warm_program`: quickly, `terminal`: as a
                       person sees it, `signalled_program`: with a signal at an exact moment)
    console_pages      the addresses of every page of the web console
    console_site       the web console in front of a gateway
    identity_provider  an OpenID Connect provider that people sign in to the console with
    constants          other values for constants of the program
    browser            a real browser

The ledger and its database:
    databases          a database of its own for tests that verify all of it
    data_folders       folders for an embedded PostgreSQL
    postgres_server    a PostgreSQL server of its own: a primary, a standby, a restored one
    pooler             a real PgBouncer in front of a database
    database_clock     a database whose clock a test sets
    ledger             a ledger process without a gateway, and rows by SQL
    ledger_months      a ledger with months that are over: closed, exported, dropped
    books              one tenant's holds, settlements and balance, through the services
    capped_books       the same with caps by period, on a database whose clock can be set
    large_books        many calls at once, by SQL (`large_activity`: their activity,
                       `large_tenants`: many organizations)
    activity_records   records of activity
    known_costs        an organization whose costs are known
    statements         every SQL statement of the source (`explained`: with its plan,
                       `distribution`: whether it stays within its organizations)
    stripe_events      events of payments as Stripe sends them, and their signatures

Documents:
    documents          their blocks, commands and links
    command_lines      command lines in documents and deployment files, parsed and not run

And `proof`: how far a proof goes, with and without `--prove`; `proof_summary`: what is said of all
proofs at the end; `compiled_files`: keeps what Python compiles. Files that end in `_fixtures`
hold pytest fixtures over these. `tables`: tests over the rows of a table.
"""
