"""How systems of users are spoken to: their databases and their web services.

Tools use these clients in the worker, Spark's data sources use them in Spark's processes; neither knows the other.  A
client knows core and ports, and keeps the rules that must be the same wherever a connection is made: which addresses
may be reached, how a credential becomes a login, what an error may say."""
