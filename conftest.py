pytest_plugins = ["tests.cluster"]
