"""The KV hand-over: a ticket and its form in the transfer library."""
