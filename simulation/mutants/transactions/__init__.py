"""Broken rules of records, coordinators and watchers: what is written about a transaction, and who decides it."""
