"""The workloads as flows of Prefect: prints `ready`, runs the flow that each line names, prints `done` after each."""

import subprocess
import sys

from prefect import flow, task


@task
def noop():
    subprocess.run(["true"], check=True)


@flow
def warm():
    noop()


@flow
def chain40():
    for _ in range(40):
        noop()


@flow
def parallel200():
    for future in [noop.submit() for _ in range(200)]:
        future.result()


FLOWS = {"warm": warm, "chain40": chain40, "parallel200": parallel200}

print("ready", flush=True)
for line in sys.stdin:
    FLOWS[line.strip()]()
    print("done", flush=True)
