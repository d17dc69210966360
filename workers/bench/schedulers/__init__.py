"""`gyre bench schedulers`: the policies side by side on a real stack whose engines and trainers are paced.

Temporal, the workflows, the proxy, the harness host and the cell workers are the real ones; engines and training actors
are named doubles that take their time instead of computing, so that a machine of two cores can stand for eight equal
cells. What is executed is read from a workload file that was fixed beforehand, the same for every policy.
"""
