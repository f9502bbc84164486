"""Adds up the orders of a CSV file and returns the totals as the result of the task."""

import csv
import json
import os
import sys

with open(sys.argv[1], newline="") as file:
    cents = [int(row["cents"]) for row in csv.DictReader(file)]

totals = {"orders": len(cents), "total": f"{sum(cents) / 100:.2f}"}
print("totals:", totals)

with open(os.environ["TENURE_RESULT"], "w") as result:
    json.dump(totals, result)
