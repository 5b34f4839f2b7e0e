"""Real servers for the tests: started on free ports of 127.0.0.1 with temporary data, and stopped.

A test asks for one by its fixture (``redis_server``, ...), which all tests of a run share: each
test uses tables, keys or topics of its own. A test that kills a server starts one for itself.
``NETSPY_TEST_<NAME>_URL`` (``NETSPY_TEST_REDIS_URL``, ...) names one that runs already.
"""
