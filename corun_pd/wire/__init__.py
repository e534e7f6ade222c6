"""The wire's edge: messages to vocabulary, errors to statuses, servers and channels.

`convert` holds the two directions of each message beside each other, `status` those of each error, and
`server` builds servers and channels with the limits that both ends share.
"""
