"""Contains the code that tests share, one file for each topic.

Gateways:
    gateway            runs a real gateway on a real socket, and creates tenants with keys
    scripted_gateway   runs it in front of a scripted upstream, with money and ledger entries
    two_replicas       runs it in front of two replicas that play the same script, for each wire
    judged_gateway     runs it with a scripted judge, and publishes policies with one call
    gateway_processes  runs the real program as separate processes, in front of a scripted upstream
    cluster            runs gateways on separate `machines`, which share a PostgreSQL server
    releases           simulates later versions of the program, with further migrations

Servers that a gateway calls:
    upstream           a model server that follows a script (`upstream_wire`: its texts,
                       `upstream_responses`, `upstream_messages`, `upstream_gemini`,
                       `upstream_converse`: the same for other protocols)
    paused_answer      an upstream whose answer ends when the test allows it
    backend_calls      calls to a backend without a gateway
    plain_backend      the parts that backends in tests share: everything except `answer`
    engine             the real embedded engine
    stream_server      one coroutine for each connection; closes all connections at its end
    otlp_collector     a collector of OpenTelemetry's spans and metrics
    certificates       certificates for test servers

Clients of a gateway:
    http_client        a client with a fast transport, for tests that do not test the client
    balancer           a transport over several gateways, which retries on another gateway
    raw_caller         a client on a raw socket, which may disconnect or read slowly
    sdks               the SDKs of OpenAI and Anthropic, imported on first use
    responses_answers  Responses requests, and their decoded streams (`responses_published`: the
                       published format of every result)
    messages_answers   Messages requests, and their decoded results and streams
    token_counts       requests that count tokens
    request_receiver   the connection of a request parser, without a socket

Programs of operators:
    processes          finds the processes that another process has started
    program            the command line as a process (`warm_program`: without start-up time,
                       `terminal`: in a terminal, `signalled_program`: with a signal at an exact time)
    console_pages      the URLs of all pages of the console, and the results of its forms
    console_site       the console in front of a gateway
    started_console    a console as a process, started by the command with the settings of a site
    identity_provider  an OpenID Connect provider, with which users sign in to the console
    constants          replaces constants of the program
    browser            a real browser

The ledger and its database:
    databases          creates a separate database for tests that verify all of its rows
    data_folders       creates folders for an embedded PostgreSQL
    leftovers          removes the processes and folders of an interrupted run
    postgres_server    a separate PostgreSQL server: a primary, a standby or a restored server
    patroni            three PostgreSQL servers that Patroni manages, with an etcd
    failovers          two gateways and their clients while the database fails over
    pooler             a real PgBouncer in front of a database
    database_clock     a database whose clock a test sets
    ledger             a ledger process without a gateway, and rows by SQL
    ledger_months      a ledger with past months: closed, exported, dropped
    books              holds, settlements and balance of one tenant, through the services
    capped_books       the same with period caps, on a database whose clock a test sets
    changed_services   replaces single services of a process
    large_books        creates many calls at once, by SQL (`large_activity`: their activity,
                       `large_tenants`: many organizations)
    activity_records   creates activity records
    known_costs        an organization whose costs are known
    statements         every SQL statement of the source (`explained`: with its plan,
                       `distribution`: checks that it stays within its organizations)
    stripe_events      payment events as Stripe sends them, with signatures

Documents:
    documents          code blocks, commands and links of documents
    command_lines      parses command lines of documents and deployment files without running them

Test runs: `proof` sets the size of a proof with and without `--prove`, `proof_summary` reports on
all proofs at the end, `compiled_files` keeps the files that Python compiles, `disturbances` adds the
database server's log to the report of a failed test, `documented_answers` compares every answer with
the OpenAPI document, `nested_pytest` runs pytest on tests that a test
has written, `tables` runs a test for each row of a table, and `large_content` measures functions that
read large content. Files whose names end in `_fixtures` contain pytest fixtures.
"""
