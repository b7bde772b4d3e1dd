"""Helpers that tests import. `tests/architecture/test_support.py` compares this index with the folder.

Runs and events:
    runs: Events of a run in short form, first events, and how a run ended.
    run_checks: Checks of streams and runs: kinds, numbering, endings, nothing left open.
    failing_runs: Runs that must end, and their last events.
    cancellation: Runs that continue until they are canceled, and checks of their end.
    faulty_components: Operators, tools, providers and subscribers that raise, block or ignore cancellation.
    broken_streams: Valid streams, and every way to break their grammar, by name.
    random_runs: Hypothesis strategy that draws runs with every kind of event.
    fold_events: Events written by hand for tests of the fold.
    timelines: Events on a timeline of seconds, live and recorded, for tests of views.
    hot_source: A subscriber to a view of a hot source, in virtual time.
    long_runs: A tool with long results, and what was sent of them in each request.
    waiting_runs: Runs that wait for an approval, and the commands that they received.
    tool_results: Events and results of the calls of one message.
    graphs: A thought graph built from its changes, compared with the graph itself.
    graph_events: Thoughts and calls as events of a thought graph.
    histories: Valid message histories, by hand and by Hypothesis.

Agents, models and tools:
    plain_tools: A tool, and a function that can become one.
    step_tools: Tools that do a step or fail, and a call that thinks.
    weather: A tool that reads the weather, and one that asks a question.
    slow_agent: A scripted agent whose tools ask and take long.
    sum_tools: A model that sums in two steps, and tools of small runs.
    hidden_tools: Tools hidden from clients, with a marker in all their data, and runs that call them.
    hidden_runs: An agent with hidden tools, and turns for its model.
    payments: A tool that asks before it pays.
    bank: A bank agent that asks before it pays, and its runs after a crash.
    fork_shop: A shop with a finished run in its log, for forks.
    capitals: Models and a tool that know capitals, for experiments.
    nested_agents: Nested agents, and rules that the stream of their run must obey.
    virtual_models: Providers in virtual time, as cold observables of a test scheduler.
    fake_host: A host for tools under test, which folds the published events.

Strategies and thinking:
    strategy_cases: One run of each of the nine strategies, and rules for its stream.
    sequential_thoughts: Arguments and results of sequential thoughts.
    strategy_table: The table of the nine strategies in the specification, if it is next to the checkout.
    two_branches: A strategy with two branches.
    thinking_calls: Calls of the sequential thinking server.

Event logs and queues:
    event_logs: Logs that block, append at once or are away, and their writers.
    fake_clock: A clock that the test sets.
    slow_log: A log that appends when the test allows it.
    queues: A queue in memory, reliable or not.
    dropped_questions: Two processes on one log, and a run whose questions a later run drops.

PostgreSQL (`postgres/`):
    postgres.server: Fixture `postgres`: databases of a running server, and servers of a test.
    postgres.logs: Fixtures and checks for tests of the Postgres log.
    postgres.proxies: A TCP proxy to Postgres that delays, drops and cuts connections.
    postgres.snapshots: Copies of the tables of a log, to roll it back while it is used.
    postgres.queues: A Postgres queue, and workers that take its jobs.

HTTP and clients (`clients/`):
    http_server: An HTTP/1.1 server that sends the responses of a test, in the pieces the test chooses.
    api_server: The HTTP API on a real port, and clients that behave badly.
    clients.a2a: The official A2A client and a server for it.
    clients.agui: The official AG-UI client in a node process, and a server for it.
    clients.agui_posts: Raw requests to the AG-UI adapter, and the bytes of its responses.
    clients.ai_sdk: Pages with the official AI SDK packages in a node process.
    clients.mcp: Agents behind the MCP server, and official clients of it.
    clients.openai: The OpenAI adapter on a real port, and OpenAI's clients.
    clients.replica_clients: Official clients of several servers at once, and a judge of what they show.
    offline_server: The offline model on a real socket, for commands in other processes.
    browser: Chromium, driven over its debugging pipe.

Vendor APIs (`vendors/`):
    vendors.codecs: A notice handler that does nothing, for tests of codecs.
    vendors.echo_codec: A minimal codec, for tests of the layers below all codecs.
    vendors.chat_chunks: Chunks of OpenAI chat completions, and the messages read from them.
    vendors.responses: Requests and answers of the Responses API, without a network.
    vendors.claude: Requests and answers of Anthropic, checked against the types of its SDK.
    vendors.gemini: Requests and answers of Gemini, checked against Google's types.
    vendors.aws_events: Messages of AWS event streams.
    vendors.messages: The messages read from answers.
    vendors.vendor_answers: Answers of the four vendor APIs, streamed and whole.
    vendors.vendor_rules: Requests that the four APIs reject although their SDK types accept them, with sources.
    vendors.schema_rules: Tool and answer schemas that vendors reject, with sources.
    vendors.openai_checks: A strict reading of OpenAI streams by OpenAI's own types.
    vendors.typed_dicts: A strict check of JSON against a `TypedDict`.
    vendors.native: How the recorded requests and the words of each vendor's SDK map to rxloop.
    vendors.other_vendors: Vendors with which a conversation continues, and checks of the requests to each.
    vendors.recordings: Recorded answers of real vendors, if they are next to the checkout.
    vendors.recorded_histories: Recorded conversations as histories of runs.
    vendors.replay_variants: The ways to split and alter a recorded answer.
    vendors.split_streams: Streams in pieces, as a socket delivers them.
    vendors.hostile_vendor: Program: a vendor that tries to fill the memory of its client, measured.

Command line:
    cli_workspace: A folder with a database, an offline model and tools, and the command in it.
    terminals: A person at a pseudo-terminal, and what the screen shows.
    run_document: Program: runs the Python blocks of a Markdown document.

Processes and machines (`processes/`):
    processes.services: Programs and servers that may be missing; the marker `service`.
    processes.bound_processes: Processes that end with the process that started them.
    processes.machines: Several machines on one log, simulated in one process.
    processes.hosts: Hosts in network namespaces, and an unreliable network between them.
    processes.replicas: Processes that serve one log, and their clients.
    processes.cluster: Servers and workers over one Postgres, started by the `rxloop` command.
    processes.disks: A small disk that can fill up.
    processes.counters: Counts of work that do not depend on the speed of the machine.
    processes.many_runs: Program: many runs at once with few file descriptors.
    timeout_plugin: pytest plugin: ends tests that hang even if they swallow their first timeout.

Agents and servers in other processes (`server_programs/`):
    server_programs.clerk: Program: a runtime served by uvicorn or hypercorn.
    server_programs.clustered_clerk: Agents served and worked on by a cluster.
    server_programs.replica: Program: one of several servers on one log.

Workers that fail (`workers/`):
    workers.cluster: Worker processes over a real Postgres, and checks of their runs.
    workers.clerk: An agent without memory, which any worker can continue.
    workers.scripted_agents: Agents whose tools take long, ask, or kill their process.
    workers.faults: Faults that a test orders inside worker processes.
    workers.faulty_queue: A queue that loses, duplicates and invents jobs.
    workers.dying_server: Program: a process that dies before it notifies the queue.

The chaos kit (`chaos/`):
    chaos.sample_logs: Logs of correct and incorrect runs, for checkers.
    chaos.mutants: Agents whose workers have one guarantee switched off, which a checker must detect.
    chaos.sql_checker: An independent checker, in SQL.

Processes that are killed (`crash/`):
    crash.forked_runs: Program: runs in forked processes.
    crash.killed_runs: Runs in processes that the test kills, started by `nursery`.
    crash.nested_runs: Program: runs with nested agents in forked processes.
    crash.concurrent_answers: Program: two processes that answer one question at once.
    crash.experiment: Program: an experiment.
    crash.artifact_writer: Program: writes an artifact.
    crash.thought_tree: Program: grows a thought graph, and kills itself.
    crash.replica: Program: one of several processes on one log, killed and frozen.

MCP servers (`mcp_servers/`):
    mcp_servers.shop: Program: an MCP server made with the official SDK.
    mcp_servers.faulty: Program: an MCP server with wrong answers.
    mcp_servers.raw: Program: an MCP server that sends scripted results over stdio or HTTP.
    mcp_servers.runs: Runs with the tools of MCP servers, and their events.
"""
