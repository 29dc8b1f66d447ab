"""Types of what the admin API takes and gives, as plain dictionaries. Made by scripts/generate_client.py."""
