"""The workloads as dags of Airflow. Each task really runs: a shell that starts `true`."""

from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG, chain


def noop(number):
    return BashOperator(task_id=f"t{number}", bash_command="true")


with DAG("warm", schedule=None):
    noop(0)

with DAG("chain40", schedule=None, max_active_tasks=1000):
    chain(*[noop(number) for number in range(40)])

with DAG("parallel200", schedule=None, max_active_tasks=1000):
    for number in range(200):
        noop(number)
