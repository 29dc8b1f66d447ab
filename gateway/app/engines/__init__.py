"""Engines of this process: sidecars, endpoints, their connections and names, engines on trial, and how many there should be."""
