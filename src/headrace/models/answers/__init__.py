"""Reasoning and calls of tools as model families write them: told apart, and demanded by grammar."""
