"""Reversible pseudonyms: the encrypted map of values, how a request gets them, how an answer is restored."""
