"""Finds the widest gap between neighbouring primes in a file that an earlier task has written."""

import json
import os
import sys

name = sys.argv[1] if len(sys.argv) > 1 else "primes.json"
with open(name) as file:
    primes = json.load(file)

widest = max((b - a for a, b in zip(primes, primes[1:])), default=0)
print(f"the widest gap in {name} is {widest}")

# A result is any JSON value; a plain number will do.
with open(os.environ["TENURE_RESULT"], "w") as result:
    json.dump(widest, result)
