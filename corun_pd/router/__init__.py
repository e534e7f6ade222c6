"""The router: one request in, legs on instances, one answer out.

Read `pipeline` first: it is a sample's way from prompt to text. `validate` makes the request whole, `text`
and `detokenize` are the one place of text, `policy` picks instances (pure; the planner runs it too),
`admission` queues and reserves, `fleet` and `session` hold the instances, `service` and `server` the wire.
"""
