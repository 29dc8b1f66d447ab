"""In which order the files of tests run."""

LONGEST_FIRST = (
    "tests/cluster/",
    "tests/e2e/test_admin_schema.py",
    "tests/e2e/test_people.py",
    "tests/e2e/test_own_keys.py",
    "tests/e2e/",
    "tests/integration/",
    "tests/contract/",
    "tests/test_",
)
"""Where the longest files are. xdist hands out whole files, in this order (scripts/test): a long one at the end would leave the other
processes idle."""


def place(nodeid: str) -> int:
    return next((number for number, prefix in enumerate(LONGEST_FIRST) if nodeid.startswith(prefix)), len(LONGEST_FIRST))
